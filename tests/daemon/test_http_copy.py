"""CopyObject over HTTP, with objects of one block and of many: what the copy is, what it says, and when it is refused."""

import asyncio
import hashlib
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from child_processes import until
from http_door import S3, Http, leased, running_http, settled
from raw_client import payload

from mooncask.daemon.http.s3.copy_source import copied_span, parse_copy_source
from mooncask.errors import BadParameter

LONG = 20 << 20
"""Longer than any one block of these daemons."""


async def copy(http: Http, source: str, target: str, **headers: str) -> tuple[int, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    status, body, _ = await http.ask("PUT", target, headers={"x-amz-copy-source": source, **named})
    return status, body


async def refusal(http: Http, source: str, target: str, **headers: str) -> tuple[int, str]:
    status, body = await copy(http, source, target, **headers)
    return status, ElementTree.fromstring(body).findtext("Code") or ""


async def head(http: Http, path: str) -> Any:
    status, _, headers = await http.ask("HEAD", path)
    assert status == 200
    return headers


# --- what is copied ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 100_000, LONG])
async def test_a_copy_has_the_bytes_and_what_was_said_of_them(size: int) -> None:
    async with running_http({"dram.capacity": "96MiB"}) as http:
        for bucket in ("photos", "videos"):
            await http.ask("PUT", f"/{bucket}")
        body = payload(7, size)
        said = {"Content-Type": "text/plain", "x-amz-meta-colour": "blue", "Cache-Control": "no-store"}
        assert (await http.ask("PUT", "/photos/k", data=body, headers=said))[0] == 200
        status, document = await copy(http, "/photos/k", "/videos/copy")
        root = ElementTree.fromstring(document)
        assert status == 200 and root.tag == f"{S3}CopyObjectResult" and root.findtext(f"{S3}LastModified")
        assert root.findtext(f"{S3}ETag") == f'"{hashlib.md5(body).hexdigest()}"'
        assert (await http.ask("GET", "/videos/copy"))[1] == body
        headers = await head(http, "/videos/copy")
        assert headers["Content-Type"] == "text/plain" and headers["x-amz-meta-colour"] == "blue"
        assert headers["Cache-Control"] == "no-store" and headers["ETag"] == root.findtext(f"{S3}ETag")
        await http.ask("DELETE", "/photos/k")
        assert (await http.ask("GET", "/videos/copy"))[1] == body, "the copy has bytes of its own"
        await settled(http)


@pytest.mark.parametrize("key", ["a b+c", "ü/€", "/lead", "x//y", "100%", "q?versionId=null", "line\nfeed"])
async def test_a_source_is_named_percent_encoded(key: str) -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", f"/photos/{quote(key, safe='')}", data=key.encode())
        for source in (f"/photos/{quote(key, safe='/')}", f"photos%2F{quote(key, safe='')}"):
            assert (await copy(http, source, "/photos/copy"))[0] == 200
            assert (await http.ask("GET", "/photos/copy"))[1] == key.encode()


async def test_metadata_is_replaced_where_it_is_asked_for() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=b"hello", headers={"x-amz-meta-old": "1", "Content-Type": "text/plain"})
        replaced = {"x_amz_metadata_directive": "REPLACE", "x_amz_meta_new": "2", "Content_Type": "text/html"}
        for target in ("/photos/copy", "/photos/k"):
            assert (await copy(http, "/photos/k", target, **replaced))[0] == 200
            headers = await head(http, target)
            assert headers["x-amz-meta-new"] == "2" and "x-amz-meta-old" not in headers
            assert headers["Content-Type"] == "text/html"
            assert (await http.ask("GET", target))[1] == b"hello"
        assert await refusal(http, "/photos/k", "/photos/c", x_amz_metadata_directive="MOVE") == (
            400,
            "InvalidArgument",
        )


async def test_an_object_is_copied_onto_itself_only_to_change_it() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=b"hello")
        assert await refusal(http, "/photos/k", "/photos/k") == (400, "InvalidRequest")


async def test_a_checksum_can_be_asked_for_anew() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=b"hello")
        assert (await copy(http, "/photos/k", "/photos/c", x_amz_checksum_algorithm="SHA256"))[0] == 200
        _, _, headers = await http.ask("HEAD", "/photos/c", headers={"x-amz-checksum-mode": "ENABLED"})
        assert headers["x-amz-checksum-sha256"] == "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ="
        assert await refusal(http, "/photos/k", "/photos/c", x_amz_checksum_algorithm="MD4") == (400, "InvalidArgument")
        _, body, _ = await http.ask(
            "GET", "/photos/c?attributes", headers={"x-amz-object-attributes": "ETag,Checksum,ObjectSize"}
        )
        root = ElementTree.fromstring(body)
        assert (
            root.findtext(f"{S3}ETag") == hashlib.md5(b"hello").hexdigest() and root.findtext(f"{S3}ObjectSize") == "5"
        )
        assert root.findtext(f"{S3}Checksum/{S3}ChecksumSHA256") and root.find(f"{S3}StorageClass") is None
        assert (await http.error("GET", "/photos/c?attributes", headers={"x-amz-object-attributes": "Colour"}))[
            0
        ] == 400


# --- when --------------------------------------------------------------------------------------------------------------------


async def test_a_copy_has_conditions_on_its_source_and_on_its_target() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        _, _, put = await http.ask("PUT", "/photos/k", data=b"hello")
        tag, past, future = put["ETag"], "Mon, 01 Jan 2001 00:00:00 GMT", "Fri, 01 Jan 2100 00:00:00 GMT"
        for wrong in (
            {"x_amz_copy_source_if_match": '"other"'},
            {"x_amz_copy_source_if_none_match": tag},
            {"x_amz_copy_source_if_unmodified_since": past},
            {"x_amz_copy_source_if_modified_since": future},
            {"x_amz_copy_source_if_match": '"other"', "x_amz_copy_source_if_unmodified_since": future},
            {"x_amz_copy_source_if_none_match": tag, "x_amz_copy_source_if_modified_since": past},
        ):
            assert await refusal(http, "/photos/k", "/photos/c", **wrong) == (412, "PreconditionFailed"), wrong
        assert (await http.ask("HEAD", "/photos/c"))[0] == 404
        for right in (
            {"x_amz_copy_source_if_match": tag, "x_amz_copy_source_if_unmodified_since": past},
            {"x_amz_copy_source_if_none_match": '"other"', "x_amz_copy_source_if_modified_since": future},
            {"x_amz_copy_source_if_modified_since": "no date"},
        ):
            assert (await copy(http, "/photos/k", "/photos/c", **right))[0] == 200, right
        assert await refusal(http, "/photos/k", "/photos/c", If_None_Match="*") == (412, "PreconditionFailed")
        await settled(http)


async def test_what_is_no_source_is_refused() -> None:
    async with running_http() as http:
        await http.ask("PUT", "/photos")
        assert await refusal(http, "/photos/nothere", "/photos/c") == (404, "NoSuchKey")
        assert await refusal(http, "/nothere/k", "/photos/c") == (404, "NoSuchBucket")
        for source in ("photos", "/photos/", "", "/photos/k?versionId=7"):
            assert await refusal(http, source, "/photos/c") == (400, "InvalidArgument"), source


async def test_a_copy_whose_client_went_away_holds_nothing() -> None:
    async with running_http({"dram.capacity": "96MiB"}) as http:
        await http.ask("PUT", "/photos")
        await http.ask("PUT", "/photos/k", data=payload(7, LONG))
        host, port = http.address.split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"PUT /photos/c HTTP/1.1\r\nHost: x\r\nx-amz-copy-source: /photos/k\r\nContent-Length: 0\r\n\r\n")
        await until(lambda: leased(http) > 0)
        writer.close()
        await writer.wait_closed()
        await settled(http)
        await until(lambda: http.daemon.store.status().tiers[0].reserved_bytes == 0)


# --- pure ----------------------------------------------------------------------------------------------------------------------


def test_the_range_of_a_copied_part_lies_within_its_source() -> None:
    assert copied_span(None, 100) == (0, 100)
    assert copied_span("bytes=10-99", 100) == (10, 100)
    for header in ("bytes=10-100", "bytes=10-", "bytes=-5", "bytes=5-4", "10-20", "bytes=a-b"):
        with pytest.raises(BadParameter):
            copied_span(header, 100)


def test_a_source_is_a_bucket_and_a_key() -> None:
    assert parse_copy_source("/b/k%2Fx").key == b"k/x" and parse_copy_source("b/k").bucket == "b"
    assert parse_copy_source("b//k").key == b"/k"
