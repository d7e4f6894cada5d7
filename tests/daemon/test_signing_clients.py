"""Signed requests of real clients to a real daemon, over plain HTTP and over TLS."""

import io
from collections.abc import Iterator
from typing import Any

import pytest
from botocore import UNSIGNED
from botocore.exceptions import ClientError
from s3_daemon import (
    READER,
    READER_SECRET,
    SCHEMES,
    SECRET,
    STRANGER,
    STRANGER_SECRET,
    S3Door,
    s3_daemon,
)
from s3_requests import ask, refusal

DATA = bytes(range(256)) * 1024
KEYS = [
    "plain",
    "with space",
    "a+b",
    "100%",
    "%41",
    "a//b",
    "/leading",
    "trailing/",
    "../up/./here",
    "caf\N{LATIN SMALL LETTER E WITH ACUTE}/\N{SNOWMAN}",
    "q?x=1&y#z",
    "~!'()*;:@,$=[]",
    "a\tb",
]


@pytest.fixture(scope="module", params=SCHEMES)
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Door]:
    with s3_daemon(tmp_path_factory.mktemp("s3"), request.param) as found:
        with found.client() as s3:
            s3.create_bucket(Bucket="bucket")
        yield found


def get(s3: Any, key: str) -> bytes:
    return s3.get_object(Bucket="bucket", Key=key)["Body"].read()


# --- real clients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS)
def test_boto3_puts_and_gets_under_any_key(door: S3Door, key: str) -> None:
    with door.client() as s3:
        s3.put_object(Bucket="bucket", Key=key, Body=DATA)
        assert get(s3, key) == DATA
        assert s3.head_object(Bucket="bucket", Key=key)["ContentLength"] == len(DATA)
        s3.delete_object(Bucket="bucket", Key=key)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_boto3_uploads_a_stream_with_each_checksum(door: S3Door, algorithm: str) -> None:
    """Over TLS the checksum comes as a trailer of an unsigned aws-chunked body."""
    with door.client() as s3:
        answer = s3.put_object(Bucket="bucket", Key="stream", Body=io.BytesIO(DATA), ChecksumAlgorithm=algorithm)
        assert answer[f"Checksum{algorithm}"] and get(s3, "stream") == DATA


@pytest.mark.parametrize("signing", [True, False])
def test_a_payload_is_signed_or_not_as_the_client_likes(door: S3Door, signing: bool) -> None:
    with door.client(s3={"payload_signing_enabled": signing, "addressing_style": "path"}) as s3:
        s3.put_object(Bucket="bucket", Key="signed", Body=DATA)
        assert get(s3, "signed") == DATA


@pytest.mark.parametrize("key", KEYS)
def test_presigned_urls_put_and_get(door: S3Door, key: str) -> None:
    with door.client(signature_version="s3v4") as s3:
        put = s3.generate_presigned_url("put_object", {"Bucket": "bucket", "Key": key}, 60)
        where = {"Bucket": "bucket", "Key": key, "ResponseContentType": "text/plain; charset=utf-8"}
        url = s3.generate_presigned_url(
            "get_object", {k: v for k, v in where.items() if k != "ResponseContentType"}, 60
        )
    headers = {"Host": door.daemon.http_address}
    assert ask(door, "PUT", target_of(door, put), {**headers, "Content-Length": str(len(DATA))}, DATA).status == 200
    answer = ask(door, "GET", target_of(door, url), headers)
    assert (answer.status, answer.body) == (200, DATA)
    assert ask(door, "DELETE", target_of(door, url), headers).code == "SignatureDoesNotMatch"


def target_of(door: S3Door, url: str) -> str:
    return url.removeprefix(door.endpoint)


def test_the_wrong_secret_key_region_or_none_is_refused_by_s3s_code(door: S3Door) -> None:
    for named, wanted in (
        ({"secret": SECRET + "x"}, (403, "SignatureDoesNotMatch")),
        ({"key": "NOBODY"}, (403, "InvalidAccessKeyId")),
        ({"region": "mars-1"}, (400, "AuthorizationHeaderMalformed")),
    ):
        with door.client(**named) as s3, pytest.raises(ClientError) as caught:
            s3.list_buckets()
        assert refusal(caught.value) == wanted
    with door.client(signature_version=UNSIGNED) as s3, pytest.raises(ClientError) as caught:
        s3.list_buckets()
    assert refusal(caught.value) == (403, "AccessDenied")


def test_a_key_that_may_only_read_changes_nothing(door: S3Door) -> None:
    with door.client() as s3:
        s3.put_object(Bucket="bucket", Key="kept", Body=b"here")
    with door.client(READER, READER_SECRET) as s3:
        assert get(s3, "kept") == b"here" and s3.list_objects_v2(Bucket="bucket")["KeyCount"]
        for write in (
            lambda: s3.put_object(Bucket="bucket", Key="kept", Body=b"other"),
            lambda: s3.delete_object(Bucket="bucket", Key="kept"),
            lambda: s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "kept"}]}),
            lambda: s3.copy_object(Bucket="bucket", Key="kept", CopySource="bucket/kept"),
            lambda: s3.create_multipart_upload(Bucket="bucket", Key="kept"),
            lambda: s3.create_bucket(Bucket="another"),
            lambda: s3.delete_bucket(Bucket="bucket"),
        ):
            with pytest.raises(ClientError) as caught:
                write()
            assert refusal(caught.value) == (403, "AccessDenied")
        assert get(s3, "kept") == b"here"


def test_a_key_of_another_tenant_sees_nothing(door: S3Door) -> None:
    with door.client(STRANGER, STRANGER_SECRET) as s3:
        assert s3.list_buckets()["Buckets"] == []
        for call in (s3.head_bucket, s3.list_objects_v2, s3.delete_bucket):
            with pytest.raises(ClientError) as caught:
                call(Bucket="bucket")
            assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
