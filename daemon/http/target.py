"""What a request asks for: its S3 operation, bucket and key, from the method and the raw target. Pure.

An operation that is not here is refused by name: a PUT with ?partNumber must never be taken for a plain PUT. New
operations are new rows of the table below.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from urllib.parse import unquote_to_bytes

from mooncask.errors import BadRequest, NoSuchBlock
from mooncask.tiers.namespace import Namespace

KEY_BYTES_MAX = 1024
_IGNORED = frozenset({"x-id"})
_LIST = frozenset(
    {
        "list-type",
        "prefix",
        "max-keys",
        "continuation-token",
        "start-after",
        "delimiter",
        "encoding-type",
        "fetch-owner",
    }
)


class Operation(Enum):
    LIST_BUCKETS = "ListBuckets"
    CREATE_BUCKET = "CreateBucket"
    HEAD_BUCKET = "HeadBucket"
    DELETE_BUCKET = "DeleteBucket"
    LIST_OBJECTS = "ListObjectsV2"
    PUT_OBJECT = "PutObject"
    GET_OBJECT = "GetObject"
    HEAD_OBJECT = "HeadObject"
    DELETE_OBJECT = "DeleteObject"


_OF_SERVICE = {"GET": (Operation.LIST_BUCKETS, frozenset[str]())}
_OF_BUCKET = {
    "PUT": (Operation.CREATE_BUCKET, frozenset[str]()),
    "HEAD": (Operation.HEAD_BUCKET, frozenset[str]()),
    "DELETE": (Operation.DELETE_BUCKET, frozenset[str]()),
    "GET": (Operation.LIST_OBJECTS, _LIST),
}
_OF_OBJECT = {
    "PUT": (Operation.PUT_OBJECT, frozenset[str]()),
    "GET": (Operation.GET_OBJECT, frozenset[str]()),
    "HEAD": (Operation.HEAD_OBJECT, frozenset[str]()),
    "DELETE": (Operation.DELETE_OBJECT, frozenset[str]()),
}


@dataclass(frozen=True, slots=True)
class Target:
    """`operation` is None for what this API does not know; `key` is the decoded path behind the bucket."""

    operation: Operation | None
    bucket: str
    key: bytes


def parse_target(method: str, raw_path: str, query: Mapping[str, str]) -> Target:
    """`raw_path` is percent-encoded as it came. Raises BadRequest for a key that no block can have."""
    bucket, _, raw_key = raw_path.removeprefix("/").partition("/")
    key = unquote_to_bytes(raw_key)
    if len(key) > KEY_BYTES_MAX:
        raise BadRequest(f"a key of {len(key)} bytes; at most {KEY_BYTES_MAX} are allowed")
    table = _OF_OBJECT if key else _OF_BUCKET if bucket else _OF_SERVICE
    operation, allowed = table.get(method, (None, frozenset[str]()))
    if operation is Operation.LIST_OBJECTS and query.get("list-type") != "2":
        operation = None
    if not allowed.issuperset(query.keys() - _IGNORED):
        operation = None
    return Target(operation, unquote_to_bytes(bucket).decode("utf-8", "replace"), key)


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
