"""What the HTTP API does around single blocks: leases of what is being sent, buckets, limits, and the pages under /-/."""

import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest
from child_processes import until
from http_door import S3, Http, leased, running_http, settled, slow_reader
from object_driver import make_bucket, put_object
from raw_client import key, payload, status_json
from yarl import URL

from mooncask.client import wire
from mooncask.errors import MooncaskError, OutOfBounds, error_classes

# --- leases ------------------------------------------------------------------------------------------------------------------


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


async def put_at_leisure(http: Http, key: bytes, data: bytes) -> None:
    """Not over HTTP, whose limits a busy machine may miss."""
    await put_object(http.daemon, await make_bucket(http.daemon), key, data)


async def test_a_reader_slower_than_the_minimum_is_cut_off() -> None:
    async with running_http({"dram.capacity": "64MiB", "http.grace": "100ms", "http.rate_min": "1GiB"}) as http:
        await put_at_leisure(http, b"big", payload(5, 16 << 20))
        sock = await slow_reader(http, "/photos/big")
        await until(lambda: leased(http) > 0)
        await settled(http)
        sock.close()


async def test_a_body_that_was_read_in_time_leaves_its_connection_alone() -> None:
    async with running_http({"http.grace": "50ms", "http.rate_min": "1GiB"}) as http:
        await put_at_leisure(http, b"k", payload(1))
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
        assert await http.error("GET", "/photos?list-type=2&max-keys=x") == (400, "InvalidArgument")
        assert await http.error("GET", "/photos?list-type=2&continuation-token=!") == (400, "InvalidArgument")


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


async def test_the_short_names_of_the_dashboard_lead_to_it() -> None:
    async with running_http() as http:
        for path in ("/-/", "/-/ui", "/%2D/ui"):
            status, _, headers = await http.ask("GET", path, allow_redirects=False)
            assert (status, headers["Location"]) == (302, "/-/ui/")


async def test_a_small_object_is_answered_as_the_client_keeps_its_connection() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/kept")
        await http.ask("PUT", "/kept/k", data=b"small")
        host, port = http.address.split(":")
        for version, asked, answered in (
            ("1.0", "keep-alive", "keep-alive"),
            ("1.0", "close", ""),
            ("1.1", "close", "close"),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET /kept/k HTTP/{version}\r\nHost: x\r\nConnection: {asked}\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert await reader.readexactly(5) == b"small"
            assert ("connection: " + answered in head) if answered else "connection:" not in head
            if answered != "keep-alive":
                assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
