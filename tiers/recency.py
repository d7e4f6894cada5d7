"""Tells the policies what was used, off the reader's path: a hit only appends to a list, which is worked off later.

Chains are reported last block first, so that a block is always fresher than those that continue it and an order by
recency is leaf-first by itself.
"""

import time
from collections.abc import Callable, Sequence

from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.catalogue import NO_PARENT, Catalogue
from mooncask.tiers.copies import TierPolicies

PENDING_MAX = 1024
"""Batches that may wait; past that the reader does the work itself."""


class Recency:
    """Collects accesses and passes them on in order."""

    def __init__(
        self, catalogue: Catalogue, policies: TierPolicies, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalogue = catalogue
        self._policies = policies
        self._clock = clock
        self.on_use: Callable[[int], None] | None = None
        """Also told of every use, after the policies."""
        self._pending: list[tuple[Sequence[int | None], Hint]] = []

    def used(self, slots: Sequence[int | None], hint: Hint) -> None:
        """Blocks were read. Slots that died before `flush` are skipped there."""
        self._pending.append((slots, hint))
        if len(self._pending) >= PENDING_MAX:
            self.flush()

    def flush(self) -> None:
        """Bring the policies up to date; called before every eviction and now and then."""
        pending, self._pending = self._pending, []
        for slots, hint in pending:
            for slot in reversed(slots):
                if slot is not None and self._catalogue.sequence[slot]:
                    self._catalogue.hits[slot] += 1
                    self._touch(slot, hint)

    def access(self, slot: int, hint: Hint = NO_HINT) -> Access:
        """What a policy is told of one use of this block."""
        catalogue = self._catalogue
        parent = catalogue.parent_slot[slot]
        return Access(
            key=slot,
            parent=None if parent == NO_PARENT else parent,
            depth=catalogue.depth[slot],
            size_bytes=catalogue.size[slot],
            time_seconds=self._clock(),
            hint=hint,
        )

    def entered_dram(self, slot: int, hint: Hint = NO_HINT) -> None:
        """A block is new in DRAM. Its parent counts as used, since whoever extends a chain has the chain."""
        self._policies.dram.insert(self.access(slot, hint))
        parent = self._catalogue.parent_slot[slot]
        if parent != NO_PARENT and parent in self._policies.dram:
            self._policies.dram.touch(self.access(parent, hint))

    def entered_nvme(self, slot: int) -> None:
        self._policies.nvme.insert(self.access(slot))

    def entered_hbm(self, slot: int) -> None:
        self._policies.hbm.insert(self.access(slot))

    def _touch(self, slot: int, hint: Hint) -> None:
        access = self.access(slot, hint)
        self._policies.dram.touch(access)
        self._policies.nvme.touch(access)
        self._policies.hbm.touch(access)
        if self.on_use is not None:
            self.on_use(slot)
