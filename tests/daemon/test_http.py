"""The HTTP API with a real client against a real store: S3's operations on blocks."""

import asyncio
import base64
import hashlib
import zlib
from collections.abc import AsyncIterator

import pytest
from child_processes import until
from http_door import running_http, settled
from raw_client import key, payload
from xxhash import xxh3_128_hexdigest


async def test_what_was_put_is_got_by_everyone_who_asks() -> None:
    async with running_http() as http:
        assert (await http.ask("PUT", "/photos"))[0] == 200
        body = payload(1, 100_000)
        status, _, headers = await http.ask("PUT", "/photos/a/b.bin", data=body)
        tag = f'"{hashlib.md5(body).hexdigest()}"'
        assert status == 200 and headers["ETag"] == tag
        assert headers["x-mooncask-xxh3-128"] == xxh3_128_hexdigest(body)
        status, got, headers = await http.ask("GET", "/photos/a/b.bin")
        assert (status, got) == (200, body)
        assert headers["ETag"] == tag and headers["Server"] == "mooncask"
        status, got, headers = await http.ask("HEAD", "/photos/a/b.bin")
        assert (status, got, headers["Content-Length"]) == (200, b"", "100000")
        await settled(http)


async def test_a_page_that_somebody_stored_runs_nothing_in_a_browser_as_one_of_the_dashboard() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        for key, size in (("short", 100), ("long", 300_000)):
            await http.ask("PUT", f"/photos/{key}", data=bytes(size), headers={"Content-Type": "text/html"})
            for method, more in (("GET", {}), ("HEAD", {}), ("GET", {"Range": "bytes=0-9"})):
                status, _, headers = await http.ask(method, f"/photos/{key}", headers=more)
                assert status in (200, 206) and headers["Content-Type"] == "text/html"
                assert headers["Content-Security-Policy"] == "sandbox"
                assert headers["X-Content-Type-Options"] == "nosniff"


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
        assert await http.error("PUT", "/photos/" + "k" * 1025, data=b"x") == (400, "KeyTooLongError")


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
        assert await http.error("PUT", "/UPPER") == (400, "InvalidBucketName")
        assert await http.error("PUT", "//k", data=b"x") == (400, "InvalidBucketName")
        assert await http.error("GET", "/photos?policy") == (501, "NotImplemented")
        assert await http.error("PUT", "/photos/k?tagging", data=b"x") == (501, "NotImplemented")
        assert await http.error("POST", "/photos/k", data=b"x") == (501, "NotImplemented")
        assert await http.error("GET", "/photos/k?versionId=7") == (404, "NoSuchVersion")
        assert await http.error("GET", "/photos/k?versionId=null") == (404, "NoSuchKey")
        assert await http.error("GET", "/photos/k?Signature=x&AWSAccessKeyId=y") == (400, "InvalidRequest")
        owner = {"x-amz-expected-bucket-owner": "somebody"}
        assert await http.error("GET", "/photos/k", headers=owner) == (403, "AccessDenied")
        for name in ("x-amz-server-side-encryption", "x-amz-tagging", "x-amz-object-lock-mode", "x-amz-grant-read"):
            assert await http.error("PUT", "/photos/k", data=b"x", headers={name: "x"}) == (501, "NotImplemented"), name
        assert await http.error("PUT", "/photos/k", data=b"x", headers={"x-amz-acl": "public-read"}) == (
            501,
            "NotImplemented",
        )
        assert http.daemon.store.status().tiers[0].blocks == 0, "nothing of that was stored"


async def test_a_put_needs_its_length_and_a_block_a_length_that_fits() -> None:
    async with running_http({"limits.block_max": "1MiB"}) as http:
        await http.ask("PUT", "/photos")

        async def pieces() -> AsyncIterator[bytes]:
            yield b"x" * 100

        assert await http.error("PUT", "/photos/k", data=pieces()) == (411, "MissingContentLength")
        assert (await http.ask("PUT", "/photos/k", data=bytes(1 << 20)))[0] == 200
        client = await http.daemon.client()
        await client.open("kv-test")
        long_block = f"/kv-test/{key(1).hex()}"
        assert await http.error("PUT", long_block, data=bytes((1 << 20) + 1)) == (413, "EntityTooLarge")
        await client.close()


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
        assert await http.error("PUT", "/photos/k", data=b"x", headers={header: "%%%"}) in (
            (400, "InvalidDigest"),
            (400, "InvalidRequest"),
        )
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

        for method, path in (("PUT", "/photos/k"), ("PUT", "/others"), ("POST", "/photos?delete")):
            named = {"data": trickle(), "headers": {"Content-Length": "50000"}}
            assert await http.error(method, path, **named) == (503, "RequestTimeout"), path
        named = {"data": trickle(), "headers": {"Content-Length": "50000"}}
        assert (await http.ask("POST", "/-/v1/why", **named))[0] == 503
        assert http.daemon.store.status().tiers[0].reserved_bytes == 0
