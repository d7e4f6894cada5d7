"""What a request asks for: its S3 operation, bucket and key, from the method, the raw target and the Host. Pure.

Paths are taken as they came: "//", "." and ".." are parts of a key like any other.
"""

from collections.abc import Collection
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from mooncask.daemon.http.s3.operations import Level, Operation, find_operation, unknown_name
from mooncask.errors import BadBucketName, BadRequest, KeyTooLong, NoSuchBlock
from mooncask.tiers.namespace import Namespace

KEY_BYTES_MAX = 1024
_IGNORED = frozenset({"x-id"})
_NOTHING: frozenset[str] = frozenset()
_SIGNATURE = "X-Amz-"
"""How the query names of a presigned URL begin."""


class Target(NamedTuple):
    """`key` is the decoded path behind the bucket, empty where the request is about the bucket itself."""

    operation: Operation
    bucket: str
    key: bytes


class NotAnOperation(Exception):
    """A request that this API does not have; its text is what AWS calls it."""


def parse_target(
    method: str, raw_path: str, names: Collection[str] = (), host_bucket: str = "", is_copy: bool = False
) -> Target:
    """`raw_path` is percent-encoded as it came, without the query; `names` are the query's. `host_bucket` is the bucket that
    the Host header names, if it does. Raises NotAnOperation, BadBucketName, KeyTooLong."""
    if host_bucket:
        bucket, raw_key = host_bucket, raw_path.removeprefix("/")
    else:
        raw_bucket, _, raw_key = raw_path.removeprefix("/").partition("/")
        bucket = unquote_to_bytes(raw_bucket).decode("utf-8", "replace") if "%" in raw_bucket else raw_bucket
    key = unquote_to_bytes(raw_key) if "%" in raw_key else raw_key.encode("utf-8", "surrogateescape")
    if len(key) > KEY_BYTES_MAX:
        raise KeyTooLong(len(key), KEY_BYTES_MAX)
    if key and not bucket:
        raise BadBucketName("")
    level = Level.OBJECT if key else Level.BUCKET if bucket else Level.SERVICE
    meant = _meant(names) if names else _NOTHING
    operation = find_operation(level, method, meant, is_copy)
    if operation is None:
        raise NotAnOperation(unknown_name(level, method, meant))
    return Target(operation, bucket, key)


def _meant(names: Collection[str]) -> frozenset[str]:
    return frozenset(name for name in names if name not in _IGNORED and not name.startswith(_SIGNATURE))


def bucket_of_host(host: str, domain: str) -> str:
    """The bucket that a Host header names in front of `domain` ("b.s3.example:9470"); empty when it names none."""
    name = host.lower()
    if not domain or name.endswith("]"):
        return ""
    name, _, port = name.partition(":")
    bucket = name.removesuffix("." + domain)
    return "" if bucket == name or (port and not port.isdigit()) else bucket


def block_key(namespace: Namespace, key: bytes) -> bytes:
    """The block that a path's key names: hex digits in a KV namespace, UTF-8 in an object namespace. Raises NoSuchBlock."""
    try:
        text = key.decode()
        return bytes.fromhex(text) if namespace.spec.kind == "kv" else key
    except ValueError as error:
        raise NoSuchBlock(namespace.spec.name, key.decode("utf-8", "replace")) from error


def writable_key(namespace: Namespace, key: bytes) -> bytes:
    """As `block_key`, for a block that is to be made. Raises BadRequest, which says what a key must be."""
    try:
        return block_key(namespace, key)
    except NoSuchBlock as error:
        wanted = "the hex digits of a prefix digest" if namespace.spec.kind == "kv" else "UTF-8"
        raise BadRequest(f"keys of namespace {namespace.spec.name} are {wanted}") from error


def key_text(namespace: Namespace, key: bytes) -> str:
    """How a block's key is shown in listings and read back in paths."""
    return key.hex() if namespace.spec.kind == "kv" else key.decode("utf-8", "surrogateescape")
