"""Which operation, bucket and key a request is: pure functions, no daemon."""

import pytest

from mooncask.daemon.http.s3.operations import Level, Operation, find_operation
from mooncask.daemon.http.s3.target import NotAnOperation, bucket_of_host, parse_target
from mooncask.daemon.http.s3.unsupported import unsupported_header
from mooncask.errors import BadBucketName, KeyTooLong


@pytest.mark.parametrize(
    ("method", "path", "names", "operation"),
    [
        ("GET", "/", "", Operation.LIST_BUCKETS),
        ("PUT", "/b", "", Operation.CREATE_BUCKET),
        ("PUT", "/b/", "", Operation.CREATE_BUCKET),
        ("HEAD", "/b", "", Operation.HEAD_BUCKET),
        ("DELETE", "/b", "", Operation.DELETE_BUCKET),
        ("GET", "/b", "", Operation.LIST_OBJECTS),
        ("GET", "/b", "prefix marker max-keys delimiter encoding-type", Operation.LIST_OBJECTS),
        ("GET", "/b", "list-type prefix start-after continuation-token fetch-owner", Operation.LIST_OBJECTS_V2),
        ("GET", "/b", "location", Operation.GET_BUCKET_LOCATION),
        ("GET", "/b", "versioning", Operation.GET_BUCKET_VERSIONING),
        ("GET", "/b", "uploads", Operation.LIST_UPLOADS),
        ("POST", "/b", "delete", Operation.DELETE_OBJECTS),
        ("PUT", "/b/k", "x-id", Operation.PUT_OBJECT),
        ("GET", "/b/k", "response-content-type X-Amz-Signature X-Amz-Date", Operation.GET_OBJECT),
        ("GET", "/b/k", "partNumber", Operation.GET_OBJECT),
        ("PUT", "/b/k", "partNumber uploadId x-id", Operation.UPLOAD_PART),
        ("POST", "/b/k", "uploads", Operation.CREATE_UPLOAD),
        ("POST", "/b/k", "uploadId", Operation.COMPLETE_UPLOAD),
        ("DELETE", "/b/k", "uploadId", Operation.ABORT_UPLOAD),
        ("GET", "/b/k", "uploadId max-parts", Operation.LIST_PARTS),
        ("GET", "/b/k", "attributes", Operation.GET_OBJECT_ATTRIBUTES),
    ],
)
def test_method_level_and_query_names_make_an_operation(
    method: str, path: str, names: str, operation: Operation
) -> None:
    assert parse_target(method, path, names.split()).operation is operation


@pytest.mark.parametrize(
    ("method", "path", "names", "called"),
    [
        ("PUT", "/b/k", "tagging", "PutObjectTagging"),
        ("PUT", "/b/k", "partNumber", "PUT of an object with ?partNumber"),
        ("PUT", "/b", "acl", "PutBucketAcl"),
        ("GET", "/b", "policy", "GetBucketPolicy"),
        ("GET", "/b", "versions", "ListObjectVersions"),
        ("DELETE", "/b", "lifecycle", "DeleteBucketLifecycleConfiguration"),
        ("PUT", "/b/k", "unheard-of", "PUT of an object with ?unheard-of"),
        ("DELETE", "/b/k", "partNumber uploadId", "DELETE of an object with ?partNumber with ?uploadId"),
        ("POST", "/b/k", "", "POST of an object"),
        ("POST", "/", "", "POST of a service"),
        ("PATCH", "/b/k", "", "PATCH of an object"),
    ],
)
def test_what_is_no_operation_is_never_taken_for_one_and_is_called_by_its_name(
    method: str, path: str, names: str, called: str
) -> None:
    with pytest.raises(NotAnOperation) as caught:
        parse_target(method, path, names.split())
    assert str(caught.value) == called


def test_a_request_that_names_a_source_copies() -> None:
    assert parse_target("PUT", "/b/k", (), is_copy=True).operation is Operation.COPY_OBJECT
    assert parse_target("PUT", "/b/k", ("partNumber", "uploadId"), is_copy=True).operation is Operation.UPLOAD_PART_COPY
    assert parse_target("GET", "/b/k", (), is_copy=True).operation is Operation.GET_OBJECT


def test_every_operation_has_its_row() -> None:
    found = {
        find_operation(level, method, frozenset(names.split()), copy)
        for level in Level
        for method in ("GET", "PUT", "HEAD", "DELETE", "POST")
        for names in (
            *("", "list-type", "location", "versioning", "acl", "uploads", "delete", "attributes", "tagging"),
            *("uploadId", "partNumber uploadId"),
        )
        for copy in (False, True)
    }
    assert found - {None} == set(Operation)


@pytest.mark.parametrize(
    ("path", "bucket", "key"),
    [
        ("/b/k", "b", b"k"),
        ("/b//k", "b", b"/k"),
        ("/b/a//b/", "b", b"a//b/"),
        ("/b/../c", "b", b"../c"),
        ("/b/./c", "b", b"./c"),
        ("/b/%2Fk", "b", b"/k"),
        ("/b/a+b%20c%2B", "b", b"a+b c+"),
        ("/b/%25%41", "b", b"%A"),
        ("/b/%0A%00%E2%82%AC", "b", "\n\0€".encode()),
    ],
)
def test_a_key_is_the_path_behind_the_bucket_decoded_once_and_never_shortened(
    path: str, bucket: str, key: bytes
) -> None:
    target = parse_target("GET", path)
    assert (target.bucket, target.key) == (bucket, key)
    under_host = parse_target("GET", "/" + path.partition("/b/")[2], host_bucket="b")
    assert (under_host.bucket, under_host.key) == (bucket, key)


def test_a_key_needs_a_bucket_and_has_an_end() -> None:
    with pytest.raises(BadBucketName):
        parse_target("GET", "//k")
    with pytest.raises(KeyTooLong):
        parse_target("GET", "/b/" + "%41" * 1025)
    assert len(parse_target("GET", "/b/" + "%41" * 1024).key) == 1024


@pytest.mark.parametrize(
    ("host", "bucket"),
    [
        ("photos.s3.example", "photos"),
        ("photos.s3.example:9470", "photos"),
        ("Photos.S3.Example", "photos"),
        ("a.b.s3.example", "a.b"),
        ("s3.example", ""),
        ("s3.example:9470", ""),
        ("other.example", ""),
        ("xs3.example", ""),
        ("[::1]:9470", ""),
        ("[::1]", ""),
        ("127.0.0.1:9470", ""),
        ("photos.s3.example:x", ""),
        ("", ""),
    ],
)
def test_the_bucket_of_a_host_name(host: str, bucket: str) -> None:
    assert bucket_of_host(host, "s3.example") == bucket
    assert bucket_of_host(host, "") == ""


@pytest.mark.parametrize(
    ("name", "value", "refused"),
    [
        ("x-amz-acl", "private", False),
        ("X-Amz-Acl", "public-read", True),
        ("x-amz-storage-class", "STANDARD", False),
        ("x-amz-storage-class", "GLACIER", True),
        ("x-amz-server-side-encryption", "AES256", True),
        ("x-amz-server-side-encryption-customer-key", "x", True),
        ("X-Amz-Tagging", "a=b", True),
        ("x-amz-meta-tagging", "a=b", False),
        ("x-amz-checksum-crc32", "AAAA", False),
        ("Content-Type", "text/plain", False),
    ],
)
def test_what_a_header_asks_for_and_there_is_not_is_named(name: str, value: str, refused: bool) -> None:
    assert unsupported_header({"Host": "x", name: value}) == (f"{name.lower()}: {value}" if refused else "")
