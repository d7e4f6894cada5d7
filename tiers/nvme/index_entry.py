"""What the index says about a block, about a segment, and what may be changed in it. Pure data; docs/FORMAT.md has the table.

b"b" namespace u32 BE, key   -> BlockEntry
b"n" namespace u32 BE        -> the namespace's blob (a second copy, beside NAMESPACES)
b"s" segment u32 BE          -> SegmentState
b"m" name                    -> meta: store, sequence, complete
"""

import struct
from dataclasses import dataclass, replace
from enum import IntEnum

from mooncask.tiers.block import BlockRecord
from mooncask.tiers.nvme.record import Place, record_length

BLOCK_PREFIX = b"b"
NAMESPACE_PREFIX = b"n"
SEGMENT_PREFIX = b"s"
META_STORE = b"mstore"
META_SEQUENCE = b"msequence"
META_COMPLETE = b"mcomplete"

_NUMBER = struct.Struct(">I")
_SEQUENCE = struct.Struct("<Q")
# segment, offset, generation, size, sequence, checksum, depth, tokens, time to live until (wall seconds), pins, created,
# parent length; then parent and attributes
_ENTRY = struct.Struct("<IQQQQ16sIIdIQH")
_SEGMENT = struct.Struct("<QBI")
KEY_START = len(BLOCK_PREFIX) + _NUMBER.size
"""Where a block's own key begins in the index's."""


def block_key(namespace: int, key: bytes) -> bytes:
    return BLOCK_PREFIX + _NUMBER.pack(namespace) + key


def namespace_blocks(namespace: int) -> bytes:
    """What the keys of all blocks of a namespace begin with."""
    return block_key(namespace, b"")


def namespace_key(namespace: int) -> bytes:
    return NAMESPACE_PREFIX + _NUMBER.pack(namespace)


def segment_key(segment: int) -> bytes:
    return SEGMENT_PREFIX + _NUMBER.pack(segment)


def numbered(key: bytes) -> int:
    """The namespace or segment that a key of the index is about."""
    (number,) = _NUMBER.unpack_from(key, 1)
    return int(number)


def pack_sequence(sequence: int) -> bytes:
    return _SEQUENCE.pack(sequence)


def unpack_sequence(value: bytes) -> int:
    (sequence,) = _SEQUENCE.unpack(value)
    return int(sequence)


@dataclass(frozen=True, slots=True)
class BlockEntry:
    """Where a block lies, and what its header says, so that a start reads no segment."""

    place: Place
    record: BlockRecord
    ttl_deadline: float = 0.0
    """Wall clock seconds; 0 = none."""
    pins: int = 0

    @property
    def length(self) -> int:
        return record_length(self.record.size)

    def pack(self) -> bytes:
        place, record = self.place, self.record
        fixed = _ENTRY.pack(
            place.segment,
            place.offset,
            place.generation,
            record.size,
            record.sequence,
            record.checksum,
            record.depth,
            record.tokens,
            self.ttl_deadline,
            self.pins,
            record.created,
            len(record.parent),
        )
        return fixed + record.parent + record.attributes

    def moved(self, place: Place) -> "BlockEntry":
        return replace(self, place=place)

    def with_meta(self, ttl_deadline: float, pins: int) -> "BlockEntry":
        return replace(self, ttl_deadline=ttl_deadline, pins=pins)


def unpack_entry(key: bytes, value: bytes) -> BlockEntry:
    """The entry under the index's key `key`."""
    segment, offset, generation, size, sequence, checksum, depth, tokens, ttl, pins, created, parent = unpack_fields(
        value
    )
    end = PARENT_START + parent
    record = BlockRecord(
        numbered(key),
        key[KEY_START:],
        size,
        checksum,
        sequence,
        value[PARENT_START:end],
        depth,
        tokens,
        created,
        value[end:],
    )
    return BlockEntry(Place(segment, offset, generation), record, ttl, pins)


unpack_fields = _ENTRY.unpack_from
"""An entry's fields as a tuple, in the order of the table above, for a start, which looks at every entry twice."""
PARENT_START = _ENTRY.size
"""Where an entry's parent begins; its attributes are what follows that."""


class Use(IntEnum):
    """What the index knows a segment to be. It learns FREE and OPEN before it is true, SEALED some time after."""

    FREE = 0
    """Holds no records of this generation."""
    OPEN = 1
    """May hold records that the index does not know."""
    SEALED = 2
    """Every record in it was acknowledged, or given up by its writer."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """What the index knows of a segment."""

    generation: int
    use: Use
    tombstones: int
    """Tombstone records in it; of an open one perhaps not all."""

    def pack(self) -> bytes:
        return _SEGMENT.pack(self.generation, self.use, self.tombstones)

    @classmethod
    def unpack(cls, value: bytes) -> "SegmentState":
        generation, use, tombstones = _SEGMENT.unpack(value)
        return cls(generation, Use(use), tombstones)


# --- changes, applied in order, all of a batch or none --------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Put:
    """A new copy; without effect when the index has one of the same or a higher sequence."""

    entry: BlockEntry


@dataclass(frozen=True, slots=True)
class Move:
    """The same copy at another place; without effect when the index no longer has it at `old`."""

    namespace: int
    key: bytes
    old: Place
    new: Place


@dataclass(frozen=True, slots=True)
class Forget:
    """This copy is gone; a newer one stays."""

    namespace: int
    key: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class Delete:
    """This copy and any older one is gone."""

    namespace: int
    key: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class SetMeta:
    """Time to live and pins of a copy; without effect when the index has another one."""

    namespace: int
    key: bytes
    sequence: int
    ttl_deadline: float
    pins: int


@dataclass(frozen=True, slots=True)
class DropNamespace:
    namespace: int


@dataclass(frozen=True, slots=True)
class Set:
    """One pair of the tables that are not about blocks; None removes it."""

    key: bytes
    value: bytes | None


Change = Put | Move | Forget | Delete | SetMeta | DropNamespace | Set
