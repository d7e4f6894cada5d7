"""The events as vLLM encodes them: a batch is a msgpack array, each event in it a map whose "type" is the class's name. Pure.

vLLM before 0.32 wrote events as arrays too, name first, and routers of that time read nothing else: `encode` does either.
Not here: optional fields that say nothing of a store's blocks; readers take their defaults.
"""

import msgspec

MEDIUM = "CPU"
"""Where a block is, in vLLM's words: host memory, of which NVMe is the store's own extension."""


class Event(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What became of blocks. Hashes are unsigned 64-bit numbers, see `block_hash`."""


class BlockStored(Event, frozen=True):
    """Blocks of one chain in order; `token_ids` are those of all of them, `parent_block_hash` stands before the first."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    """Tokens a block."""
    lora_id: int | None = None
    medium: str | None = MEDIUM
    lora_name: str | None = None


class BlockRemoved(Event, frozen=True):
    block_hashes: list[int]
    medium: str | None = MEDIUM


class AllBlocksCleared(Event, frozen=True):
    """Whatever was said before: nothing of it holds any more."""


def encode(seconds: float, events: list[Event], arrays: bool) -> bytes:
    """A batch: wall clock, events, and 0, the data-parallel rank, which routers want even of who has none."""
    shaped = [[type(event).__name__, *msgspec.structs.astuple(event)] for event in events] if arrays else events
    return msgspec.msgpack.encode([seconds, shaped, 0])


def block_hash(key: bytes) -> int:
    """The low 64 bits of a KV block's key, big endian.

    Routers keep 64 bits: llm-d makes this very number of longer hashes, Dynamo takes no other form than a number.
    """
    return int.from_bytes(key[-8:], "big")
