"""Requests made by hand to a daemon with keys, over plain HTTP and over TLS: what is refused, and by which code."""

import base64
import hashlib
import http.client
import json
import socket
import urllib.request
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from botocore.auth import S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from s3_daemon import (
    DOMAIN,
    KEY,
    READER_SECRET,
    REGION,
    SCHEMES,
    SECRET,
    TOKEN,
    S3Door,
    s3_daemon,
)
from s3_requests import Answer, ask, refusal, sign

from mooncask.daemon.http.callers.signature import Scope, signature, signing_key

DATA = bytes(range(256)) * 1024


@pytest.fixture(scope="module", params=SCHEMES)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Door]:
    with s3_daemon(tmp_path_factory.mktemp("s3"), request.param) as found:
        with found.client() as s3:
            s3.create_bucket(Bucket="bucket")
        yield found


def get(s3: Any, key: str) -> bytes:
    return s3.get_object(Bucket="bucket", Key=key)["Body"].read()


# --- requests made by hand -------------------------------------------------------------------------------------------


def test_what_is_signed_by_hand_is_taken(door: S3Door) -> None:
    """So that the refusals below are for what they change."""
    assert ask(door, "GET", "/", sign(door, "GET", "/")).status == 200


def test_a_clock_that_is_wrong_is_told_the_time(door: S3Door) -> None:
    for minutes in (-16, 16):
        answer = ask(door, "GET", "/", sign(door, "GET", "/", when=datetime.now(UTC) + timedelta(minutes=minutes)))
        assert (answer.status, answer.code) == (403, "RequestTimeTooSkewed")
        assert ElementTree.fromstring(answer.body).findtext("ServerTime")


def test_a_header_that_is_missing_is_named(door: S3Door) -> None:
    for name, wanted in (
        ("x-amz-content-sha256", (400, "MissingSecurityHeader")),
        ("X-Amz-Date", (403, "AccessDenied")),
        ("Authorization", (403, "AccessDenied")),
    ):
        headers = {key: value for key, value in sign(door, "GET", "/").items() if key.lower() != name.lower()}
        answer = ask(door, "GET", "/", headers)
        assert (answer.status, answer.code) == wanted


def test_the_wrong_region_is_answered_with_the_right_one(door: S3Door) -> None:
    headers = sign(door, "GET", "/")
    answer = ask(door, "GET", "/", {**headers, "Authorization": headers["Authorization"].replace(REGION, "mars-1")})
    document = ElementTree.fromstring(answer.body)
    assert (answer.status, answer.code, document.findtext("Region")) == (400, "AuthorizationHeaderMalformed", REGION)


def test_a_body_that_is_not_the_signed_one_is_not_published(door: S3Door) -> None:
    promised = {"x-amz-content-sha256": hashlib.sha256(DATA).hexdigest(), "Content-Length": str(len(DATA))}
    headers = sign(door, "PUT", "/bucket/tampered", promised)
    answer = ask(door, "PUT", "/bucket/tampered", headers, DATA[:-1] + b"!")
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    with door.client() as s3, pytest.raises(ClientError) as caught:
        get(s3, "tampered")
    assert refusal(caught.value) == (404, "NoSuchKey")
    assert ask(door, "PUT", "/bucket/tampered", sign(door, "PUT", "/bucket/tampered", promised), DATA).status == 200


def test_a_presigned_request_ends(door: S3Door) -> None:
    with door.client(signature_version="s3v4") as s3:
        url = s3.generate_presigned_url("get_object", {"Bucket": "bucket", "Key": "x"}, 1)
    made = datetime.now(UTC) - timedelta(minutes=1)
    stale = url.replace(url.partition("X-Amz-Date=")[2][:16], made.strftime("%Y%m%dT%H%M%SZ"))
    answer = ask(door, "GET", stale.removeprefix(door.endpoint), {"Host": door.daemon.http_address})
    if made.date() == datetime.now(UTC).date():  # within a minute of midnight the scope is of another day
        assert (answer.status, answer.code) == (403, "AccessDenied") and b"expired" in answer.body


def test_a_presigned_query_may_say_what_the_body_is(door: S3Door) -> None:
    """As some clients presign: the hash is in the query, and in no header."""
    hashed = hashlib.sha256(DATA).hexdigest()
    url = f"http://{door.daemon.http_address}/bucket/by-query?X-Amz-Content-Sha256={hashed}"
    request = AWSRequest("PUT", url, headers={})
    signer = S3SigV4QueryAuth(Credentials(KEY, SECRET), "s3", REGION, 60)
    signer.payload = lambda _: hashed
    signer.add_auth(request)
    target = str(request.url).removeprefix(f"http://{door.daemon.http_address}")
    headers = {"Host": door.daemon.http_address, "Content-Length": str(len(DATA))}
    assert ask(door, "PUT", target, headers, DATA[:-1] + b"!").code == "XAmzContentSHA256Mismatch"
    assert ask(door, "PUT", target, headers, DATA).status == 200


@pytest.mark.parametrize("framing", ["plain", "chunks"])
def test_a_body_that_ends_before_its_time_is_not_published(door: S3Door, framing: str) -> None:
    host, port = door.daemon.http_address.rsplit(":", 1)
    more = {"Content-Length": "1000"} if framing == "plain" else {"x-amz-decoded-content-length": "1000"}
    signed = sign(door, "PUT", "/bucket/short", more)
    head = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
    end = b"\r\nhello" if framing == "plain" else b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
    with socket.create_connection((host, int(port)), timeout=20) as raw:
        tls = door.tls()
        with tls.wrap_socket(raw, server_hostname=host) if tls else raw as connection:
            connection.sendall(f"PUT /bucket/short HTTP/1.1\r\n{head}".encode() + end)
            if framing == "chunks":
                connection.sendall(b"0\r\n\r\n")
                assert b"IncompleteBody" in connection.recv(4096)
    with door.client() as s3, pytest.raises(ClientError) as caught:
        get(s3, "short")
    assert refusal(caught.value) == (404, "NoSuchKey")


def chunk_signed(door: S3Door, key: str, data: bytes, trailer: bool, tamper: bool = False) -> Answer:
    """A PUT in signed chunks of 64 KiB, as AWS's Java and C++ SDKs send it."""
    kind = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" + ("-TRAILER" if trailer else "")
    pieces = [data[at : at + (64 << 10)] for at in range(0, len(data), 64 << 10)] + [b""]
    line = f"x-amz-checksum-crc32:{base64.b64encode(zlib.crc32(data).to_bytes(4, 'big')).decode()}"
    length = len(data) + sum(len(b"%x;chunk-signature=\r\n" % len(piece)) + 64 + 2 for piece in pieces)
    length += len(f"{line}\r\nx-amz-trailer-signature:\r\n") + 64 if trailer else 0
    headers = {
        "x-amz-content-sha256": kind,
        "x-amz-decoded-content-length": str(len(data)),
        "Content-Encoding": "aws-chunked",
        "Content-Length": str(length),
        **({"x-amz-trailer": "x-amz-checksum-crc32"} if trailer else {}),
    }
    signed = sign(door, "PUT", f"/bucket/{key}", headers)
    when = signed["X-Amz-Date"]
    scope = Scope(when[:8], REGION)
    secret = signing_key(SECRET, scope)
    previous = signed["Authorization"].rpartition("Signature=")[2]
    body = []
    for piece in pieces:
        hashes = f"{hashlib.sha256(b'').hexdigest()}\n{hashlib.sha256(piece).hexdigest()}"
        previous = signature(secret, f"AWS4-HMAC-SHA256-PAYLOAD\n{when}\n{scope}\n{previous}\n{hashes}")
        body.append(b"%x;chunk-signature=%b\r\n%b" % (len(piece), previous.encode(), piece + b"\r\n" if piece else b""))
    if trailer:
        hashed = hashlib.sha256(f"{line}\n".encode()).hexdigest()
        previous = signature(secret, f"AWS4-HMAC-SHA256-TRAILER\n{when}\n{scope}\n{previous}\n{hashed}")
        body.append(f"{line}\r\nx-amz-trailer-signature:{previous}\r\n".encode())
    stream = bytearray(b"".join([*body, b"\r\n"]))
    assert len(stream) == length
    if tamper:
        stream[len(body[0]) // 2] ^= 1  # a byte of the payload: one of a chunk's header would make it malformed
    return ask(door, "PUT", f"/bucket/{key}", signed, bytes(stream))


@pytest.mark.parametrize("trailer", [False, True])
def test_a_stream_in_signed_chunks_is_checked_chunk_by_chunk(door: S3Door, trailer: bool) -> None:
    assert chunk_signed(door, "chunks", DATA, trailer).status == 200
    answer = chunk_signed(door, "changed", DATA, trailer, tamper=True)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    with door.client() as s3:
        assert get(s3, "chunks") == DATA
        assert s3.head_object(Bucket="bucket", Key="chunks").get("ContentEncoding", "") == ""
        with pytest.raises(ClientError) as caught:
            get(s3, "changed")
    assert refusal(caught.value) == (404, "NoSuchKey")


def test_a_buckets_own_host_name_is_signed_like_any_other(door: S3Door) -> None:
    host = f"bucket.{DOMAIN}"
    length = {"Content-Length": str(len(DATA))}
    for target in ("/hosted", "/-/v1/status", "/-/healthz"):
        assert ask(door, "PUT", target, sign(door, "PUT", target, length, host=host), DATA).status == 200
        assert ask(door, "GET", target, sign(door, "GET", target, host=host)).body == DATA
        assert ask(door, "GET", target, {"Host": host}).code == "AccessDenied"
        assert ask(door, "GET", target, {"Host": host, "Authorization": f"Bearer {TOKEN}"}).code == "InvalidRequest"
    signed_for_another = sign(door, "GET", "/hosted", host=f"other.{DOMAIN}")
    assert ask(door, "GET", "/hosted", {**signed_for_another, "Host": host}).code == "SignatureDoesNotMatch"
    with door.client() as s3:
        assert get(s3, "-/v1/status") == DATA


# --- the pages beside S3 ---------------------------------------------------------------------------------------------


def test_the_pages_take_the_token_or_a_signature(door: S3Door) -> None:
    host = {"Host": door.daemon.http_address}
    page = "/-/v1/status"
    assert ask(door, "GET", page, host).code == "AccessDenied"
    assert ask(door, "GET", page, {**host, "Authorization": f"Bearer {TOKEN}x"}).code == "AccessDenied"
    assert ask(door, "GET", page, {**host, "Authorization": "Bearer"}).code == "AccessDenied"
    assert json.loads(ask(door, "GET", page, {**host, "Authorization": f"Bearer {TOKEN}"}).body)["tiers"]
    assert json.loads(ask(door, "GET", page, sign(door, "GET", page)).body)["tiers"]


def test_the_token_is_none_for_s3(door: S3Door) -> None:
    answer = ask(door, "GET", "/", {"Host": door.daemon.http_address, "Authorization": f"Bearer {TOKEN}"})
    assert (answer.status, answer.code) == (400, "InvalidRequest")


@pytest.mark.parametrize("page", ["/-/healthz", "/-/readyz", "/-/metrics", "/-/ui/"])
def test_health_metrics_and_the_dashboards_files_are_open_on_loopback(door: S3Door, page: str) -> None:
    assert ask(door, "GET", page, {"Host": door.daemon.http_address}).status == 200


def test_metrics_from_elsewhere_need_the_token_since_they_name_every_tenants_namespaces(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks which address is ours
        except OSError:
            pytest.skip("needs an address beside loopback")
        own = probe.getsockname()[0]
    with s3_daemon(tmp_path, "http", {"http.listen": "0.0.0.0:0"}) as door:
        host = door.daemon.http_address = f"{own}:{door.daemon.http_address.rpartition(':')[2]}"
        signed = ask(door, "GET", "/-/metrics", sign(door, "GET", "/-/metrics"))
        assert (signed.status, signed.code) == (403, "AccessDenied")
        assert ask(door, "GET", "/-/v1/status", sign(door, "GET", "/-/v1/status")).status == 200
        assert ask(door, "GET", "/-/metrics", {"Host": host}).status == 403
        assert ask(door, "GET", "/-/metrics", {"Host": host, "Authorization": f"Bearer {TOKEN}"}).status == 200


def test_a_body_of_a_json_page_that_is_not_the_signed_one_is_refused(door: S3Door) -> None:
    body = json.dumps({"namespace": "bucket", "tokens": [1, 2, 3]}).encode()
    other = body.replace(b"[1, 2, 3]", b"[1, 2, 4]")
    promised = {"x-amz-content-sha256": hashlib.sha256(body).hexdigest(), "Content-Length": str(len(body))}
    signed = sign(door, "POST", "/-/v1/why", promised)
    altered = ask(door, "POST", "/-/v1/why", signed, other)
    assert altered.status == 400 and b"SHA256" in altered.body.upper(), altered
    right = ask(door, "POST", "/-/v1/why", signed, body)
    assert b"SHA256" not in right.body.upper(), right


@pytest.mark.parametrize(
    "path",
    ["/%2D/v1/status", "/-/ui/../v1/status", "/-/ui/%2e%2e/v1/status", "/-/healthz/../v1/status", "//-/v1/status"],
)
def test_no_other_way_of_writing_a_path_opens_a_page(door: S3Door, path: str) -> None:
    assert ask(door, "GET", path, {"Host": door.daemon.http_address}).status in (403, 404)


# --- the listener ----------------------------------------------------------------------------------------------------


def test_secrets_are_in_no_log_and_no_page(door: S3Door) -> None:
    status = ask(door, "GET", "/-/v1/status", {"Host": door.daemon.http_address, "Authorization": f"Bearer {TOKEN}"})
    metrics = ask(door, "GET", "/-/metrics", {"Host": door.daemon.http_address})
    for text in (door.daemon.log(), status.body.decode(), metrics.body.decode()):
        assert [secret for secret in (SECRET, READER_SECRET, TOKEN) if secret in text] == []


def test_a_port_that_speaks_tls_speaks_nothing_else(tmp_path: Path) -> None:
    with s3_daemon(tmp_path, "https") as door:
        plain = S3Door(door.daemon, "http", "")
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(plain, "GET", "/-/healthz", {"Host": door.daemon.http_address})
        with pytest.raises(urllib.request.URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urllib.request.urlopen(f"{door.endpoint}/-/healthz", timeout=10)
        assert ask(door, "GET", "/-/healthz", {"Host": door.daemon.http_address}).status == 200
