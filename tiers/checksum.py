"""The one checksum of payloads, xxh3_128, and what a reader checks. Prefix digests are another thing (`client/hashing.py`)."""

import xxhash

from mooncask.errors import BadRequest, CorruptBlock
from mooncask.tiers.block import BlockRecord, TierName

CHECKSUM_BYTES = 16


def payload_checksum(payload: memoryview) -> bytes:
    """The xxh3_128 digest of a C-contiguous buffer: 16 bytes, big endian.

    The one-shot form releases the GIL while it runs, so the event loop goes on beside it.
    """
    return xxhash.xxh3_128_digest(payload)


def check_digest(tier: TierName, record: BlockRecord, digest: bytes) -> None:
    """Raise CorruptBlock when the bytes that were found have another digest than the record."""
    if digest != record.checksum:
        raise CorruptBlock(record.name, tier.name.lower(), f"checksum {digest.hex()}, not {record.checksum.hex()}")


def check_room(record: BlockRecord, into: memoryview) -> None:
    """Raise BadRequest when `into` can't hold the payload."""
    if into.nbytes < record.size:
        raise BadRequest(f"block {record.name} has {record.size} bytes; the buffer to read it into has {into.nbytes}")
