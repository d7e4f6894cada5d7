"""How records look on disk: the tables of docs/FORMAT.md as named constants, packing and unpacking. Nothing here does I/O.

A segment file is two copies of its own header (one block of 4 KiB each), then records. A record is a 4 KiB header and,
for a block, the payload padded to 4 KiB right behind it. All integers are little endian.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import xxhash

from mooncask.errors import BadRequest
from mooncask.tiers.block import ALIGNMENT, BlockRecord, aligned

FORMAT_VERSION = 2
HEADER_BYTES = ALIGNMENT
SEGMENT_HEADER_COPIES = 2
SEGMENT_DATA_START = SEGMENT_HEADER_COPIES * HEADER_BYTES
"""Where a segment's first record begins."""

KEY_BYTES_MAX = 1024
PARENT_BYTES_MAX = 1024

RECORD_MAGIC = b"MCASKREC"
SEGMENT_MAGIC = b"MCASKSEG"
KIND_BLOCK = 1
KIND_TOMBSTONES = 2

_CHECKSUM_OFFSET = 16
_CHECKSUM_BYTES = 16
_NO_CHECKSUM = bytes(_CHECKSUM_BYTES)

# magic, version, kind, zero, header checksum, store, segment, namespace, generation, offset, length, size, sequence,
# payload checksum, depth, tokens, key length, parent length, attributes' length, zero, created
_RECORD = struct.Struct("<8sHHI16s16sIIQQQQQ16sIIHHHHQ")
RECORD_BODY_OFFSET = _RECORD.size
"""Where key, parent and attributes (of a block) or the entries (of tombstones) begin."""
BODY_BYTES_MAX = HEADER_BYTES - RECORD_BODY_OFFSET
"""What key, parent and attributes of one block may have together."""

# magic, version, zero, zero, header checksum, store, segment, zero, generation
_SEGMENT = struct.Struct("<8sHHI16s16sIIQ")

# namespace, key length, sequence, horizon
_TOMBSTONE = struct.Struct("<IHQQ")


def record_length(size: int) -> int:
    """Bytes that a block of `size` payload bytes occupies on disk: header and padded payload."""
    return HEADER_BYTES + aligned(size)


def check_header_room(key: int, parent: int, attributes: int) -> None:
    """Raises BadRequest when key, parent and attributes of these lengths don't fit into a block's header."""
    if key > KEY_BYTES_MAX or parent > PARENT_BYTES_MAX:
        raise BadRequest(f"a key has {key} bytes (parent {parent}); at most {KEY_BYTES_MAX} are stored")
    if key + parent + attributes > BODY_BYTES_MAX:
        raise BadRequest(
            f"key, parent and attributes of a block have {key + parent + attributes} bytes; {BODY_BYTES_MAX} are stored"
        )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record lies and in which use of its segment."""

    segment: int
    offset: int
    """Bytes from the start of the segment file to the record's header."""
    generation: int


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Says that no copy of a key up to `sequence` is alive, whatever older segments hold.

    `horizon` is the highest segment generation given out when it was written: no segment of a higher generation can
    hold such a copy, so the tombstone may go when no segment of a generation up to `horizon` is left.
    """

    namespace: int
    key: bytes
    sequence: int
    horizon: int


@dataclass(frozen=True, slots=True)
class Header:
    """A record's header that passed its checksum."""

    place: Place
    length: int
    block: BlockRecord | None
    tombstones: tuple[Tombstone, ...] = ()


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    segment: int
    generation: int


def pack_block(into: memoryview, store: bytes, place: Place, record: BlockRecord) -> None:
    """Write a block's header into `into` (HEADER_BYTES, writable)."""
    key_end = RECORD_BODY_OFFSET + len(record.key)
    parent_end = key_end + len(record.parent)
    attributes_end = parent_end + len(record.attributes)
    _clear(into)
    _RECORD.pack_into(
        into,
        0,
        RECORD_MAGIC,
        FORMAT_VERSION,
        KIND_BLOCK,
        0,
        _NO_CHECKSUM,
        store,
        place.segment,
        record.namespace,
        place.generation,
        place.offset,
        record_length(record.size),
        record.size,
        record.sequence,
        record.checksum,
        record.depth,
        record.tokens,
        len(record.key),
        len(record.parent),
        len(record.attributes),
        0,
        record.created,
    )
    into[RECORD_BODY_OFFSET:key_end] = record.key
    into[key_end:parent_end] = record.parent
    into[parent_end:attributes_end] = record.attributes
    _seal(into)


def pack_tombstones(into: memoryview, store: bytes, place: Place, tombstones: Iterable[Tombstone]) -> None:
    """Write one tombstone record into `into` (HEADER_BYTES, writable); `split_tombstones` says how many fit."""
    _clear(into)
    position, count = RECORD_BODY_OFFSET, 0
    for tombstone in tombstones:
        _TOMBSTONE.pack_into(
            into, position, tombstone.namespace, len(tombstone.key), tombstone.sequence, tombstone.horizon
        )
        position += _TOMBSTONE.size
        into[position : position + len(tombstone.key)] = tombstone.key
        position += len(tombstone.key)
        count += 1
    fields = (0, place.generation, place.offset, HEADER_BYTES, count, 0, bytes(16), 0, 0, 0, 0, 0, 0, 0)
    _RECORD.pack_into(
        into, 0, RECORD_MAGIC, FORMAT_VERSION, KIND_TOMBSTONES, 0, _NO_CHECKSUM, store, place.segment, *fields
    )
    _seal(into)


def split_tombstones(tombstones: Iterable[Tombstone]) -> Iterator[list[Tombstone]]:
    """The tombstones in lists that fit into one record each."""
    fitting: list[Tombstone] = []
    room = HEADER_BYTES - RECORD_BODY_OFFSET
    for tombstone in tombstones:
        need = _TOMBSTONE.size + len(tombstone.key)
        if need > room:
            yield fitting
            fitting, room = [], HEADER_BYTES - RECORD_BODY_OFFSET
        fitting.append(tombstone)
        room -= need
    if fitting:
        yield fitting


def unpack(buffer: memoryview, store: bytes) -> Header | str:
    """The header in `buffer` (HEADER_BYTES), or why it is none of this store's."""
    if bytes(buffer[: len(RECORD_MAGIC)]) != RECORD_MAGIC:
        return "no record header"
    if not _sealed(buffer):
        return "wrong header checksum"
    fields = _RECORD.unpack_from(buffer)
    _, version, kind, _, _, owner, segment, namespace, generation, offset, length, size, sequence, *rest = fields
    if version != FORMAT_VERSION:
        return f"record format {version}"
    if owner != store:
        return "header of another store"
    place = Place(segment, offset, generation)
    if kind == KIND_TOMBSTONES:
        return Header(place, length, None, tuple(_unpack_tombstones(buffer, size)))
    checksum, depth, tokens, key_bytes, parent_bytes, attributes_bytes, _, created = rest
    key_end = RECORD_BODY_OFFSET + key_bytes
    parent_end = key_end + parent_bytes
    key, parent = bytes(buffer[RECORD_BODY_OFFSET:key_end]), bytes(buffer[key_end:parent_end])
    attributes = bytes(buffer[parent_end : parent_end + attributes_bytes])
    block = BlockRecord(namespace, key, size, checksum, sequence, parent, depth, tokens, created, attributes)
    return Header(place, length, block)


def _unpack_tombstones(buffer: memoryview, count: int) -> Iterator[Tombstone]:
    position = RECORD_BODY_OFFSET
    for _ in range(count):
        namespace, key_bytes, sequence, horizon = _TOMBSTONE.unpack_from(buffer, position)
        position += _TOMBSTONE.size
        yield Tombstone(namespace, bytes(buffer[position : position + key_bytes]), sequence, horizon)
        position += key_bytes


def pack_segment(into: memoryview, store: bytes, header: SegmentHeader) -> None:
    """Write a segment's own header into `into` (HEADER_BYTES, writable)."""
    _clear(into)
    fields = (_NO_CHECKSUM, store, header.segment, 0, header.generation)
    _SEGMENT.pack_into(into, 0, SEGMENT_MAGIC, FORMAT_VERSION, 0, 0, *fields)
    _seal(into)


def unpack_segment(buffer: memoryview, store: bytes) -> SegmentHeader | None:
    """A segment's own header, or None when `buffer` holds none of this store's."""
    if bytes(buffer[: len(SEGMENT_MAGIC)]) != SEGMENT_MAGIC or not _sealed(buffer):
        return None
    _, version, _, _, _, owner, segment, _, generation = _SEGMENT.unpack_from(buffer)
    if version != FORMAT_VERSION or owner != store:
        return None
    return SegmentHeader(segment, generation)


def mismatch(header: Header, place: Place, record: BlockRecord) -> str:
    """What in `header` differs from the record expected at `place`; empty when all is as it should be.

    A disk may write to the wrong place or not at all: a header can be whole and still be another's.
    """
    if header.place != place:
        found = header.place
        return f"misdirected: header of segment {found.segment}, offset {found.offset}, generation {found.generation}"
    if header.block is None:
        return "a tombstone in its place"
    if (header.block.namespace, header.block.key) != (record.namespace, record.key):
        return f"block {header.block.name} in its place"
    if header.block.size != record.size:
        return f"length {header.block.size} instead of {record.size}"
    if header.block.sequence != record.sequence:
        return f"sequence {header.block.sequence} instead of {record.sequence}"
    if header.block.checksum != record.checksum:
        return "another copy's checksum in its header"
    return ""


def _clear(into: memoryview) -> None:
    into[:] = bytes(HEADER_BYTES)


def _seal(into: memoryview) -> None:
    into[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES] = xxhash.xxh3_128_digest(into)


def _sealed(buffer: memoryview) -> bool:
    """Whether the header's checksum, taken with its own field zero, is right."""
    whole = bytearray(buffer)
    found = bytes(whole[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES])
    whole[_CHECKSUM_OFFSET : _CHECKSUM_OFFSET + _CHECKSUM_BYTES] = _NO_CHECKSUM
    return found == xxhash.xxh3_128_digest(whole)
