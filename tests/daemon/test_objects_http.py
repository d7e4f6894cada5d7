"""Objects over HTTP: what S3 keeps beside the bytes comes back, conditions are kept, ranges of long objects are right."""

import asyncio
import base64
import hashlib
import zlib
from email.utils import formatdate

import pytest
from child_processes import until
from http_door import Http, leased, running_http, settled, slow_reader
from object_driver import CHUNK, SETTINGS, body, make_bucket, part_keys, put_object

from mooncask.client.wire import NamespaceKind

LONG = 3 * CHUNK + 17
DAY = 86_400


def _parts(http: Http) -> int:
    bucket = http.daemon.store.namespace("photos")
    return 0 if bucket is None else len(part_keys(http.daemon, bucket))


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1, LONG])
async def test_an_object_of_any_length_comes_back_with_its_md5_as_etag(size: int) -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        data = body(size)
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        status, _, headers = await http.ask("PUT", "/photos/k", data=data)
        assert (status, headers["ETag"]) == (200, tag)
        status, got, headers = await http.ask("GET", "/photos/k")
        assert status == 200 and got == data
        assert (headers["ETag"], headers["Content-Length"]) == (tag, str(size))
        assert (await http.ask("HEAD", "/photos/k"))[2]["Content-Length"] == str(size)
        await settled(http)


async def test_headers_metadata_and_checksums_are_kept() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        for key, data in (("short", body(100)), ("long", body(LONG))):
            crc = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
            sent = {
                "Content-Type": "image/png",
                "Cache-Control": "no-cache",
                "Content-Disposition": "attachment",
                "Content-Encoding": "gzip",
                "Content-Language": "de",
                "Expires": "Thu, 01 Jan 2032 00:00:00 GMT",
                "x-amz-meta-colour": "blau, grün",
            }
            _, _, answer = await http.ask(
                "PUT", f"/photos/{key}", data=data, headers={**sent, "x-amz-checksum-crc32": crc}
            )
            assert answer["x-amz-checksum-crc32"] == crc
            for method in ("GET", "HEAD"):
                # Accept-Encoding: what aiohttp unpacks by itself would be no test of what was sent.
                asked = {"x-amz-checksum-mode": "ENABLED", "Accept-Encoding": "identity"}
                status, headers = await _head_of(http, method, f"/photos/{key}", asked)
                assert status == 200
                assert {name: headers[name] for name in sent} == sent
                assert (headers["x-amz-checksum-crc32"], headers["x-amz-checksum-type"]) == (crc, "FULL_OBJECT")
                _, headers = await _head_of(http, method, f"/photos/{key}", {"Accept-Encoding": "identity"})
                assert "x-amz-checksum-crc32" not in headers
        await settled(http)


async def _head_of(http: Http, method: str, path: str, headers: dict[str, str]) -> tuple[int, dict[str, str]]:
    """Status and headers, the body unread: aiohttp would unpack what Content-Encoding says is packed."""
    async with http.session.request(method, f"http://{http.address}{path}", headers=headers) as response:
        found = response.status, dict(response.headers)
        response.close()
        return found


async def test_a_reader_may_say_which_headers_it_wants_to_see() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=b"x", headers={"Content-Type": "image/png"})
        query = "response-content-type=text/plain&response-cache-control=private&response-content-disposition=inline"
        for method in ("GET", "HEAD"):
            _, _, headers = await http.ask(method, f"/photos/k?{query}")
            assert headers["Content-Type"] == "text/plain"
            assert (headers["Cache-Control"], headers["Content-Disposition"]) == ("private", "inline")
        assert (await http.error("GET", "/photos/k?response-expires=a%0d%0ab"))[0] == 400


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        (f"bytes={CHUNK - 1}-{CHUNK}", CHUNK - 1, CHUNK + 1),
        (f"bytes={CHUNK}-", CHUNK, LONG),
        ("bytes=-18", LONG - 18, LONG),
        (f"bytes=5-{LONG + 5}", 5, LONG),
    ],
)
async def test_a_range_of_a_long_object_is_that_part(header: str, start: int, stop: int) -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        data = body(LONG)
        await http.ask("PUT", "/photos/k", data=data)
        status, got, headers = await http.ask("GET", "/photos/k", headers={"Range": header})
        assert status == 206 and got == data[start:stop]
        assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{LONG}"
        await settled(http)


async def test_conditions_are_looked_at_in_the_order_of_the_rfc() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        _, _, headers = await http.ask("PUT", "/photos/k", data=b"x")
        tag = headers["ETag"]
        _, _, headers = await http.ask("HEAD", "/photos/k")
        modified = headers["Last-Modified"]
        now = http.daemon.service.objects.info(http.daemon.service.door.find("default", "photos"), b"k")
        assert now is not None
        before, after = (formatdate(now.modified_seconds + days * DAY, usegmt=True) for days in (-1, 1))
        for conditions, status in (
            ({"If-Match": '"no"'}, 412),
            ({"If-Match": tag, "If-Unmodified-Since": before}, 200),
            ({"If-Unmodified-Since": before}, 412),
            ({"If-Unmodified-Since": modified}, 200),
            ({"If-None-Match": tag}, 304),
            ({"If-None-Match": f'W/"no", {tag}'}, 304),
            ({"If-None-Match": '"no"', "If-Modified-Since": after}, 200),
            ({"If-Modified-Since": modified}, 304),
            ({"If-Modified-Since": before}, 200),
            ({"If-Modified-Since": "no date"}, 200),
            ({"If-Match": '"no"', "If-None-Match": tag}, 412),
            ({"Range": "bytes=0-0", "If-Range": tag}, 206),
            ({"Range": "bytes=0-0", "If-Range": '"no"'}, 200),
            ({"Range": "bytes=0-0", "If-Range": modified}, 206),
            ({"Range": "bytes=0-0", "If-Range": before}, 200),
        ):
            for method in ("GET", "HEAD"):
                assert (await http.ask(method, "/photos/k", headers=conditions))[0] == status, conditions
        assert await http.error("GET", "/photos/k", headers={"If-Match": '"no"'}) == (412, "PreconditionFailed")
        await settled(http)


async def test_a_put_may_depend_on_what_is_there() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        absent = {"If-None-Match": "*"}
        answers = await asyncio.gather(
            *(http.ask("PUT", "/photos/k", data=body(size, size), headers=absent) for size in (10, CHUNK + 1, 20, LONG))
        )
        assert sorted(status for status, _, _ in answers) == [200, 412, 412, 412]
        assert await http.error("PUT", "/photos/k", data=b"x", headers=absent) == (412, "PreconditionFailed")
        assert await http.error("PUT", "/photos/k", data=b"x", headers={"If-Match": '"no"'}) == (
            412,
            "PreconditionFailed",
        )
        tag = (await http.ask("HEAD", "/photos/k"))[2]["ETag"]
        assert (await http.ask("PUT", "/photos/k", data=b"new", headers={"If-Match": tag}))[0] == 200
        assert (await http.ask("GET", "/photos/k"))[1] == b"new"
        await until(lambda: _parts(http) == 0)


async def test_xxh3_etags_look_like_no_md5() -> None:
    async with running_http({**SETTINGS, "s3.etag": "xxh3"}) as http:
        await http.ask("PUT", "/photos")
        for size in (10, LONG):
            _, _, headers = await http.ask("PUT", "/photos/k", data=body(size))
            assert "-" in headers["ETag"]
            assert (await http.ask("HEAD", "/photos/k"))[2]["ETag"] == headers["ETag"]


async def test_a_long_body_that_breaks_off_leaves_nothing() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        host, port = http.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"PUT /photos/k HTTP/1.1\r\nHost: x\r\nContent-Length: {LONG}\r\n\r\n".encode())
        writer.write(body(2 * CHUNK + 5))
        await writer.drain()
        await until(lambda: _parts(http) == 2)
        writer.close()
        await writer.wait_closed()
        await until(lambda: _parts(http) == 0)
        assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")
        await settled(http)


async def test_a_body_with_a_wrong_digest_leaves_nothing() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()
        for data in (body(10), body(LONG)):
            answer = await http.error("PUT", "/photos/k", data=data, headers={"Content-MD5": wrong})
            assert answer == (400, "BadDigest")
            assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")
        await until(lambda: _parts(http) == 0)
        await settled(http)


async def test_a_slow_reader_holds_a_few_chunks_and_gets_the_bytes_it_began_with() -> None:
    async with running_http({**SETTINGS, "dram.capacity": "16MiB"}) as http:
        await http.ask("PUT", "/photos")
        old = body(9 * CHUNK)
        await http.ask("PUT", "/photos/k", data=old)
        sock = await slow_reader(http, "/photos/k")
        await until(lambda: leased(http) >= CHUNK)
        await http.ask("PUT", "/photos/k", data=b"new")
        await asyncio.sleep(0)
        assert leased(http) <= 4 * (CHUNK + 4096)
        loop, got = asyncio.get_running_loop(), bytearray()
        while len(got) < len(old):
            got += await loop.sock_recv(sock, 1 << 20)
            got = got[got.index(b"\r\n\r\n") + 4 :] if got.startswith(b"HTTP/") and b"\r\n\r\n" in got else got
        assert bytes(got) == old
        sock.close()
        await settled(http)
        await until(lambda: _parts(http) == 0)


async def test_a_reader_of_a_long_object_that_is_too_slow_is_cut_off() -> None:
    async with running_http({**SETTINGS, "http.grace": "100ms", "http.rate_min": "1GiB"}) as http:
        await put_object(http.daemon, await make_bucket(http.daemon), b"k", body(9 * CHUNK))
        sock = await slow_reader(http, "/photos/k")
        await until(lambda: leased(http) > 0)
        await settled(http)
        sock.close()


async def test_metadata_that_is_too_large_is_refused_before_the_body_is_read() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        headers = {"x-amz-meta-a": "b" * 3000}
        assert await http.error("PUT", "/photos/k", data=b"x", headers=headers) == (400, "MetadataTooLarge")


async def test_a_long_object_is_never_handed_out_as_its_manifest() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/long", data=body(LONG))
        await http.ask("PUT", "/photos/short", data=body(10))
        client = await http.daemon.client()
        namespace = await client.open("photos", kind=NamespaceKind.OBJECT, family={})
        for keys in ([b"long"], [b"short", b"long"]):
            for extra in ({}, {"wait": True}, {"verify": True}):
                with pytest.raises(Exception, match="is stored in parts"):
                    await client.acquire(namespace, keys, **extra)
        assert (await client.acquire(namespace, [b"short"])).payloads == {0: body(10)}
        await client.close()


async def test_a_long_object_that_is_put_again_over_the_socket_loses_its_parts() -> None:
    async with running_http(SETTINGS) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=body(LONG))
        client = await http.daemon.client()
        namespace = await client.open("photos", kind=NamespaceKind.OBJECT, family={})
        await client.put(namespace, {b"k": b"short"})
        assert (await http.ask("GET", "/photos/k"))[1] == b"short"
        await until(lambda: _parts(http) == 0)
        await client.close()
