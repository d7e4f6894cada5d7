"""The bytes of a pack: a header, then records, each a block with all that is needed to publish it (docs/COLD.md). Pure.

A record stands alone: a ranged read of it is enough. Where records are is told by index objects (`index_object.py`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from mooncask.daemon.cold.sealing import CannotOpen, Piece, Sealing

VERSION = 1
KEY_BYTES_MAX = 1024
PACK_MAGIC = b"MCPACK\r\n"
INDEX_MAGIC = b"MCINDX\r\n"
_HEADER = struct.Struct("<8sHHI8s16sQ")
"""Magic, version, flags, parts, key id, incarnation, number; then xxh3_128 of these."""
CHECKSUM_BYTES = 16
HEADER_BYTES = _HEADER.size + CHECKSUM_BYTES
ENCRYPTED = 1
_RECORD = struct.Struct("<4sHHQ16s16sIIQ")
"""Magic, length of the key, of the parent's, of the payload, its checksum, namespace, depth, tokens, second of its publishing."""
_RECORD_MAGIC = b"MCBK"
RECORD_BYTES = _RECORD.size + CHECKSUM_BYTES
"""Of a record before key, parent and payload, the xxh3_128 of all before the payload included."""


class BadObject(Exception):
    """Bytes from the bucket that are not what we put there, or what this version can't read. The text says why."""


@dataclass(frozen=True, slots=True)
class ObjectHeader:
    """`parts`: records of a pack; packs of an index object."""

    magic: bytes
    incarnation: bytes
    number: int
    parts: int
    key_id: bytes

    @property
    def identity(self) -> bytes:
        """What the object's parts are bound to when they are encrypted."""
        return identity_of(self.magic, self.incarnation, self.number)


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """A block beside its payload. `checksum` is the payload's xxh3_128; `created` a wall clock second."""

    ns_id: bytes
    key: bytes
    size: int
    checksum: bytes
    parent: bytes = b""
    depth: int = 0
    tokens: int = 0
    created: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    facts: BlockFacts
    payload: memoryview


def identity_of(magic: bytes, incarnation: bytes, number: int) -> bytes:
    return magic + incarnation + number.to_bytes(8, "little")


def encode_header(header: ObjectHeader) -> bytes:
    flags = ENCRYPTED if any(header.key_id) else 0
    packed = _HEADER.pack(header.magic, VERSION, flags, header.parts, header.key_id, header.incarnation, header.number)
    return packed + xxhash.xxh3_128_digest(packed)


def decode_header(data: bytes | memoryview, magic: bytes) -> ObjectHeader:
    """Raises BadObject."""
    if len(data) < HEADER_BYTES:
        raise BadObject("shorter than a header")
    found, version, flags, parts, key_id, incarnation, number = _HEADER.unpack_from(data)
    if found != magic:
        raise BadObject("no object of ours")
    if xxhash.xxh3_128_digest(bytes(data[: _HEADER.size])) != bytes(data[_HEADER.size : HEADER_BYTES]):
        raise BadObject("its header has a wrong checksum")
    if version != VERSION or flags & ~ENCRYPTED or bool(flags) != any(key_id):
        raise BadObject(f"of version {version}, flags {flags}; this one reads version {VERSION}")
    return ObjectHeader(magic, incarnation, number, parts, key_id)


def record_length(facts: BlockFacts, sealing: Sealing) -> int:
    return RECORD_BYTES + len(facts.key) + len(facts.parent) + facts.size + sealing.extra_bytes


def encode_record(
    facts: BlockFacts, payload: memoryview, sealing: Sealing, identity: bytes, place: int
) -> Sequence[Piece]:
    """The record's bytes in pieces, of which the payload may be one as it is. `place`: where in the pack it will be."""
    head = _RECORD.pack(
        _RECORD_MAGIC,
        len(facts.key),
        len(facts.parent),
        facts.size,
        facts.checksum,
        facts.ns_id,
        facts.depth,
        facts.tokens,
        facts.created,
    )
    check = xxhash.xxh3_128_digest(head + facts.key + facts.parent)
    return sealing.seal(identity, place, [head + check + facts.key + facts.parent, payload])


def decode_record(data: bytes | memoryview, sealing: Sealing, key_id: bytes, identity: bytes, place: int) -> Record:
    """Raises BadObject for anything but a whole record. The payload's own checksum is not looked at here: who publishes it does."""
    try:
        plain = sealing.open(key_id, identity, place, data)
    except CannotOpen as error:
        raise BadObject(str(error)) from None
    if len(plain) < RECORD_BYTES:
        raise BadObject("shorter than a record")
    magic, key_length, parent_length, size, checksum, ns_id, depth, tokens, created = _RECORD.unpack_from(plain)
    if magic != _RECORD_MAGIC or not 0 < key_length <= KEY_BYTES_MAX or parent_length > KEY_BYTES_MAX:
        raise BadObject("no record of ours")
    start = RECORD_BYTES + key_length + parent_length
    if len(plain) != start + size:
        raise BadObject(f"a record of {start + size} bytes in {len(plain)}")
    names = bytes(plain[RECORD_BYTES:start])
    if xxhash.xxh3_128_digest(bytes(plain[: _RECORD.size]) + names) != bytes(plain[_RECORD.size : RECORD_BYTES]):
        raise BadObject("a record's header has a wrong checksum")
    facts = BlockFacts(ns_id, names[:key_length], size, checksum, names[key_length:], depth, tokens, created)
    return Record(facts, plain[start:])
