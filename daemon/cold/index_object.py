"""The bytes of an index object: which blocks are where in which packs, and what their namespaces are (docs/COLD.md). Pure.

One is written after each pack; now and then several become one. Never changed: a newer one takes an older one's place.
"""

from array import array
from collections.abc import Sequence
from sys import byteorder

import msgspec
import xxhash

from mooncask.daemon.cold.names import PACKS, parse_run
from mooncask.daemon.cold.pack import (
    CHECKSUM_BYTES,
    HEADER_BYTES,
    INDEX_MAGIC,
    KEY_BYTES_MAX,
    BadObject,
    ObjectHeader,
    decode_header,
    encode_header,
)
from mooncask.daemon.cold.sealing import CannotOpen, Sealing

PACKS_MAX = 1 << 16
BLOCKS_OF_A_PACK_MAX = 1 << 17
"""Twice what is ever gathered into one."""


class NamespaceEntry(msgspec.Struct, frozen=True, array_like=True):
    """What a namespace is, for nodes that do not have it: see `tiers.namespace.NamespaceSpec`."""

    ns_id: bytes
    name: str
    family: dict[str, str]
    shard: str
    tenant: str
    fingerprint: bytes


class PackEntry(msgspec.Struct, frozen=True, array_like=True):
    """One pack. Columns have an entry for each block; those that are bytes are u32, little endian."""

    incarnation: bytes
    number: int
    node: str
    """As in the pack's path."""
    size: int
    created: int
    key_id: bytes
    keys: list[bytes]
    owners: bytes
    """Which of the object's namespaces each block is of."""
    offsets: bytes
    lengths: bytes
    """Of whole records."""


class IndexBody(msgspec.Struct, frozen=True, array_like=True):
    namespaces: list[NamespaceEntry]
    packs: list[PackEntry]


def encode_index(incarnation: bytes, number: int, body: IndexBody, sealing: Sealing) -> bytes:
    header = ObjectHeader(INDEX_MAGIC, incarnation, number, len(body.packs), sealing.key_id)
    packed = msgspec.msgpack.encode(body)
    sealed = b"".join(sealing.seal(header.identity, HEADER_BYTES, [packed]))
    return encode_header(header) + xxhash.xxh3_128_digest(sealed) + sealed


def decode_index(data: bytes | memoryview, sealing: Sealing, incarnation: bytes, number: int) -> IndexBody:
    """Of the object that is called so. Raises BadObject for anything that is not whole, or another's."""
    header = decode_header(data, INDEX_MAGIC)
    if (header.incarnation, header.number) != (incarnation, number):
        raise BadObject("another index object than its name says")
    sealed = memoryview(data)[HEADER_BYTES + CHECKSUM_BYTES :]
    if xxhash.xxh3_128_digest(sealed) != bytes(data[HEADER_BYTES : HEADER_BYTES + CHECKSUM_BYTES]):
        raise BadObject("an index object with a wrong checksum")
    try:
        body = msgspec.msgpack.decode(
            sealing.open(header.key_id, header.identity, HEADER_BYTES, sealed), type=IndexBody
        )
    except CannotOpen as error:
        raise BadObject(str(error)) from None
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise BadObject(f"an index object that is none: {error}") from None
    if len(body.packs) != header.parts or len(body.packs) > PACKS_MAX:
        raise BadObject("an index object with another number of packs than it says")
    for pack in body.packs:
        _check(pack, len(body.namespaces))
    return body


def column(numbers: Sequence[int]) -> bytes:
    packed = array("I", numbers)
    if byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def numbers(packed: bytes) -> Sequence[int]:
    found = array("I")
    found.frombytes(packed)
    if byteorder == "big":
        found.byteswap()
    return found


def _check(pack: PackEntry, namespaces: int) -> None:
    count = len(pack.keys)
    if count > BLOCKS_OF_A_PACK_MAX or {len(pack.owners), len(pack.offsets), len(pack.lengths)} != {4 * count}:
        raise BadObject("a pack's columns are of different lengths")
    if len(pack.incarnation) != 16 or len(pack.key_id) != 8 or not 0 <= pack.number < 1 << 32:
        raise BadObject("a pack without a proper name")
    run = parse_run(f"{PACKS}{pack.node}/{pack.incarnation[8:].hex()}", PACKS)
    if run is None or run.incarnation != pack.incarnation:
        raise BadObject("a pack of a node that it can't be of")
    if any(not 0 < len(key) <= KEY_BYTES_MAX for key in pack.keys):
        raise BadObject("a key that is none")
    ends = zip(numbers(pack.offsets), numbers(pack.lengths), strict=True)
    if any(offset + length > pack.size for offset, length in ends):
        raise BadObject("a block beyond the end of its pack")
    if any(owner >= namespaces for owner in numbers(pack.owners)):
        raise BadObject("a block of a namespace that is not described")
