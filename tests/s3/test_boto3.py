"""boto3 against a real daemon: what programs in Python do with S3."""

import hashlib
import io
import ssl
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError
from raw_client import payload
from s3_door import S3Door, boto_client

from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind

MIB = 1 << 20
SETTINGS = {"nvme.path": ""}
"""What becomes durable is other tests' business; these are many."""


def code(caught: pytest.ExceptionInfo[ClientError]) -> tuple[int, str]:
    response = caught.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def body_of(s3: Any, bucket: str, key: str, **named: Any) -> bytes:
    with s3.get_object(Bucket=bucket, Key=key, **named)["Body"] as body:
        return body.read()


# --- one object ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 1000, 5 * MIB, 40 * MIB])
def test_what_was_put_is_got_with_all_that_was_said_of_it(s3: Any, bucket: str, size: int) -> None:
    body = payload(3, size)
    put = s3.put_object(
        Bucket=bucket,
        Key="k",
        Body=body,
        ContentType="text/plain",
        CacheControl="max-age=5",
        Metadata={"colour": "blue", "umlaut": "=?UTF-8?Q?=C3=BC?="},
    )
    assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="k")
    with got["Body"] as stream:
        assert stream.read() == body
    for found in (got, s3.head_object(Bucket=bucket, Key="k")):
        assert found["ContentLength"] == size and found["ETag"] == put["ETag"]
        assert found["ContentType"] == "text/plain" and found["CacheControl"] == "max-age=5"
        assert found["Metadata"]["colour"] == "blue"


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
def test_every_checksum_is_checked_and_kept(s3: Any, bucket: str, algorithm: str) -> None:
    name = f"Checksum{algorithm}"
    put = s3.put_object(Bucket=bucket, Key="k", Body=b"hello", ChecksumAlgorithm=algorithm)
    with s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["Body"] as stream:
        assert stream.read() == b"hello", "boto3 itself compares the checksum"
    assert s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[name] == put[name]
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket, Key="wrong", Body=b"hello", **{name: put[name][:-4] + "AAA="})
    assert code(caught)[0] == 400
    with pytest.raises(ClientError) as caught:
        s3.head_object(Bucket=bucket, Key="wrong")
    assert code(caught) == (404, "404")


@pytest.mark.parametrize(
    ("header", "start", "stop"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=100-", 100, None),
        ("bytes=-100", -100, None),
        ("bytes=16777215-16777216", 16777215, 16777217),
    ],
)
def test_ranges(s3: Any, bucket: str, header: str, start: int, stop: int | None) -> None:
    body = payload(3, 20 * MIB)
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    got = s3.get_object(Bucket=bucket, Key="k", Range=header)
    with got["Body"] as stream:
        assert stream.read() == body[start:stop]
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={len(body)}-")
    assert code(caught) == (416, "InvalidRange")


def test_conditions(s3: Any, bucket: str) -> None:
    tag = s3.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert code(caught) == (412, "PreconditionFailed")
    with pytest.raises(ClientError) as caught:
        s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfMatch='"other"')
    assert code(caught) == (412, "PreconditionFailed")
    assert body_of(s3, bucket, "k", IfMatch=tag) == b"first"
    with pytest.raises(ClientError) as caught:
        s3.get_object(Bucket=bucket, Key="k", IfNoneMatch=tag)
    assert code(caught)[0] == 304
    s3.put_object(Bucket=bucket, Key="k", Body=b"second", IfMatch=tag)
    assert body_of(s3, bucket, "k") == b"second"


def test_of_many_writers_that_want_to_be_first_one_is(s3: Any, bucket: str) -> None:
    def put(number: int) -> bool:
        try:
            s3.put_object(Bucket=bucket, Key="k", Body=str(number).encode(), IfNoneMatch="*")
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed"
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put, range(16))) == 1


def test_answers_can_be_told_how_to_call_themselves(s3: Any, bucket: str) -> None:
    s3.put_object(Bucket=bucket, Key="k", Body=b"hello")
    got = s3.get_object(
        Bucket=bucket, Key="k", ResponseContentType="text/html", ResponseContentDisposition='attachment; filename="x"'
    )
    got["Body"].close()
    assert got["ContentType"] == "text/html" and got["ContentDisposition"] == 'attachment; filename="x"'


@pytest.mark.parametrize(
    "key", ["a b+c", "ü/€/𝄞", "x//y", "/lead", "trail/", "100%", "?&=", "../up", "./here", "~.-_*'()!", "\x01"]
)
def test_keys_of_every_kind(s3: Any, bucket: str, key: str) -> None:
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert body_of(s3, bucket, key) == key.encode()
    assert [item["Key"] for item in s3.list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    assert [item["Key"] for item in s3.list_objects(Bucket=bucket)["Contents"]] == [key]
    s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": key})
    assert body_of(s3, bucket, "copy") == key.encode()
    s3.delete_object(Bucket=bucket, Key=key)
    assert [item["Key"] for item in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["copy"]


# --- many ----------------------------------------------------------------------------------------------------------------


def test_three_thousand_keys_are_listed_by_folders_and_deleted(door: S3Door, s3: Any, bucket: str) -> None:
    names = sorted(f"{group}/{number:04}" for group in ("a", "b+c", "d e") for number in range(1000))
    client = LocalClient.connect(door.daemon.socket_path)
    namespace = client.open_namespace(bucket, kind=NamespaceKind.OBJECT, create=False)
    client.put(namespace, [name.encode() for name in names], [b"x"] * len(names))
    client.close()
    for operation in ("list_objects_v2", "list_objects"):
        pages = list(s3.get_paginator(operation).paginate(Bucket=bucket))
        assert [item["Key"] for page in pages for item in page["Contents"]] == names and len(pages) == 3
        folders = s3.get_paginator(operation).paginate(Bucket=bucket, Delimiter="/", PaginationConfig={"PageSize": 2})
        assert [one["Prefix"] for page in folders for one in page.get("CommonPrefixes", [])] == ["a/", "b+c/", "d e/"]
    found = s3.list_objects_v2(Bucket=bucket, Prefix="b+c/", StartAfter="b+c/0997", FetchOwner=True)
    assert [item["Key"] for item in found["Contents"]] == ["b+c/0998", "b+c/0999"] and found["KeyCount"] == 2
    assert found["Contents"][0]["Owner"]["ID"]
    for start in range(0, len(names), 1000):
        batch = [{"Key": name} for name in names[start : start + 1000]]
        deleted = s3.delete_objects(Bucket=bucket, Delete={"Objects": batch, "Quiet": bool(start)})
        assert len(deleted.get("Deleted", [])) == (0 if start else 1000) and "Errors" not in deleted
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_buckets(s3: Any, bucket: str) -> None:
    assert bucket in [one["Name"] for one in s3.list_buckets()["Buckets"]]
    assert s3.head_bucket(Bucket=bucket)["ResponseMetadata"]["HTTPStatusCode"] == 200
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)
    assert s3.get_bucket_acl(Bucket=bucket)["Grants"][0]["Permission"] == "FULL_CONTROL"
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    with pytest.raises(ClientError) as caught:
        s3.delete_bucket(Bucket=bucket)
    assert code(caught) == (409, "BucketNotEmpty")
    for name in ("no", "Upper", "under__"):
        with pytest.raises(Exception):  # noqa: B017  # boto3 refuses some itself
            s3.create_bucket(Bucket=name)
    with pytest.raises(ClientError) as caught:
        s3.get_bucket_policy(Bucket=bucket)
    assert code(caught) == (501, "NotImplemented")


# --- multipart -----------------------------------------------------------------------------------------------------------


def test_an_upload_in_parts(s3: Any, bucket: str) -> None:
    parts = [payload(1, 5 * MIB), payload(2, 6 * MIB), payload(3, 1000)]
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", Metadata={"colour": "blue"})["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    done = [
        {"PartNumber": number, "ETag": s3.upload_part(**where, PartNumber=number, Body=part)["ETag"]}
        for number, part in enumerate(parts, 1)
    ]
    assert [part["Size"] for part in s3.list_parts(**where)["Parts"]] == [len(part) for part in parts]
    assert [one["Key"] for one in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == ["k"]
    tag = s3.complete_multipart_upload(**where, MultipartUpload={"Parts": done})["ETag"]
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    assert tag == f'"{hashlib.md5(digests).hexdigest()}-3"'
    assert body_of(s3, bucket, "k") == b"".join(parts)
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"colour": "blue"}
    second = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    with second["Body"] as stream:
        assert stream.read() == parts[1] and second["PartsCount"] == 3
    copied = s3.copy_object(Bucket=bucket, Key="copy", CopySource={"Bucket": bucket, "Key": "k"})
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(b"".join(parts)).hexdigest()}"'
    assert body_of(s3, bucket, "copy") == b"".join(parts)


def test_an_upload_whose_parts_are_copied(s3: Any, bucket: str) -> None:
    source = payload(9, 12 * MIB)
    s3.put_object(Bucket=bucket, Key="source", Body=source)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    done = []
    for number, span in enumerate((f"bytes=0-{6 * MIB - 1}", f"bytes={6 * MIB}-{len(source) - 1}"), 1):
        part = s3.upload_part_copy(
            **where, PartNumber=number, CopySource={"Bucket": bucket, "Key": "source"}, CopySourceRange=span
        )
        done.append({"PartNumber": number, "ETag": part["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": done})
    assert body_of(s3, bucket, "k") == source


def test_an_upload_that_is_aborted_is_gone(s3: Any, bucket: str) -> None:
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    s3.upload_part(**where, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(**where)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    with pytest.raises(ClientError) as caught:
        s3.upload_part(**where, PartNumber=2, Body=b"x")
    assert code(caught) == (404, "NoSuchUpload")


def test_files_go_up_and_down_in_parts_by_threads(s3: Any, bucket: str) -> None:
    body = payload(5, 33 * MIB + 7)
    config = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB, max_concurrency=4)
    s3.upload_fileobj(io.BytesIO(body), bucket, "k", Config=config)
    assert s3.head_object(Bucket=bucket, Key="k")["ETag"].endswith('-5"')
    found = io.BytesIO()
    s3.download_fileobj(bucket, "k", found, Config=config)
    assert found.getvalue() == body
    s3.copy({"Bucket": bucket, "Key": "k"}, bucket, "copy", Config=config)
    assert body_of(s3, bucket, "copy") == body


# --- without a signature in the headers ----------------------------------------------------------------------------------


@pytest.fixture
def opener(door: S3Door) -> Iterator[urllib.request.OpenerDirector]:
    context = ssl.create_default_context(cafile=door.certificate) if door.certificate else None
    yield urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))


def test_presigned_urls(door: S3Door, bucket: str, opener: urllib.request.OpenerDirector) -> None:
    key = "a b/ü+€"
    s3 = boto_client(door, signature_version="s3v4")
    url = s3.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": key})
    with opener.open(urllib.request.Request(url, data=b"hello", method="PUT")) as answer:
        assert answer.status == 200
    named = {"Bucket": bucket, "Key": key, "ResponseContentType": "text/x-test"}
    with opener.open(s3.generate_presigned_url("get_object", Params=named)) as answer:
        assert answer.read() == b"hello" and answer.headers["Content-Type"] == "text/x-test"
    s3.close()
