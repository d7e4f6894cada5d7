"""The words of the storage engine: what a block is, where its bytes lie, what a policy is told.

Not here: how the wire spells these (`client/wire.py`), how the NVMe log lays them out (`tiers/nvme/record.py`).
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum

import msgspec

ALIGNMENT = 4096
"""Every extent in every tier starts at and occupies a multiple of this many bytes (O_DIRECT's unit)."""


def aligned(size_bytes: int) -> int:
    """`size_bytes` rounded up to the next multiple of ALIGNMENT."""
    return -(-size_bytes // ALIGNMENT) * ALIGNMENT


class TierName(IntEnum):
    """Where bytes are, fastest first. The numbers travel on the wire."""

    HBM = 1
    DRAM = 2
    NVME = 3
    PEER = 4
    """At another node: no tier of this one's store."""
    COLD = 5
    """In the bucket below NVMe: no tier of this one's store either."""


class WriteMode(StrEnum):
    """When a namespace's blocks go to NVMe: at once, when DRAM evicts them, or never."""

    WRITE_THROUGH = "write_through"
    WRITE_BACK = "write_back"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Hint:
    """What an engine may tell about a block; every field may be left at its default."""

    tenant: str = ""
    priority: int = 128
    """0 is the first to leave, 255 the last."""
    conversation: int = 0
    """64-bit id of a conversation, 0 = unknown."""
    turn: int = 0
    expected_output: int = 0
    """Tokens the answer is expected to have, 0 = unknown."""
    public: bool = False


NO_HINT = Hint()


@dataclass(frozen=True, slots=True)
class Access:
    """One access to one block, as an eviction policy sees it.

    `key` is whatever the caller uses to name a block (the daemon: catalogue slots; the simulator: block ids);
    `parent` is the key of the block before it in its chain, None at the root or when unknown; `depth` counts from 0;
    `time_seconds` only ever grows.
    """

    key: int
    parent: int | None = None
    depth: int = 0
    size_bytes: int = 1
    time_seconds: float = 0.0
    hint: Hint = NO_HINT


class BlockRecord(msgspec.Struct, frozen=True, gc=False):
    """What is known of one stored copy of a block, and what travels with its bytes.

    `checksum` is the xxh3_128 digest (16 bytes, big endian) of this copy's payload: it belongs to the copy and not to
    the key, since equal tokens may have KV that differs in its low bits. `sequence` grows with every publish of this
    store and is never reused. `namespace` is the namespace's incarnation number, never reused either.
    """

    namespace: int
    key: bytes
    size: int
    checksum: bytes
    sequence: int
    parent: bytes = b""
    depth: int = 0
    tokens: int = 0
    created: int = 0
    """Wall clock seconds of its publishing."""
    attributes: bytes = b""
    """What the daemon keeps beside the payload; the store stores it and looks at none of it."""

    @property
    def name(self) -> str:
        """The key as people read it: text if it is printable text, else hex."""
        return printable_key(self.key)


def printable_key(key: bytes) -> str:
    """A key for messages: a 16-byte digest in hex, other keys as text where they are printable."""
    if len(key) == 16:
        return key.hex()
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return key.hex()
    return text if text.isprintable() else key.hex()


@dataclass(slots=True, eq=False)
class Extent:
    """A place for one block's bytes in one tier: [offset, offset + length), `length` a multiple of ALIGNMENT.

    `generation` tells two uses of the same place apart. `references` counts who may read or write the place (the
    catalogue, leases, copies in flight); the place is free for reuse when it reaches zero, never before.
    `namespace`, `key` and `sequence` say what a memory tier has committed there (an empty key: nothing yet): kept here,
    since a record of its own and a dictionary for it cost 200 bytes a block.
    """

    tier: TierName
    offset: int
    length: int
    generation: int
    size: int = 0
    references: int = 1
    namespace: int = 0
    key: bytes = b""
    sequence: int = 0
