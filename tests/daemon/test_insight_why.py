"""Why a prompt missed: every reason that a block may have for not being here, and where else it is."""

import asyncio
import os
from pathlib import Path

import pytest
from child_processes import until
from control_pages import FAMILY, PagesOf, open_kv, running_pages
from raw_client import key, payload

from mooncask.client import control, hashing, wire
from mooncask.client.control_client import ControlClient
from mooncask.client.family import Family
from mooncask.daemon.namespace_door import tenant_salt
from mooncask.errors import BadRequest, CorruptBlock

TOKENS = list(range(1000, 1000 + 16 * 5 + 3))


def keys_of(cache_salt: str = "", hash: str = "sha256", **family: str) -> list[bytes]:
    fingerprint = Family({**FAMILY, **family}).fingerprint(hash)
    root = hashing.root(fingerprint, tenant_salt("default") + cache_salt.encode(), hash)
    return hashing.chain(root, TOKENS, 16, hash=hash)


async def asked(pages: PagesOf, namespace: str = "kv-a", cache_salt: str = "") -> control.Why:
    return await pages.ask(ControlClient.why, namespace, tokens=TOKENS, cache_salt=cache_salt)


async def first_verdict(pages: PagesOf) -> str:
    why = await asked(pages)
    return why.first_miss.verdict if why.first_miss is not None else ""


async def test_a_full_hit_needs_no_advice() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, keys_of())
        why = await asked(pages)
        assert (why.blocks, why.hit_blocks, why.hit_tokens, why.tail_tokens) == (5, 5, 80, 3)
        assert why.first_miss is None and why.advice == "" and why.elsewhere == []
        assert {block.verdict for block in why.chain} == {"hit"} and why.chain[0].tiers == ["dram"]


async def test_what_nobody_ever_put_is_told_from_what_left() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        keys = keys_of()
        await pages.put_chain(namespace, keys[:2])
        await pages.put_chain(namespace, keys[3:4], parent=keys[2], first=3)
        why = await asked(pages)
        assert why.first_miss is not None and (why.first_miss.index, why.first_miss.verdict) == (2, "never_stored")
        assert (why.hit_blocks, why.later_hits) == (2, 1), "a block behind the gap is here, and of no use"
        assert [block.verdict for block in why.chain] == ["hit", "hit", "never_stored", "hit", "never_stored"]
        assert "family" in why.advice
        await pages.ask(ControlClient.evict, "kv-a", keys[1])
        why = await asked(pages)
        assert why.first_miss is not None and why.first_miss.verdict == "deleted"
        assert why.first_miss.tier == "dram" and why.first_miss.time_seconds > 0 and "deleted at" in why.first_miss.text


async def test_eviction_is_told_with_tier_and_policy() -> None:
    async with running_pages({"dram.capacity": "1MiB"}) as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, keys_of()[:1])
        for number in range(200):
            await pages.client.put(namespace, {key(number): payload(number)})
        why = await asked(pages)
        assert why.first_miss is not None
        assert (why.first_miss.verdict, why.first_miss.tier, why.first_miss.policy) == ("evicted", "dram", "lru")
        assert "from dram by lru" in why.first_miss.text and "dram.capacity" in why.advice


async def test_expiry_quarantine_and_what_is_coming_have_their_verdicts() -> None:
    async with running_pages() as pages:
        namespace, keys = await open_kv(pages.client, "kv-a"), keys_of()
        store = pages.daemon.store
        found = store.namespace("kv-a")
        assert found is not None
        await pages.put_chain(namespace, keys[:1])
        await store.set_ttl(found, keys[0], 0.001)
        await until(lambda: not store.has(found, keys[0]))
        assert await first_verdict(pages) == "expired", "not swept yet, or in the log"
        await until(lambda: keys[0] not in found.index)
        assert await first_verdict(pages) == "expired"
        await pages.put_chain(namespace, keys[:1])
        store.quarantine(found.index[keys[0]], CorruptBlock(keys[0].hex(), "dram", "a test's flipped bit"))
        why = await asked(pages)
        assert (
            why.first_miss is not None and why.first_miss.verdict == "quarantined" and "mooncask verify" in why.advice
        )
        await pages.client.ask(wire.Done, wire.Expect, namespace, keys[:1], 5000)
        assert await first_verdict(pages) == "expected"
        await pages.client.reserve(namespace, {keys[0]: payload(1)})
        assert await first_verdict(pages) == "being_written"


async def test_a_replaced_object_that_left_too_is_told_by_its_last_departure() -> None:
    async with running_pages() as pages:
        handle = await pages.client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        for body in (b"old", b"newer"):
            await pages.client.put(handle, {b"a": body})
        await pages.ask(ControlClient.evict, "photos", "a")
        why = await pages.ask(ControlClient.why, "photos", keys=["a", "b"])
        assert [block.verdict for block in why.chain] == ["deleted", "never_stored"]


async def test_the_other_namespace_is_named_with_every_field_that_differs() -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        other = await open_kv(pages.client, "kv-b", dtype="bfloat16", tp="2")
        await pages.put_chain(other, keys_of(dtype="bfloat16", tp="2")[:3])
        sharded = await pages.client.open("kv-c", family=FAMILY, shard="tp 1/2")
        await pages.put_chain(sharded, keys_of())
        await pages.client.open("kv-d", family=FAMILY, hash="xxh3_128")
        why = await asked(pages)
        assert [(one.namespace, one.blocks, one.differs) for one in why.elsewhere] == [
            ("kv-c", 5, ['shard: "" here, "tp 1/2" there']),
            ("kv-b", 3, ['dtype: "float32" here, "bfloat16" there', 'tp: "(absent)" here, "2" there']),
        ]
        assert "kv-c has 5 blocks" in why.advice and "shard" in why.advice
        there = await asked(pages, "kv-d")
        assert {one.namespace for one in there.elsewhere} == {"kv-b", "kv-c"}
        assert 'hash: "xxh3_128" here, "sha256" there' in there.elsewhere[0].differs


async def test_a_salt_that_keeps_the_prompt_apart_is_named() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, keys_of())
        why = await asked(pages, cache_salt="user 7")
        assert why.hit_blocks == 0 and [(one.namespace, one.blocks) for one in why.elsewhere] == [("kv-a", 5)]
        assert "cache_salt" in why.elsewhere[0].differs[0] and "cache_salt" in why.advice


async def test_other_tenants_blocks_are_told_to_nobody() -> None:
    async with running_pages({"tenants.astro.uids": [os.getuid()]}) as pages:
        family = {**FAMILY}
        other = await pages.daemon.service.door.open("default", wire.Open(0, "kv-other", family=family))
        assert other.spec.tenant == "default"
        await open_kv(pages.client, "kv-a")
        assert (await asked(pages)).elsewhere == []


async def test_what_the_log_does_not_reach_back_to_is_forgotten_and_not_called_never_stored() -> None:
    async with running_pages({"insight.departures_max": 2}) as pages:
        namespace, keys = await open_kv(pages.client, "kv-a"), keys_of()
        await pages.put_chain(namespace, keys[:1])
        await pages.ask(ControlClient.evict, "kv-a", keys[0])
        for number in range(2):
            await pages.put_chain(namespace, [key(number)])
            await pages.ask(ControlClient.evict, "kv-a", key(number))
        why = await asked(pages)
        assert why.first_miss is not None and why.first_miss.verdict == "forgotten"
        assert "insight.departures_max" in why.advice
        assert why.chain[1].verdict == "never_stored", "the filter knows that this one was never here"


async def test_after_a_restart_nothing_is_called_never_stored(tmp_path: Path) -> None:
    settings = {"nvme.path": str(tmp_path / "nvme")}
    keys = keys_of()
    async with running_pages(settings) as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, keys[:2])
        found = pages.daemon.store.namespace("kv-a")
        assert found is not None
        await pages.daemon.store.durable(found, keys[1], asyncio.get_running_loop().time() + 5)
    async with running_pages(settings) as pages:
        why = await asked(pages)
        assert why.hit_blocks == 2 and why.chain[0].tiers == ["nvme"]
        assert why.first_miss is not None and why.first_miss.verdict == "forgotten"
        assert "not stored since" in why.first_miss.text


async def test_a_question_has_a_prompt_of_one_kind() -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        with pytest.raises(BadRequest, match="either tokens or keys"):
            await pages.ask(ControlClient.why, "kv-a")
        with pytest.raises(BadRequest, match="outside"):
            await pages.ask(ControlClient.why, "kv-a", tokens=[1 << 40] * 16)
        short = await pages.ask(ControlClient.why, "kv-a", tokens=[1, 2, 3])
        assert (short.blocks, short.tail_tokens, short.first_miss) == (0, 3, None)
