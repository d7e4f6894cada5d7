"""Faults that a review found: bodies with an encoding, expired objects, zeros in the configuration, large namespaces."""

import asyncio
import errno
import gzip
import time
from pathlib import Path

import pytest
from child_processes import until
from daemon_process import DaemonProcess
from http_door import running_http
from local_daemon import running_daemon

from mooncask.client import wire
from mooncask.client.http import HttpClient
from mooncask.client.local import LocalClient
from mooncask.daemon.config_source import load_config
from mooncask.daemon.main import store_config
from mooncask.errors import BadRequest, ConfigError, NotEvictable


async def test_a_body_is_stored_as_it_was_sent_whatever_encoding_it_names() -> None:
    body = gzip.compress(b"a" * 100_000)
    async with running_http() as http:
        await http.ask("PUT", "/bucket")
        for encoding in ("gzip", "deflate", "br"):
            status, _, _ = await http.ask("PUT", "/bucket/k", data=body, headers={"Content-Encoding": encoding})
            assert status == 200
            assert (await http.ask("GET", "/bucket/k"))[1] == body


async def test_an_expired_object_is_not_found_at_once() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/bucket")
        await http.ask("PUT", "/bucket/k", data=b"hello")
        namespace = http.daemon.store.namespace("bucket")
        assert namespace is not None
        http.daemon.store._parts.catalogue.set_ttl(namespace.index[b"k"], time.time() - 0.001)
        for method in ("GET", "HEAD"):
            assert (await http.ask(method, "/bucket/k"))[0] == 404


async def test_a_bucket_that_is_deleted_during_a_put_is_gone_for_the_put() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/bucket")
        host, port = http.address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /bucket/k HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhel")
        await writer.drain()
        await until(lambda: http.daemon.store.status().tiers[0].reserved_bytes > 0)
        assert (await http.ask("DELETE", "/bucket"))[0] == 204
        writer.write(b"lo")
        assert b" 404 " in await reader.readline()
        writer.close()
        assert not http.daemon.store.status().tiers[0].used_bytes


async def test_what_is_not_http_is_refused_without_a_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async with running_http() as http:
        for request in (
            b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"y" * 9000,
        ):
            host, port = http.address.rsplit(":", 1)
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert [record for record in caplog.records if record.exc_info] == []


async def test_many_namespaces_with_long_descriptions_still_fit_into_a_status() -> None:
    async with running_daemon() as daemon:
        client = await daemon.client()
        with pytest.raises(BadRequest, match="family of"):
            await client.ask(wire.Opened, wire.Open, "large", wire.NamespaceKind.OBJECT, {"a": "b" * 20_000})
        with pytest.raises(BadRequest, match="shard"):
            await client.ask(wire.Opened, wire.Open, "large", wire.NamespaceKind.OBJECT, {}, "s" * 1000)
        for number in range(40):
            await client.ask(
                wire.Opened, wire.Open, f"bucket-{number}", wire.NamespaceKind.OBJECT, {"a": "b" * 15_000}, "s" * 256
            )
        status = await client.ask(wire.Status, wire.Stat, 0, [])
        assert len(status.namespaces) == 40 and status.namespaces[0].family and not status.namespaces[-1].family
        await client.close()


@pytest.mark.parametrize(
    "key", ["HTTP_RATE_MIN", "NVME_DIRTY_MAX", "LIMITS_LEASE_MAX", "SOCKET_STAGING", "LIMITS_BLOCK_MAX"]
)
def test_a_zero_with_which_nothing_would_work_is_refused_at_the_start(key: str) -> None:
    with pytest.raises(ConfigError, match="above 0"):
        load_config(None, {f"MOONCASK_{key}": "0"})


def test_a_segment_that_holds_no_block_is_refused_at_the_start() -> None:
    environment = {"MOONCASK_NVME_PATH": "/x", "MOONCASK_NVME_SEGMENT": "4096"}
    with pytest.raises(ConfigError, match="at least"):
        store_config(load_config(None, environment))


async def test_objects_that_find_no_room_on_a_full_disk_are_refused_at_once_and_do_not_fill_dram(
    tmp_path: Path,
) -> None:
    settings = {"nvme.path": str(tmp_path), "nvme.capacity": "70MiB", "dram.capacity": "16MiB"}
    async with running_http(settings) as http:
        await http.ask("PUT", "/bucket")
        stored: set[int] = set()
        for number in range(80):
            status, _, _ = await http.ask("PUT", f"/bucket/{number}", data=b"x" * (1 << 20))
            assert status in (200, 507), "never a wait for room that nobody makes"
            stored |= {number} if status == 200 else set()
        assert 10 < len(stored) < 60
        for number in range(80):
            assert (await http.ask("HEAD", f"/bucket/{number}"))[0] == (200 if number in stored else 404)
        assert (await http.ask("DELETE", f"/bucket/{min(stored)}"))[0] == 204


def test_where_nothing_can_leave_dram_for_a_full_disk_a_short_object_is_refused_at_once_at_every_door(
    tmp_path: Path,
) -> None:
    settings = {"nvme.capacity": "40MiB", "nvme.segment": "4MiB", "dram.capacity": "16MiB", "limits.block_max": "2MiB"}
    with (
        DaemonProcess.start(tmp_path, settings) as daemon,
        LocalClient.connect(daemon.socket_path, deadline_seconds=30) as client,
        HttpClient(f"http://{daemon.http_address}", 30) as http,
    ):
        bucket = client.open_namespace("bucket", kind=wire.NamespaceKind.OBJECT)
        began = time.monotonic()
        with pytest.raises(NotEvictable) as refused:
            for number in range(80):  # acknowledged without waiting for the disk
                client.put(bucket, [b"%d" % number], [bytes(1 << 20)])
        assert refused.value.errno == errno.ENOSPC
        with pytest.raises(NotEvictable):
            http.put("bucket", "k", bytes(1 << 20))
        assert time.monotonic() - began < 10, "never a wait for room that nobody makes"


async def test_nothing_is_counted_any_more_under_the_name_of_a_bucket_that_is_gone() -> None:
    async with running_http() as http:
        service = http.daemon.service
        client = await http.daemon.client()
        opened = await client.ask(wire.Opened, wire.Open, "kv-counted", wire.NamespaceKind.KV, {"block_tokens": "16"})
        await client.ask(wire.Matched, wire.Match, opened.namespace, [b"k" * 16])
        assert service.tokens
        assert (await http.ask("DELETE", "/kv-counted"))[0] == 204
        assert not service.tokens
        await client.close()
