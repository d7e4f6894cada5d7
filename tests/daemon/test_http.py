"""The HTTP API with a real client against a real store: S3's operations on blocks, and the pages under /-/."""

import asyncio
import base64
import gc
import hashlib
import io
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import aiohttp
import pytest
from child_processes import until
from local_daemon import LocalDaemon, running_daemon
from raw_client import key, payload, status_json
from xxhash import xxh3_128_hexdigest
from yarl import URL

from mooncask.client import wire
from mooncask.errors import MooncaskError, OutOfBounds, error_classes

S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Http:
    """One HTTP client of one daemon."""

    def __init__(self, daemon: LocalDaemon, session: aiohttp.ClientSession) -> None:
        assert daemon.http is not None
        self.daemon, self.session, self.address = daemon, session, daemon.http.address

    async def ask(self, method: str, path: str, **named: Any) -> tuple[int, bytes, Any]:
        """(status, body, headers); `path` is percent-encoded already."""
        if isinstance(named.get("data"), bytes):
            named["data"] = io.BytesIO(named["data"])
        url = URL(f"http://{self.address}{path}", encoded=True)
        async with self.session.request(method, url, **named) as response:
            return response.status, await response.read(), response.headers

    async def error(self, method: str, path: str, **named: Any) -> tuple[int, str]:
        """(status, S3 error code)."""
        status, body, _ = await self.ask(method, path, **named)
        return status, ElementTree.fromstring(body).findtext("Code") or ""


@asynccontextmanager
async def running_http(settings: dict[str, Any] | None = None) -> AsyncIterator[Http]:
    async with running_daemon({"http.enabled": True, **(settings or {})}) as daemon, aiohttp.ClientSession() as session:
        yield Http(daemon, session)


def leased(http: Http) -> int:
    return http.daemon.store.status().tiers[0].leased_bytes


async def settled(http: Http) -> None:
    """All that HTTP leased was given back."""
    gc.collect()
    await until(lambda: leased(http) == 0)


async def test_what_was_put_is_got_by_everyone_who_asks() -> None:
    async with running_http() as http:
        assert (await http.ask("PUT", "/photos"))[0] == 200
        body = payload(1, 100_000)
        status, _, headers = await http.ask("PUT", "/photos/a/b.bin", data=body)
        assert status == 200 and headers["ETag"] == f'"{xxh3_128_hexdigest(body)}"'
        status, got, headers = await http.ask("GET", "/photos/a/b.bin")
        assert (status, got) == (200, body)
        assert headers["ETag"] == f'"{xxh3_128_hexdigest(body)}"' and headers["Server"] == "mooncask"
        status, got, headers = await http.ask("HEAD", "/photos/a/b.bin")
        assert (status, got, headers["Content-Length"]) == (200, b"", "100000")
        await settled(http)


async def test_an_object_is_replaced_as_a_whole() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        for number, size in ((1, 5000), (2, 9000), (3, 100)):
            await http.ask("PUT", "/photos/k", data=payload(number, size))
            assert (await http.ask("GET", "/photos/k"))[1] == payload(number, size)


async def test_empty_objects_are_objects() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        assert (await http.ask("PUT", "/photos/empty", data=b""))[0] == 200
        status, body, headers = await http.ask("GET", "/photos/empty")
        assert (status, body, headers["Content-Length"]) == (200, b"", "0")
        await settled(http)


async def test_a_kv_block_is_read_and_written_by_the_hex_of_its_digest() -> None:
    async with running_http() as http:
        client = await http.daemon.client()
        namespace = await client.open("kv-test")
        await client.put(namespace, {key(0xAB): payload(1)})
        assert (await http.ask("GET", f"/kv-test/{key(0xAB).hex()}"))[1] == payload(1)
        assert (await http.ask("PUT", f"/kv-test/{key(2).hex()}", data=payload(2)))[0] == 200
        assert (await client.acquire(namespace, [key(2)])).payloads == {0: payload(2)}
        assert (await http.ask("PUT", f"/kv-test/{key(2).hex()}", data=payload(3)))[0] == 200, "have_it"
        assert (await http.ask("GET", f"/kv-test/{key(2).hex()}"))[1] == payload(2), "the first one stays"
        assert await http.error("PUT", f"/kv-test/{key(2).hex()}", data=b"short") == (409, "LengthMismatch")
        assert await http.error("PUT", "/kv-test/nothex", data=b"x") == (400, "InvalidRequest")
        assert await http.error("GET", "/kv-test/nothex") == (404, "NoSuchKey")
        assert await http.error("PUT", f"/kv-test/{key(4).hex()}", data=b"") == (400, "EntityTooSmall")
        await client.close()


async def test_keys_are_any_utf8_and_decoded_once() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        for path in ("a%20b", "%2Fslash", "a//b", "..", "100%25", "%E2%82%AC", "a+b", "a%3Fb%23c"):
            assert (await http.ask("PUT", f"/photos/{path}", data=path.encode()))[0] == 200, path
            assert (await http.ask("GET", f"/photos/{path}"))[1] == path.encode(), path
        namespace = http.daemon.store.namespace("photos")
        assert namespace is not None and "€".encode() in namespace.index and b"/slash" in namespace.index
        assert await http.error("PUT", "/photos/%FF", data=b"x") == (400, "InvalidRequest")
        assert await http.error("PUT", "/photos/" + "k" * 1025, data=b"x") == (400, "InvalidRequest")


# --- ranges and conditions ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=9990-", 9990, 10000),
        ("bytes=-10", 9990, 10000),
        ("bytes=0-99999", 0, 10000),
        ("bytes=-99999", 0, 10000),
    ],
)
async def test_one_range_is_answered_with_that_part(header: str, start: int, stop: int) -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        body = payload(77, 10_000)
        await http.ask("PUT", "/photos/k", data=body)
        status, got, headers = await http.ask("GET", "/photos/k", headers={"Range": header})
        assert (status, got) == (206, body[start:stop])
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/10000"
        await settled(http)


@pytest.mark.parametrize("header", ["bytes=10000-", "bytes=-0", "bytes=20000-20001"])
async def test_a_range_past_the_end_is_refused_with_the_size(header: str) -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=payload(1, 10_000))
        assert await http.error("GET", "/photos/k", headers={"Range": header}) == (416, "InvalidRange")
        _, _, headers = await http.ask("GET", "/photos/k", headers={"Range": header})
        assert headers["Content-Range"] == "bytes */10000"
        await settled(http)


@pytest.mark.parametrize("header", ["bytes=1-0", "bytes=a-b", "bytes=0-1,5-6", "lines=0-1", "bytes=-", ""])
async def test_what_is_no_single_range_is_answered_with_all_of_it(header: str) -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=payload(1, 10_000))
        status, got, _ = await http.ask("GET", "/photos/k", headers={"Range": header})
        assert (status, len(got)) == (200, 10_000)


async def test_conditions_on_the_etag() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        _, _, headers = await http.ask("PUT", "/photos/k", data=payload(1))
        tag = headers["ETag"]
        assert (await http.ask("GET", "/photos/k", headers={"If-None-Match": tag}))[0] == 304
        assert (await http.ask("GET", "/photos/k", headers={"If-None-Match": '"other"'}))[0] == 200
        assert (await http.ask("GET", "/photos/k", headers={"If-Match": '"other"'}))[0] == 412
        assert (await http.ask("GET", "/photos/k", headers={"If-Match": tag}))[0] == 200
        await settled(http)


# --- refusals ------------------------------------------------------------------------------------------------------------


async def test_refusals_have_s3s_codes() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        assert await http.error("GET", "/nothere/k") == (404, "NoSuchBucket")
        assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")
        assert await http.error("PUT", "/UPPER") == (400, "InvalidRequest")
        assert await http.error("GET", "/photos") == (501, "NotImplemented"), "version 1 of the listing"
        assert await http.error("GET", "/photos?acl") == (501, "NotImplemented")
        assert await http.error("PUT", "/photos/k?partNumber=1&uploadId=x", data=b"x") == (501, "NotImplemented")
        assert await http.error("POST", "/photos/k", data=b"x") == (501, "NotImplemented")
        assert await http.error("PUT", "/photos/k", data=b"x", headers={"If-None-Match": "*"}) == (
            501,
            "NotImplemented",
        )
        for header in ("x-amz-copy-source", "x-amz-checksum-crc32c", "x-amz-trailer"):
            assert await http.error("PUT", "/photos/k", data=b"x", headers={header: "x"}) == (501, "NotImplemented")
        assert http.daemon.store.status().tiers[0].blocks == 0, "nothing of that was stored"


async def test_a_put_needs_its_length_and_a_length_that_fits() -> None:
    async with running_http({"limits.block_max": "1MiB"}) as http:
        await http.ask("PUT", "/photos")

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 100

        assert await http.error("PUT", "/photos/k", data=pieces()) == (411, "MissingContentLength")
        assert await http.error("PUT", "/photos/k", data=bytes((1 << 20) + 1)) == (413, "EntityTooLarge")
        assert (await http.ask("PUT", "/photos/k", data=bytes(1 << 20)))[0] == 200


@pytest.mark.parametrize(
    ("header", "right"),
    [
        ("Content-MD5", base64.b64encode(hashlib.md5(payload(1)).digest()).decode()),
        ("x-amz-checksum-sha256", base64.b64encode(hashlib.sha256(payload(1)).digest()).decode()),
        ("x-amz-checksum-sha1", base64.b64encode(hashlib.sha1(payload(1)).digest()).decode()),
        ("x-amz-checksum-crc32", base64.b64encode(zlib.crc32(payload(1)).to_bytes(4, "big")).decode()),
        ("x-mooncask-xxh3-128", xxh3_128_hexdigest(payload(1))),
    ],
)
async def test_a_checksum_that_came_along_is_checked(header: str, right: str) -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        assert await http.error("PUT", "/photos/k", data=payload(2), headers={header: right}) == (400, "BadDigest")
        assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")
        assert (await http.ask("PUT", "/photos/k", data=payload(1), headers={header: right}))[0] == 200
        assert await http.error("PUT", "/photos/k", data=b"x", headers={header: "%%%"}) == (400, "InvalidRequest")
        assert http.daemon.store.status().tiers[0].reserved_bytes == 0


async def test_a_body_that_ends_early_leaves_nothing() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        host, port = http.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /photos/k HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n" + bytes(5000))
        await writer.drain()
        await until(lambda: http.daemon.store.status().tiers[0].reserved_bytes > 0)
        writer.close()
        await writer.wait_closed()
        await until(lambda: http.daemon.store.status().tiers[0].reserved_bytes == 0)
        assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")


async def test_a_body_that_trickles_is_cut_off() -> None:
    async with running_http({"http.grace": "100ms", "http.rate_min": "1GiB"}) as http:
        await http.ask("PUT", "/photos")

        async def trickle() -> AsyncIterator[bytes]:
            yield bytes(100)
            await asyncio.sleep(5)

        named = {"data": trickle(), "headers": {"Content-Length": "100000"}}
        assert await http.error("PUT", "/photos/k", **named) == (503, "RequestTimeout")
        assert http.daemon.store.status().tiers[0].reserved_bytes == 0


# --- leases ------------------------------------------------------------------------------------------------------------------


async def slow_reader(http: Http, path: str) -> socket.socket:
    """A connection that has asked for `path` and reads nothing."""
    host, port = http.address.split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    sock.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock


async def test_bytes_that_are_still_being_sent_are_not_reused() -> None:
    async with running_http({"dram.capacity": "64MiB"}) as http:
        await http.ask("PUT", "/photos")
        body = payload(5, 16 << 20)
        await http.ask("PUT", "/photos/big", data=body)
        sock = await slow_reader(http, "/photos/big")
        await until(lambda: leased(http) == 16 << 20)
        await http.ask("DELETE", "/photos/big")
        for number in range(4):
            await http.ask("PUT", f"/photos/other{number}", data=payload(100 + number, 8 << 20))
        loop, got = asyncio.get_running_loop(), bytearray()
        while len(got) < len(body):
            got += await loop.sock_recv(sock, 1 << 20)
            got = got[got.index(b"\r\n\r\n") + 4 :] if got.startswith(b"HTTP/") and b"\r\n\r\n" in got else got
        assert bytes(got) == body
        sock.close()
        await settled(http)


async def test_a_reader_that_goes_away_gives_the_block_back() -> None:
    async with running_http({"dram.capacity": "64MiB"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/big", data=payload(5, 16 << 20))
        sock = await slow_reader(http, "/photos/big")
        await until(lambda: leased(http) > 0)
        sock.close()
        await settled(http)


async def test_a_reader_slower_than_the_minimum_is_cut_off() -> None:
    async with running_http({"dram.capacity": "64MiB", "http.grace": "100ms", "http.rate_min": "1GiB"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/big", data=payload(5, 16 << 20))
        sock = await slow_reader(http, "/photos/big")
        await until(lambda: leased(http) > 0)
        await settled(http)
        sock.close()


async def test_a_body_that_was_read_in_time_leaves_its_connection_alone() -> None:
    async with running_http({"http.grace": "50ms", "http.rate_min": "1GiB"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=payload(1))
        sock = await slow_reader(http, "/photos/k")
        loop = asyncio.get_running_loop()
        for _ in range(2):
            got = b""
            while not got.endswith(payload(1)[-100:]):
                got += await loop.sock_recv(sock, 1 << 16)
            # Three times as long as its reader had: if the limit still ran, the connection would be gone by now.
            await asyncio.sleep(0.15)
            await loop.sock_sendall(sock, b"GET /photos/k HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await loop.sock_recv(sock, 1 << 16)).startswith(b"HTTP/1.1 200")
        sock.close()
        await settled(http)


# --- buckets -----------------------------------------------------------------------------------------------------------------


async def test_buckets_are_made_listed_and_removed_when_empty() -> None:
    async with running_http() as http:
        assert (await http.ask("HEAD", "/photos"))[0] == 404
        for name in ("photos", "videos"):
            assert (await http.ask("PUT", f"/{name}"))[0] == 200
        assert (await http.ask("PUT", "/photos"))[0] == 200, "making it again is no error"
        assert (await http.ask("HEAD", "/photos"))[0] == 200
        _, body, _ = await http.ask("GET", "/")
        assert [name.text for name in ElementTree.fromstring(body).iter(f"{S3}Name")] == ["photos", "videos"]
        await http.ask("PUT", "/photos/k", data=b"x")
        assert await http.error("DELETE", "/photos") == (409, "BucketNotEmpty")
        assert (await http.ask("DELETE", "/photos/k"))[0] == 204
        assert (await http.ask("DELETE", "/photos/k"))[0] == 204, "deleting what is not there is no error"
        assert (await http.ask("DELETE", "/photos"))[0] == 204
        assert await http.error("GET", "/photos?list-type=2") == (404, "NoSuchBucket")


async def listed(http: Http, query: str) -> tuple[list[str], list[str], str]:
    """(keys, common prefixes, continuation token)."""
    status, body, _ = await http.ask("GET", f"/photos?list-type=2{query}")
    assert status == 200, body
    root = ElementTree.fromstring(body)
    keys = [node.findtext(f"{S3}Key") or "" for node in root.iter(f"{S3}Contents")]
    prefixes = [node.findtext(f"{S3}Prefix") or "" for node in root.iter(f"{S3}CommonPrefixes")]
    assert int(root.findtext(f"{S3}KeyCount") or -1) == len(keys) + len(prefixes)
    return keys, prefixes, root.findtext(f"{S3}NextContinuationToken") or ""


async def test_listing_by_prefix_delimiter_and_page() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        names = ["a", "b/1", "b/2", "b/c/3", "d/4", "e", "é"]
        for name in names:
            await http.ask("PUT", URL(f"/photos/{name}").raw_path, data=b"x")
        assert await listed(http, "") == (names, [], "")
        assert await listed(http, "&prefix=b/") == (["b/1", "b/2", "b/c/3"], [], "")
        assert await listed(http, "&delimiter=/") == (["a", "e", "é"], ["b/", "d/"], "")
        assert await listed(http, "&prefix=b/&delimiter=/") == (["b/1", "b/2"], ["b/c/"], "")
        assert await listed(http, "&start-after=b/2") == (["b/c/3", "d/4", "e", "é"], [], "")
        assert (await listed(http, "&encoding-type=url"))[0][-1] == "%C3%A9"
        assert await listed(http, "&max-keys=0") == ([], [], "")
        for options in ("", "&delimiter=/"):
            keys, prefixes, token = list[str](), list[str](), "start"
            while token:
                more = "" if token == "start" else f"&continuation-token={token}"
                page = await listed(http, f"&max-keys=2{options}{more}")
                assert len(page[0]) + len(page[1]) <= 2
                keys, prefixes, token = keys + page[0], prefixes + page[1], page[2]
            assert (keys, prefixes) == (await listed(http, options))[:2]
        assert await http.error("GET", "/photos?list-type=2&max-keys=x") == (400, "InvalidRequest")
        assert await http.error("GET", "/photos?list-type=2&continuation-token=!") == (400, "InvalidRequest")


async def test_more_keys_than_a_page_of_the_store_are_all_listed() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        client = await http.daemon.client()
        namespace = await client.open("photos", kind=wire.NamespaceKind.OBJECT, family={})
        await client.put(namespace, {f"x/{i:05}".encode(): b"x" for i in range(1500)})
        await client.put(namespace, {b"y": b"x"})
        keys, _, token = await listed(http, "")
        assert len(keys) == 1000 and token
        assert len((await listed(http, f"&continuation-token={token}"))[0]) == 501
        assert await listed(http, "&delimiter=/") == (["y"], ["x/"], "")
        await client.close()


# --- durability ----------------------------------------------------------------------------------------------------------------


async def test_a_put_into_write_through_answers_when_it_is_durable(tmp_path: Path) -> None:
    async with running_http({"nvme.path": str(tmp_path / "n")}) as http:
        await http.ask("PUT", "/photos")
        assert (await http.ask("PUT", "/photos/k", data=payload(1)))[0] == 200
        namespace = http.daemon.store.namespace("photos")
        assert namespace is not None
        info = http.daemon.store.info(namespace, b"k")
        assert info is not None and info.durable


# --- /-/ -----------------------------------------------------------------------------------------------------------------------


async def test_health_readiness_status_and_metrics() -> None:
    async with running_http({"tenants.default.quota": "1MiB"}) as http:
        client = await http.daemon.client()
        namespace = await client.open("kv-test")
        await client.put(namespace, {key(1): payload(1)})
        await client.ask(wire.Matched, wire.Match, namespace, [key(1), key(2)])
        assert (await http.ask("GET", "/-/healthz"))[:2] == (200, b"ok\n")
        assert (await http.ask("GET", "/-/readyz"))[0] == 200
        status = status_json((await http.ask("GET", "/-/v1/status"))[1])
        assert status["tiers"][0]["tier"] == "dram" and status["namespaces"][0]["name"] == "kv-test"
        text = (await http.ask("GET", "/-/metrics"))[1].decode()
        for line in (
            'mooncask_tier_used_bytes{tier="dram"} 8192.0',
            'mooncask_namespace_blocks{kind="kv",mode="memory",namespace="kv-test",tenant="default"} 1.0',
            'mooncask_prefix_requested_tokens_total{namespace="kv-test"} 32.0',
            'mooncask_prefix_hit_tokens_total{namespace="kv-test"} 16.0',
            'mooncask_tenant_quota_bytes{tenant="default"} 1.048576e+06',
            "mooncask_published_total 1.0",
            "mooncask_ready 1.0",
            "mooncask_local_connections 1.0",
        ):
            assert line in text.splitlines(), f"{line} is not in\n{text}"
        http.daemon.service.ready = False
        assert (await http.ask("GET", "/-/readyz"))[0] == 503
        await client.close()


async def test_requests_above_the_limit_are_told_to_come_again() -> None:
    async with running_http({"http.requests_max": 1}) as http:
        await http.ask("PUT", "/photos")
        host, port = http.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /photos/k HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nx")
        await until(lambda: http.daemon.store.status().tiers[0].reserved_bytes > 0)
        status, _, headers = await http.ask("GET", "/photos/other")
        assert status == 503 and headers["Retry-After"] == "1"
        writer.close()
        await writer.wait_closed()


async def test_a_quota_is_refused_at_once_and_counted() -> None:
    async with running_http({"tenants.default.quota": "100KiB"}) as http:
        await http.ask("PUT", "/photos")
        assert (await http.ask("PUT", "/photos/a", data=bytes(60_000)))[0] == 200
        assert await http.error("PUT", "/photos/b", data=bytes(60_000)) == (507, "QuotaExceeded")
        assert http.daemon.service.quota_refusals["default"] == 1
        await http.ask("DELETE", "/photos/a")
        assert (await http.ask("PUT", "/photos/b", data=bytes(60_000)))[0] == 200
        assert http.daemon.service.reserved_bytes("default") == 0


# --- errors ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", error_classes().values(), ids=lambda cls: cls.__name__)
async def test_every_error_of_the_tree_is_translated(cls: type[MooncaskError], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is raised below the HTTP layer and must arrive with its own code and status."""
    assert cls.code and 400 <= cls.http_status < 600 and cls.errno > 0 and 0 < cls.exit_code < 128
    async with running_http() as http:
        error = cls.__new__(cls)
        error.args = ("what, which, what next",)
        if isinstance(error, OutOfBounds):
            error.size_bytes = 5

        def refuse(*_: object) -> None:
            raise error

        monkeypatch.setattr(http.daemon.service.door, "find", refuse)
        status, body, headers = await http.ask("GET", "/photos/k")
        assert status == cls.http_status and headers["Content-Type"] == "application/xml"
        found = ElementTree.fromstring(body)
        assert found.findtext("Code") == cls.code and found.findtext("Message") == "what, which, what next"
        assert (await http.ask("HEAD", "/photos/k"))[:2] == (cls.http_status, b"")


async def test_a_fault_of_the_daemon_says_nothing_of_its_inside(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_http() as http:

        def fail(*_: object) -> None:
            raise RuntimeError("secret detail")

        monkeypatch.setattr(http.daemon.service.door, "find", fail)
        status, body, _ = await http.ask("GET", "/photos/k")
        assert status == 500 and b"secret" not in body and b"InternalError" in body
        assert "secret detail" in caplog.text, "the log has it"
        caplog.clear()
