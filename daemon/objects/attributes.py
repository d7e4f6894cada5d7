"""What is kept beside an object's bytes: its size as a whole, ETag, headers, metadata and checksums. Pure.

Attributes lie in the header of the object's block (docs/FORMAT.md), so they survive what the block survives. How S3 spells
them in headers: `daemon/http/s3/object_headers.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from mooncask.errors import MetadataTooLarge, NoSuchBlock, PreconditionFailed
from mooncask.tiers.block import BlockRecord, printable_key
from mooncask.tiers.requests import BlockInfo, Condition

ATTRIBUTES_BYTES_MAX = 2816
"""Encoded. With a key of 1,024 bytes this still fits into a record's header, also in the record of an upload."""
METADATA_BYTES_MAX = 2048
"""Of names and values that the user chose, as S3 counts them."""


class ObjectAttributes(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """As an array: a later version appends fields and reads what this one wrote."""

    size: int = 0
    """Bytes of the whole object."""
    etag: str = ""
    """Without quotes; empty: the payload's xxh3_128 and "-1"."""
    modified: float = 0.0
    """Wall clock seconds."""
    data: bytes = b""
    """16 bytes under which the parts of a long object lie; empty: the block's payload is the object."""
    content_type: str = ""
    headers: dict[str, str] = {}
    """Standard headers by lower-case name: cache-control, content-disposition and so on."""
    metadata: dict[str, str] = {}
    """The user's, by the name behind x-amz-meta-."""
    checksums: dict[str, str] = {}
    """Algorithm (crc32, sha256, ...) -> base64."""
    checksum_type: str = ""
    """FULL_OBJECT, or COMPOSITE: of the parts' checksums."""
    parts: int = 0
    """Of an object that was uploaded in parts: how many."""


class ObjectInfo(NamedTuple):
    """One object as it is now. `etag` has no quotes; `attributes` is None for a block that was put without any."""

    key: bytes
    size: int
    etag: str
    attributes: ObjectAttributes | None
    modified_seconds: float
    block: BlockInfo

    @property
    def data(self) -> bytes:
        return self.attributes.data if self.attributes is not None else b""


_decoder = msgspec.msgpack.Decoder(ObjectAttributes)


def encode_attributes(attributes: ObjectAttributes) -> bytes:
    """Raises MetadataTooLarge."""
    user = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.metadata.items())
    if user > METADATA_BYTES_MAX:
        raise MetadataTooLarge(user, METADATA_BYTES_MAX)
    encoded = msgspec.msgpack.encode(attributes)
    if len(encoded) > ATTRIBUTES_BYTES_MAX:
        raise MetadataTooLarge(len(encoded), ATTRIBUTES_BYTES_MAX)
    return encoded


def decode_attributes(encoded: bytes) -> ObjectAttributes | None:
    return _decoder.decode(encoded) if encoded else None


def object_info(block: BlockInfo) -> ObjectInfo:
    attributes = decode_attributes(block.attributes)
    if attributes is None:
        return ObjectInfo(block.key, block.size, checksum_etag(block.checksum), None, block.created_seconds, block)
    etag = attributes.etag or checksum_etag(block.checksum)
    return ObjectInfo(block.key, attributes.size, etag, attributes, attributes.modified, block)


def whole_size(block: BlockInfo) -> int:
    """Bytes of the object that this block is, or stands for."""
    attributes = decode_attributes(block.attributes)
    return block.size if attributes is None else attributes.size


def checksum_etag(checksum: bytes, parts: int = 1) -> str:
    """The "-" says to S3 clients that it is no MD5."""
    return f"{checksum.hex()}-{parts}"


def _record_etag(record: BlockRecord) -> str:
    attributes = decode_attributes(record.attributes)
    return (attributes.etag if attributes is not None else "") or checksum_etag(record.checksum)


@dataclass(frozen=True, slots=True)
class PutCondition:
    """When an object may be put: `if_match` only over one with that ETag (without quotes; "*": any), `if_none_match` only
    where there is none ("*") or none with that ETag. Empty: no condition."""

    if_match: str = ""
    if_none_match: str = ""

    def __bool__(self) -> bool:
        return bool(self.if_match or self.if_none_match)

    def check(self, namespace: str, key: bytes, etag: str | None) -> None:
        """`etag`: of what stands under the key, None = nothing. Raises PreconditionFailed, and NoSuchBlock where If-Match finds
        nothing at all, as S3 does."""
        found = f'its ETag is "{etag}"'
        if self.if_match and etag is None:
            raise NoSuchBlock(namespace, printable_key(key))
        if self.if_match and etag is not None and not names_etag(self.if_match, etag):
            raise PreconditionFailed(printable_key(key), f"If-Match: {self.if_match}", found)
        if self.if_none_match and etag is not None and names_etag(self.if_none_match, etag):
            raise PreconditionFailed(printable_key(key), f"If-None-Match: {self.if_none_match}", found)

    def at_publish(self, namespace: str, key: bytes) -> Condition | None:
        """As the store asks it, in the step that publishes."""
        if not self:
            return None

        def check(have: BlockRecord | None) -> None:
            self.check(namespace, key, None if have is None else _record_etag(have))

        return check


ALWAYS = PutCondition()


def names_etag(header: str, etag: str) -> bool:
    """Whether a header's list of ETags ("a", W/"b", or *) has this one."""
    if header.strip() == "*":
        return True
    return etag in {part.strip().removeprefix("W/").strip('"') for part in header.split(",")}
