"""What is about to leave the last tier: in which order, and its bytes, without any trace of the look."""

from pathlib import Path

import pytest
from store_driver import KIB, bucket, get, kv, opened, put, store_config

from mooncask.tiers.block import WriteMode
from mooncask.tiers.leaving import Candidate
from mooncask.tiers.store import Store

BLOCK = 64 * KIB


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BLOCK // 4)


def candidates(store: Store, most: int = 100) -> list[Candidate]:
    return [one for one in store.leaving.soonest(most) if one is not None]


async def test_candidates_come_in_the_order_in_which_their_policy_lets_them_go(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        for number in range(6):
            await put(store, namespace, b"k%d" % number, payload(number), durable=True)
        await get(store, namespace, b"k0")
        store._parts.recency.flush()
        assert [one.key for one in candidates(store)] == [b"k1", b"k2", b"k3", b"k4", b"k5", b"k0"]
        assert [one.key for one in candidates(store, 2)] == [b"k1", b"k2"]


@pytest.mark.parametrize("policy", ["sieve", "s3fifo", "lfu", "arc", "2q"])
async def test_where_a_policy_can_not_tell_every_block_has_its_turn(tmp_path: Path, policy: str) -> None:
    async with opened(store_config(tmp_path, nvme_policy=policy)) as store:
        namespace = await kv(store)
        for number in range(7):
            await put(store, namespace, b"k%d" % number, payload(number), durable=True)
        seen = {one.key for _ in range(4) for one in candidates(store, 2)}
        assert seen == {b"k%d" % number for number in range(7)}


async def test_only_kv_without_a_time_to_live_that_is_in_its_last_tier_is_a_candidate(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        disk, memory = await kv(store, "kv-disk"), await kv(store, "kv-memory", WriteMode.MEMORY)
        objects = await bucket(store)
        await put(store, disk, b"on disk", payload(1), durable=True)
        await put(store, disk, b"vanishes", payload(2), durable=True)
        await store.set_ttl(disk, b"vanishes", 1000.0)
        await put(store, memory, b"in memory", payload(3))
        await put(store, objects, b"object", payload(4), durable=True)
        assert {one.key for one in candidates(store)} == {b"on disk", b"in memory"}


async def test_the_bytes_are_those_of_the_block_and_the_look_is_no_use(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        for number in range(3):
            await put(store, namespace, b"k%d" % number, payload(number), durable=True)
        store._parts.copies.drop_dram(namespace.index[b"k1"])  # only on disk
        before = candidates(store)
        for number, one in enumerate(before):
            found = await store.leaving.payload(one)
            assert found is not None and bytes(found.view) == payload(number)
            assert found.record.key == one.key and found.record.checksum == store.checksum(namespace, one.key)
        store._parts.recency.flush()
        assert candidates(store) == before
        assert namespace.index[b"k1"] not in store.catalogue.dram
        assert all(one.hits == 0 for one in before)


async def test_a_block_that_left_or_is_wrong_gives_no_bytes(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"gone", payload(1), durable=True)
        await put(store, namespace, b"wrong", payload(2), durable=True)
        gone, wrong = candidates(store)
        await store.evict(namespace, [b"gone"])
        await put(store, namespace, b"gone", payload(3), durable=True)
        assert await store.leaving.payload(gone) is None, "another block has its key now"
        view = store.view(store.catalogue.dram[namespace.index[b"wrong"]])
        view[0] ^= 1
        assert await store.leaving.payload(wrong) is None
        view[0] ^= 1


async def test_how_full_it_is_goes_by_the_last_tier(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        for number in range(16):
            await put(store, namespace, b"k%d" % number, payload(number), durable=True)
        assert 0.0 < store.leaving.fill() < 0.1
        await put(store, await kv(store, "kv-memory", WriteMode.MEMORY), b"k", payload(1))
        assert store.leaving.fill() > 0.25
