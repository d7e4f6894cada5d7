"""What the index holds, for the store's catalogue at a start: decoded one by one, without a second copy in memory."""

from collections.abc import Iterator

import msgspec

from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.nvme.index import Index
from mooncask.tiers.nvme.index_entry import BLOCK_PREFIX, KEY_START, PARENT_START, numbered, unpack_fields
from mooncask.tiers.nvme.record import record_length


class RecoveredBlock(msgspec.Struct, frozen=True, gc=False):
    """A block that was durable when the tier was opened."""

    record: BlockRecord
    extent: Extent
    ttl_deadline: float
    """Wall clock seconds; 0 = none."""
    pins: int


def recovered_blocks(index: Index, segment_bytes: int) -> Iterator[RecoveredBlock]:
    """Every block of the index. A loop without calls where it can be: a start has 100,000 and more of them."""
    nvme = TierName.NVME
    for key, value in index.pairs(BLOCK_PREFIX):
        segment, offset, generation, size, sequence, checksum, depth, tokens, ttl, pins, created, parent = (
            unpack_fields(value)
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
        extent = Extent(nvme, segment * segment_bytes + offset, record_length(size), generation, size)
        yield RecoveredBlock(record, extent, ttl, pins)
