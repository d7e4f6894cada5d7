"""Listings over HTTP in both versions, and DeleteObjects: what S3's clients page through and take away."""

import contextlib
import time
from typing import NamedTuple
from urllib.parse import quote, unquote
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from http_door import S3, Http, running_http

from mooncask.client import wire
from mooncask.daemon.http.s3.listing import behind
from mooncask.daemon.http.s3.multi_delete import parse_delete_request
from mooncask.daemon.http.s3.xml_request import parse_xml
from mooncask.errors import MalformedXml

STRANGE = [
    "a+b",
    "a b",
    "a%20b",
    "é/ü",
    "x//y",
    "/lead",
    "tab\there",
    "line\nfeed",
    "cr\rhere",
    "\x01\x1f",
    "<&>'\"",
    "𝄞",
]
"""Keys that some step between a client and the store could spoil; in no order."""


class Listed(NamedTuple):
    keys: list[str]
    prefixes: list[str]
    root: ElementTree.Element

    def text(self, name: str) -> str | None:
        return self.root.findtext(f"{S3}{name}")


async def listed(http: Http, query: str = "") -> Listed:
    status, body, headers = await http.ask("GET", f"/photos?{query}")
    assert status == 200 and headers["Content-Type"] == "application/xml", body
    root = ElementTree.fromstring(body)
    keys = [node.findtext(f"{S3}Key") or "" for node in root.iter(f"{S3}Contents")]
    return Listed(keys, [node.findtext(f"{S3}Prefix") or "" for node in root.iter(f"{S3}CommonPrefixes")], root)


async def put_all(http: Http, keys: list[str]) -> None:
    await http.ask("PUT", "/photos")
    for key in keys:
        status, body, _ = await http.ask("PUT", f"/photos/{quote(key, safe='')}", data=b"x")
        assert status == 200, body


def in_order(keys: list[str]) -> list[str]:
    return sorted(keys, key=str.encode)


# --- version 1 -----------------------------------------------------------------------------------------------------------


async def test_version_1_pages_by_marker_with_and_without_a_delimiter() -> None:
    names = ["a", "b/1", "b/2", "b/c/3", "d/4", "e", "é"]
    async with running_http() as http:
        await put_all(http, names)
        whole = await listed(http)
        assert whole.keys == names and whole.text("IsTruncated") == "false" and whole.text("Marker") == ""
        assert whole.root.findtext(f"{S3}Contents/{S3}Owner/{S3}ID") == "default"
        for options in ("", "&delimiter=/", "&prefix=b/&delimiter=/"):
            for size in (1, 2, 3):
                keys, prefixes, marker = list[str](), list[str](), ""
                for _ in range(20):
                    page = await listed(http, f"max-keys={size}{options}&marker={quote(marker)}")
                    keys, prefixes = keys + page.keys, prefixes + page.prefixes
                    marker = page.text("NextMarker") or ""
                    assert page.text("IsTruncated") == ("true" if marker else "false")
                    if not marker:
                        break
                wanted = await listed(http, options.removeprefix("&"))
                assert (keys, prefixes) == (wanted.keys, wanted.prefixes), (options, size)


def test_a_marker_that_is_a_common_prefix_lies_behind_all_that_is_in_it() -> None:
    assert behind(b"b/", b"", b"/") == b"b/\xff"
    assert behind(b"b/1", b"", b"/") == b"b/1"
    assert behind(b"b/", b"b/", b"/") == b"b/", "a key that is called like the prefix itself"
    assert behind(b"b/c/", b"b/", b"/") == b"b/c/\xff"
    assert behind(b"b/", b"", b"") == b"b/"


# --- strange keys --------------------------------------------------------------------------------------------------------


async def test_url_encoded_listings_name_every_key_exactly() -> None:
    async with running_http() as http:
        await put_all(http, STRANGE)
        for version in ("list-type=2&", ""):
            found = await listed(http, version + "encoding-type=url")
            assert [unquote(key) for key in found.keys] == in_order(STRANGE)
            assert found.text("EncodingType") == "url"
            folders = await listed(http, version + "encoding-type=url&delimiter=/")
            assert [unquote(prefix) for prefix in folders.prefixes] == in_order(["/", "x/", "é/"])
        plus = await listed(http, "list-type=2&encoding-type=url&prefix=a%2Bb&start-after=a%2B&delimiter=%2B%2B")
        assert plus.keys == ["a%2Bb"]
        assert [plus.text(name) for name in ("Prefix", "StartAfter", "Delimiter")] == ["a%2Bb", "a%2B", "%2B%2B"]


async def test_a_listing_without_encoding_is_xml_whatever_keys_there_are() -> None:
    async with running_http() as http:
        await put_all(http, STRANGE)
        keys = (await listed(http, "list-type=2")).keys
        shown = [key.replace("\x01\x1f", "\ufffd\ufffd") for key in in_order(STRANGE)]
        assert keys == shown, "what XML has no character for is shown as U+FFFD, the rest as it is"


async def test_who_owns_a_key_is_told_when_asked() -> None:
    async with running_http() as http:
        await put_all(http, ["k"])
        assert b"<Owner>" not in (await http.ask("GET", "/photos?list-type=2"))[1]
        assert b"<Owner><ID>default</ID>" in (await http.ask("GET", "/photos?list-type=2&fetch-owner=true"))[1]


async def test_what_is_no_listing_is_refused() -> None:
    async with running_http() as http:
        await put_all(http, ["k"])
        assert await http.error("GET", "/photos?list-type=3") == (400, "InvalidArgument")
        assert await http.error("GET", "/photos?max-keys=-1") == (400, "InvalidArgument")
        assert await http.error("GET", "/photos?encoding-type=base64") == (400, "InvalidArgument")
        assert await http.error("GET", "/photos?list-type=2&marker=a") == (501, "NotImplemented")
        assert await http.error("GET", "/photos?versions") == (501, "NotImplemented")


async def test_keys_of_kv_namespaces_are_listed_in_hex() -> None:
    async with running_http() as http:
        client = await http.daemon.client()
        namespace = await client.open("photos")
        await client.put(namespace, {b"\xff" * 16: b"x", b"\x00" * 16: b"y"})
        await client.close()
        assert (await listed(http, "list-type=2&delimiter=/")).keys == ["00" * 16, "ff" * 16]
        first = await listed(http, "max-keys=1")
        assert first.text("NextMarker") == "00" * 16
        assert (await listed(http, "marker=" + "00" * 16)).keys == ["ff" * 16]
        assert await http.error("GET", "/photos?prefix=xyz") == (400, "InvalidArgument")


# --- deleting many -------------------------------------------------------------------------------------------------------


def delete_document(keys: list[str], quiet: bool = False, more: str = "") -> bytes:
    objects = "".join(f"<Object><Key>{escape(key, {chr(13): '&#13;'})}</Key>{more}</Object>" for key in keys)
    return f'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{objects}<Quiet>{str(quiet).lower()}</Quiet></Delete>'.encode()


async def test_many_keys_are_deleted_at_once_and_each_is_answered_for() -> None:
    keys = [key for key in STRANGE if "\x01" not in key]
    async with running_http() as http:
        await put_all(http, [*keys, "kept"])
        status, body, _ = await http.ask("POST", "/photos?delete", data=delete_document([*keys, "never there"]))
        root = ElementTree.fromstring(body)
        assert status == 200 and root.tag == f"{S3}DeleteResult"
        assert [node.findtext(f"{S3}Key") for node in root.iter(f"{S3}Deleted")] == [*keys, "never there"]
        assert (await listed(http)).keys == ["kept"]
        status, body, _ = await http.ask("POST", "/photos?delete", data=delete_document(["kept"], quiet=True))
        assert status == 200 and len(ElementTree.fromstring(body)) == 0 and not (await listed(http)).keys


async def test_a_key_that_cannot_be_deleted_as_asked_is_an_error_of_its_own() -> None:
    async with running_http() as http:
        await put_all(http, ["a", "b"])
        for more in ("<VersionId>7</VersionId>", "<ETag>x</ETag>"):
            _, body, _ = await http.ask("POST", "/photos?delete", data=delete_document(["a"], more=more))
            assert ElementTree.fromstring(body).findtext(f"{S3}Error/{S3}Key") == "a"
        _, body, _ = await http.ask("POST", "/photos?delete", data=delete_document(["k" * 1025, "b"], quiet=True))
        assert ElementTree.fromstring(body).findtext(f"{S3}Error/{S3}Code") == "KeyTooLongError"
        assert (await listed(http)).keys == ["a"]


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<Delete>",
        b"<Other><Object><Key>a</Key></Object></Other>",
        b"<Delete></Delete>",
        b"<Delete><Object></Object></Delete>",
        b"<Delete><Object><Key>a</Key><Key>b</Key></Object></Delete>",
        delete_document(["k"] * 1001),
        b'<!DOCTYPE d [<!ENTITY a "aaaa">]><Delete><Object><Key>&a;</Key></Object></Delete>',
        b"<Delete>" + b"<a>" * 100 + b"</a>" * 100 + b"</Delete>",
        b'<?xml version="1.0" encoding="nothing"?><Delete/>',
        b"\xff\xfe<",
    ],
)
async def test_a_body_that_is_no_delete_document_deletes_nothing(document: bytes) -> None:
    with pytest.raises(MalformedXml):
        parse_delete_request(document)
    async with running_http() as http:
        await put_all(http, ["k"])
        assert await http.error("POST", "/photos?delete", data=document) == (400, "MalformedXML")
        assert (await listed(http)).keys == ["k"]


def test_a_thousand_keys_are_read_and_namespaces_do_not_matter() -> None:
    assert len(parse_delete_request(delete_document(["k" * 1024] * 1000)).keys) == 1000
    assert parse_delete_request(b"<Delete><Object><Key>a</Key></Object></Delete>").keys == ["a"]
    assert parse_xml(b'<p:D xmlns:p="urn:x"><p:K>1</p:K></p:D>', "D").value("K") == "1"


async def test_a_wrong_digest_of_the_delete_document_deletes_nothing() -> None:
    async with running_http() as http:
        await put_all(http, ["k"])
        headers = {"Content-MD5": "AAAAAAAAAAAAAAAAAAAAAA=="}
        named = {"data": delete_document(["k"]), "headers": headers}
        assert await http.error("POST", "/photos?delete", **named) == (400, "BadDigest")
        assert (await listed(http)).keys == ["k"]


# --- buckets -------------------------------------------------------------------------------------------------------------


async def test_what_clients_ask_a_bucket_at_first_is_answered() -> None:
    async with running_http() as http:
        region = (
            b"<CreateBucketConfiguration><LocationConstraint>eu-west-1</LocationConstraint></CreateBucketConfiguration>"
        )
        assert (await http.ask("PUT", "/photos", data=region))[0] == 200
        assert await http.error("PUT", "/videos", data=b"<Other/>") == (400, "MalformedXML")
        assert (await http.ask("HEAD", "/videos"))[0] == 404, "a bucket is not made by what is not understood"
        _, body, _ = await http.ask("GET", "/photos?location")
        assert ElementTree.fromstring(body).tag == f"{S3}LocationConstraint" and not ElementTree.fromstring(body).text
        _, body, _ = await http.ask("GET", "/photos?versioning")
        assert len(ElementTree.fromstring(body)) == 0
        _, body, _ = await http.ask("GET", "/photos?acl")
        assert ElementTree.fromstring(body).findtext(f".//{S3}Permission") == "FULL_CONTROL"
        assert await http.error("GET", "/nothere?location") == (404, "NoSuchBucket")


async def test_buckets_are_listed_in_pages_when_asked() -> None:
    async with running_http() as http:
        client = await http.daemon.client()
        for name in ("alpha", "beta", "gamma"):
            await client.open(name, kind=wire.NamespaceKind.OBJECT, family={})
        await client.close()
        _, body, _ = await http.ask("GET", "/?max-buckets=2")
        root = ElementTree.fromstring(body)
        assert [node.text for node in root.iter(f"{S3}Name")] == ["alpha", "beta"]
        token = root.findtext(f"{S3}ContinuationToken")
        _, body, _ = await http.ask("GET", f"/?max-buckets=2&continuation-token={token}")
        root = ElementTree.fromstring(body)
        assert [node.text for node in root.iter(f"{S3}Name")] == ["gamma"]
        assert root.findtext(f"{S3}ContinuationToken") is None


@pytest.mark.parametrize(
    "document",
    [
        b"<Delete>" + b"<a/>some forty bytes of text between elements" * 90_000 + b"</Delete>",
        b"<Delete " + b" ".join(b'a%d="1"' % number for number in range(300_000)) + b"/>",
        b"<Delete " + b" ".join(b'a%d=">"' % number for number in range(300_000)) + b"/>",
    ],
)
def test_xml_that_is_made_to_be_slow_is_read_or_refused_at_once(document: bytes) -> None:
    began = time.process_time()
    with contextlib.suppress(MalformedXml):
        parse_xml(document, "Delete")
    assert time.process_time() - began < 1.0
