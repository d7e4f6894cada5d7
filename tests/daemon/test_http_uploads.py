"""Multipart uploads over HTTP as far as clients seldom show it: pages of uploads and parts, checksums, and what is refused."""

import base64
import hashlib
import zlib
from collections.abc import Iterator
from urllib.parse import quote
from xml.etree import ElementTree

import pytest
from http_door import S3, Http, running_http, settled
from object_driver import CHUNK, MIB, SETTINGS, body

from mooncask.daemon.http.s3.part_checksums import COMPOSITE, FULL_OBJECT, chosen_type, object_checksum
from mooncask.daemon.objects.manifest import PartRow
from mooncask.errors import BadParameter

ROOMY = {**SETTINGS, "dram.capacity": "64MiB"}


async def begun(http: Http, key: str, **headers: str) -> str:
    status, answer, _ = await http.ask("POST", f"/photos/{quote(key)}?uploads", headers=headers)
    assert status == 200, answer
    return ElementTree.fromstring(answer).findtext(f"{S3}UploadId") or ""


def completion(parts: dict[int, str]) -> bytes:
    rows = (f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>" for number, tag in parts.items())
    return f"<CompleteMultipartUpload>{''.join(rows)}</CompleteMultipartUpload>".encode()


def texts(document: bytes, name: str) -> list[str]:
    return [node.text or "" for node in ElementTree.fromstring(document).iter(f"{S3}{name}")]


async def test_uploads_are_listed_in_pages_by_prefix_and_delimiter() -> None:
    async with running_http(ROOMY) as http:
        await http.ask("PUT", "/photos")
        ids = {key: [await begun(http, key) for _ in range(2)] for key in ("a/1", "a/2", "b", "c/x", "c/y", "ä")}
        seen, query = [], ""
        for _ in range(20):
            _, answer, _ = await http.ask("GET", f"/photos?uploads&max-uploads=5{query}")
            root = ElementTree.fromstring(answer)
            seen += [
                (item.findtext(f"{S3}Key") or "", item.findtext(f"{S3}UploadId") or "")
                for item in root.iter(f"{S3}Upload")
            ]
            if root.findtext(f"{S3}IsTruncated") == "false":
                break
            marker, name = root.findtext(f"{S3}NextKeyMarker"), root.findtext(f"{S3}NextUploadIdMarker")
            query = f"&key-marker={marker}&upload-id-marker={name}"
        assert seen == [(key, name) for key in ids for name in _in_order(http, key)]
        assert {key: sorted(names) for key, names in ids.items()} == {
            key: sorted(name for have, name in seen if have == key) for key in ids
        }
        _, answer, _ = await http.ask("GET", "/photos?uploads&delimiter=/")
        assert texts(answer, "CommonPrefixes") and [*_prefixes(answer)] == ["a/", "c/"]
        assert texts(answer, "Key") == ["b", "b", "ä", "ä"]
        _, answer, _ = await http.ask("GET", "/photos?uploads&delimiter=/&key-marker=a/&prefix=")
        assert [*_prefixes(answer)] == ["c/"]
        _, answer, _ = await http.ask("GET", "/photos?uploads&prefix=c/&encoding-type=url")
        assert texts(answer, "Key") == ["c/x", "c/x", "c/y", "c/y"]
        assert await http.error("GET", "/photos?uploads&encoding-type=morse") == (400, "InvalidArgument")


def _in_order(http: Http, key: str) -> list[str]:
    bucket = http.daemon.service.door.find("default", "photos")
    uploads = http.daemon.service.objects.uploads.list_uploads(bucket)
    return [upload.name for upload in uploads if upload.record.key == key.encode()]


def _prefixes(document: bytes) -> Iterator[str]:
    for node in ElementTree.fromstring(document).iter(f"{S3}CommonPrefixes"):
        yield node.findtext(f"{S3}Prefix") or ""


async def test_parts_are_listed_in_pages() -> None:
    async with running_http(ROOMY) as http:
        await http.ask("PUT", "/photos")
        name = await begun(http, "k")
        for number in (7, 3, 9):
            await http.ask("PUT", f"/photos/k?partNumber={number}&uploadId={name}", data=body(number))
        _, answer, _ = await http.ask("GET", f"/photos/k?uploadId={name}&max-parts=2")
        assert (texts(answer, "PartNumber"), texts(answer, "Size")) == (["3", "7"], ["3", "7"])
        assert (texts(answer, "IsTruncated"), texts(answer, "NextPartNumberMarker")) == (["true"], ["7"])
        _, answer, _ = await http.ask("GET", f"/photos/k?uploadId={name}&part-number-marker=7")
        assert (texts(answer, "PartNumber"), texts(answer, "IsTruncated")) == (["9"], ["false"])
        await settled(http)


async def test_what_is_refused_changes_nothing() -> None:
    async with running_http(ROOMY) as http:
        await http.ask("PUT", "/photos")
        name = await begun(http, "k")
        path = f"/photos/k?uploadId={name}"
        _, _, headers = await http.ask("PUT", f"{path}&partNumber=1", data=body(CHUNK + 1))
        tag = headers["ETag"]
        assert tag == f'"{hashlib.md5(body(CHUNK + 1)).hexdigest()}"'
        await http.ask("PUT", f"{path}&partNumber=2", data=b"x")
        for document, code in (
            (b"", "MalformedXML"),
            (b"<CompleteMultipartUpload/>", "MalformedXML"),
            (completion({1: '"wrong"'}), "InvalidPart"),
            (completion({2: "x", 1: tag}), "InvalidPartOrder"),
            (completion({1: tag, 2: f'"{hashlib.md5(b"x").hexdigest()}"'}), "EntityTooSmall"),
            (completion({1: tag}) + b"<", "MalformedXML"),
        ):
            assert await http.error("POST", path, data=document) == (400, code), document
        wrong = {"x-amz-mp-object-size": "5"}
        assert await http.error("POST", path, data=completion({1: tag}), headers=wrong) == (400, "InvalidRequest")
        assert await http.error("PUT", f"{path}&partNumber=0", data=b"x") == (400, "InvalidPart")
        assert await http.error("PUT", f"{path}&partNumber=x", data=b"x") == (400, "InvalidArgument")
        assert await http.error("PUT", "/photos/other?uploadId=" + name + "&partNumber=1", data=b"x") == (
            404,
            "NoSuchUpload",
        )
        assert await http.error("GET", "/photos/k") == (404, "NoSuchKey")
        assert (await http.ask("POST", path, data=completion({1: tag})))[0] == 200
        assert (await http.ask("GET", "/photos/k"))[1] == body(CHUNK + 1)
        assert (await http.ask("POST", path, data=completion({1: tag})))[0] == 200, "asking again is answered again"
        client = await http.daemon.client()
        await client.open("kv-test")
        assert await http.error("POST", "/kv-test/00?uploads") == (400, "InvalidRequest")
        await client.close()
        await settled(http)


async def test_the_checksum_of_an_object_is_held_against_what_the_client_says() -> None:
    async with running_http(ROOMY) as http:
        await http.ask("PUT", "/photos")
        data = [body(5 * MIB, 1), body(100, 2)]
        headers = {"x-amz-checksum-algorithm": "CRC32", "x-amz-checksum-type": "FULL_OBJECT"}
        name = await begun(http, "k", **headers)
        tags = {}
        for number, part in enumerate(data, 1):
            _, _, answer = await http.ask("PUT", f"/photos/k?partNumber={number}&uploadId={name}", data=part)
            assert answer["x-amz-checksum-crc32"] == _crc32(part)
            tags[number] = answer["ETag"]
        path, document = f"/photos/k?uploadId={name}", completion(tags)
        bad = {"x-amz-checksum-crc32": _crc32(b"other")}
        assert await http.error("POST", path, data=document, headers=bad) == (400, "BadDigest")
        right = {"x-amz-checksum-crc32": _crc32(b"".join(data))}
        status, answer_document, _ = await http.ask("POST", path, data=document, headers=right)
        assert status == 200 and texts(answer_document, "ChecksumCRC32") == [_crc32(b"".join(data))]
        _, _, answer = await http.ask("HEAD", "/photos/k", headers={"x-amz-checksum-mode": "ENABLED"})
        assert answer["x-amz-checksum-crc32"] == _crc32(b"".join(data))


def _crc32(data: bytes) -> str:
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


def test_checksums_of_parts_are_put_together_by_their_type() -> None:
    parts = [b"one", b"two and more", b"3"]
    crcs = [PartRow(n, n, len(part), CHUNK, checksum=_crc32(part)) for n, part in enumerate(parts, 1)]
    assert object_checksum(crcs, "crc32", FULL_OBJECT) == _crc32(b"".join(parts))
    digests = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    assert object_checksum(crcs, "crc32", COMPOSITE) == f"{_crc32(digests)}-3"
    assert object_checksum([*crcs, PartRow(4, 4, 1, CHUNK)], "crc32", FULL_OBJECT) == ""
    assert chosen_type("crc64nvme", "") == FULL_OBJECT and chosen_type("sha256", "") == COMPOSITE
    with pytest.raises(BadParameter):
        chosen_type("sha256", FULL_OBJECT)
