"""The JSON pages of single blocks, and what is the same for all pages: errors, tenants, rights, what the paths mean."""

import os
import time

import msgspec
import pytest
from control_pages import open_kv, running_pages
from http_door import running_http
from raw_client import key, payload
from xxhash import xxh3_128_hexdigest

from mooncask.client import wire
from mooncask.client.control import Overview
from mooncask.client.control_client import ControlClient
from mooncask.daemon.http.callers.caller import Caller
from mooncask.errors import (
    AccessDenied,
    BadRequest,
    DaemonUnavailable,
    MooncaskError,
    NoSuchBlock,
    NoSuchNamespace,
    PinLimitExceeded,
)


async def test_a_block_is_told_with_all_that_is_known_of_it() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1), key(2)])
        block = await pages.ask(ControlClient.block, "kv-a", key(2))
        assert (block.key, block.parent) == (key(2).hex(), key(1).hex())
        assert (block.depth, block.tokens, block.size_bytes, block.tiers) == (1, 16, len(payload(2)), ["dram"])
        assert block.checksum == xxh3_128_hexdigest(payload(2)) and block.pins == block.leases == 0


async def test_blocks_are_pinned_given_a_time_and_evicted() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1)])
        assert (await pages.ask(ControlClient.pin, "kv-a", key(1))).pins == 1
        assert (await pages.ask(ControlClient.pin, "kv-a", key(1).hex())).pins == 2
        assert (await pages.ask(ControlClient.unpin, "kv-a", key(1))).pins == 1
        assert 99 < (await pages.ask(ControlClient.set_ttl, "kv-a", key(1), 100.0)).ttl_seconds <= 100
        assert (await pages.ask(ControlClient.set_ttl, "kv-a", key(1), 0.0)).ttl_seconds == 0
        assert (await pages.ask(ControlClient.evict, "kv-a", key(1))).tiers == []
        with pytest.raises(NoSuchBlock):
            await pages.ask(ControlClient.block, "kv-a", key(1))
        with pytest.raises(NoSuchBlock):
            await pages.ask(ControlClient.evict, "kv-a", key(1))


async def test_objects_are_named_by_their_own_names_whatever_is_in_them() -> None:
    async with running_pages() as pages:
        await pages.client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        names = ["a/b", "a b", "a//b", "100%", "€", "pin", "a/pin", "x?y#z", "../up", "a+b"]
        handle = await pages.client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        await pages.client.put(handle, {name.encode(): name.encode() for name in names})
        for name in names:
            block = await pages.ask(ControlClient.pin, "photos", name)
            assert (block.key, block.size_bytes, block.pins) == (name, len(name.encode()), 1)


async def test_errors_come_with_their_class_and_data() -> None:
    async with running_pages({"dram.capacity": "1MiB", "limits.pin_share": 0.1}) as pages:
        with pytest.raises(NoSuchNamespace) as no_namespace:
            await pages.ask(ControlClient.block, "nowhere", "00")
        assert no_namespace.value.namespace == "nowhere"
        namespace = await open_kv(pages.client, "kv-a")
        with pytest.raises(NoSuchBlock, match="not hex"):
            await pages.ask(ControlClient.block, "kv-a", "not hex")
        with pytest.raises(BadRequest, match="seconds"):
            await pages.ask(ControlClient.set_ttl, "kv-a", key(1), 1e12)
        for number in range(13):
            await pages.put_chain(namespace, [key(number)])
        with pytest.raises(PinLimitExceeded) as refused:
            for number in range(13):
                await pages.ask(ControlClient.pin, "kv-a", key(number))
        assert refused.value.tier == "dram" and refused.value.limit_bytes == int(0.1 * (1 << 20))


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "nothing", 404),
        ("GET", "", 404),
        ("POST", "overview", 405),
        ("PUT", "blocks/a/b", 405),
        ("POST", "blocks/kv-a/00/explode", 400),
        ("GET", "chains/kv-a?limit=-1", 400),
        ("GET", "chains/kv-a?limit=many", 400),
        ("GET", "blocks/kv-a/%FF", 400),
    ],
)
async def test_what_is_no_page_is_told_so_in_json(method: str, path: str, status: int) -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        with pytest.raises(BadRequest):
            await pages.ask(lambda control: control._ask(object, method, f"/-/v1/{path}", b"", 5.0))  # type: ignore[type-var]
        got = await pages.ask(lambda control: control._exchange(method, f"/-/v1/{path}", b"", _soon()))
        assert got[0] == status


def _soon() -> float:
    return time.monotonic() + 5


async def test_over_tcp_the_pages_are_the_same() -> None:
    async with running_http() as http:
        status, body, headers = await http.ask("GET", "/-/v1/overview")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert msgspec.json.decode(body, type=Overview).ready
        status, body, _ = await http.ask("GET", "/-/v1/blocks/nowhere/00")
        assert status == 404
        assert msgspec.json.decode(body) == {
            "error": "NoSuchNamespace",
            "message": 'no namespace nowhere; "mooncask ls" lists those that exist',
            "data": {"namespace": "nowhere"},
        }
        _, _, headers = await http.ask("PUT", "/-/v1/overview")
        assert headers["Allow"] == "GET"


async def test_another_tenants_namespaces_are_refused_on_every_page() -> None:
    async with running_pages({"tenants.astro.uids": [os.getuid()]}) as pages:
        other = await pages.daemon.service.door.open("default", wire.Open(0, "kv-other", family={"block_tokens": "16"}))
        assert other.spec.tenant == "default"
        calls = (
            lambda c: c.block("kv-other", "00"),
            lambda c: c.evict("kv-other", "00"),
            lambda c: c.pin("kv-other", "00"),
            lambda c: c.children("kv-other"),
            lambda c: c.path("kv-other", "00"),
            lambda c: c.tips("kv-other"),
            lambda c: c.match("kv-other", keys=["00"]),
            lambda c: c.why("kv-other", keys=["00"]),
        )
        for call in calls:
            with pytest.raises(AccessDenied):
                await pages.ask(call)  # type: ignore[arg-type]  # of one client, each with another answer


async def test_who_may_only_read_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1)])
        reader = Caller("default", "a reader", may_write=False)
        monkeypatch.setattr("mooncask.daemon.http.pages.page_request.caller_of", lambda request: reader)
        assert (await pages.ask(ControlClient.block, "kv-a", key(1))).size_bytes
        for call in (ControlClient.evict, ControlClient.pin, ControlClient.unpin):
            with pytest.raises(AccessDenied, match="a reader"):
                await pages.ask(call, "kv-a", key(1))
        with pytest.raises(AccessDenied):
            await pages.ask(ControlClient.set_ttl, "kv-a", key(1), 1.0)


async def test_the_configuration_is_told_without_secrets_and_other_tenants() -> None:
    settings = {
        "tenants.astro.uids": [os.getuid()],
        "tenants.astro.quota": "1GiB",
        "tenants.rivals.quota": "2GiB",
        "nvme.scrub_rate": "1MiB",
    }
    async with running_pages(settings) as pages:
        page = await pages.ask(ControlClient.config)
        assert page.sections["nvme"]["scrub_rate"] == 1 << 20
        assert page.sections["tenants.astro"]["quota"] == 1 << 30 and "tenants.rivals" not in page.sections
        assert "nvme.scrub_rate" in page.reloadable and "dram.capacity" not in page.reloadable


async def test_a_client_without_a_daemon_says_so_and_comes_back_with_it() -> None:
    async with running_pages() as pages:
        path = pages.daemon.path
        await pages.ask(ControlClient.config)
    with ControlClient(path, deadline_seconds=1.0) as control, pytest.raises(DaemonUnavailable, match="mooncask serve"):
        control.config()
    assert issubclass(DaemonUnavailable, MooncaskError)
