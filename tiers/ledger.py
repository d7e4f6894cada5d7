"""Who lies where in one tier's memory: extents, their generations and what was committed in them. It moves no bytes."""

import secrets
from collections.abc import Iterator

from mooncask.errors import CorruptBlock
from mooncask.tiers.allocator import Allocator
from mooncask.tiers.block import BlockRecord, Extent, TierName, aligned, printable_key


class Ledger:
    """The bookkeeping that memory tiers share; each of them owns one. Loop thread only.

    Generations count from a random 62-bit start, so a stale extent of this process or of one before it matches nothing.
    What only a bug of ours can do (a double free, a commit into a freed extent) is an assertion; what a caller can ask
    in good faith (a block that is not there any more) is CorruptBlock.
    """

    def __init__(self, tier: TierName, limit: int = 0, first_generation: int | None = None) -> None:
        self.allocator = Allocator(limit)
        self._tier = tier
        self._generation = secrets.randbits(62) if first_generation is None else first_generation
        self._extents: dict[int, Extent] = {}

    def reserve(self, size: int) -> Extent | None:
        """A new extent for `size` bytes, or None when no hole holds it."""
        offset = self.allocator.allocate(size)
        if offset is None:
            return None
        extent = Extent(self._tier, offset, aligned(size), self._generation, size)
        self._generation += 1
        self._extents[offset] = extent
        return extent

    def holds(self, extent: Extent) -> bool:
        """Whether this use of the place goes on: reserved or committed, not freed."""
        current = self._extents.get(extent.offset)
        return current is not None and current.generation == extent.generation

    def check_reserved(self, extent: Extent, record: BlockRecord) -> None:
        """Assert that `record` may be committed into `extent` now."""
        assert self.holds(extent), f"{extent} was freed"
        assert not extent.key, f"{extent} is committed already"
        assert 0 <= record.size <= extent.length, f"{record.size} bytes into {extent}"

    def publish(self, extent: Extent, record: BlockRecord) -> None:
        """The bytes are there: the block can be read from now on."""
        self.check_reserved(extent, record)
        extent.namespace, extent.key, extent.sequence = record.namespace, record.key, record.sequence

    def check_committed(self, extent: Extent, record: BlockRecord) -> None:
        """Raise CorruptBlock unless just this block, key and sequence included, was committed in just this extent."""
        if not self.holds(extent) or not (found := self._extents[extent.offset]).key:
            raise CorruptBlock(record.name, self._tier.name.lower(), "nothing is committed at its place")
        if (found.namespace, found.key, found.sequence) != (record.namespace, record.key, record.sequence):
            there = f"block {printable_key(found.key)} #{found.sequence}"
            raise CorruptBlock(record.name, self._tier.name.lower(), f"{there} lies at its place")

    def free(self, extent: Extent) -> None:
        """End this use of the place."""
        assert self.holds(extent), f"{extent} was freed before"
        del self._extents[extent.offset]
        self.allocator.free(extent.offset, extent.length)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        """(namespace, key) of what is committed, as of now: later changes do not disturb the iteration."""
        return iter([(extent.namespace, extent.key) for extent in self._extents.values() if extent.key])
