"""Tells the policies what was used, off the reader's path: a hit only appends to a list, which is worked off in slices.

Chains are reported last block first, so that a block is always fresher than those that continue it and an order by
recency is leaf-first by itself.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.catalogue import NO_PARENT, Catalogue
from mooncask.tiers.copies import TierPolicies

SLICE = 128
"""Accesses told in one go: about half a millisecond in which the loop serves nobody."""
DELAY_SECONDS = 0.002
"""Right after the answer the same reader asks for more: whoever is served next should not wait for this."""
PENDING_EASY = 8 * SLICE
"""Above this there is no waiting between slices."""
PENDING_MAX = 1 << 16
"""Accesses that may wait; past that a reader works off as many as it adds."""


class Recency:
    """Collects accesses and passes them on in order."""

    def __init__(
        self,
        catalogue: Catalogue,
        policies: TierPolicies,
        call_later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._catalogue = catalogue
        self._policies = policies
        self._call_later = call_later
        self._clock = clock
        self.on_use: Callable[[int], None] | None = None
        """Also told of every use, after the policies."""
        self._pending: deque[tuple[Sequence[int | None], Hint]] = deque()
        self._pending_accesses = 0
        self._current: Iterator[tuple[int, Hint]] = iter(())
        self._scheduled = False

    def used(self, slots: Sequence[int | None], hint: Hint) -> None:
        """Blocks were read. Slots that die before they are told of are skipped then."""
        self._pending.append((slots, hint))
        self._pending_accesses += len(slots)
        if self._pending_accesses > PENDING_MAX:
            self.flush(len(slots))
        self._schedule()

    def flush(self, accesses_max: int | None = None) -> None:
        """Bring the policies up to date by at most so many accesses (None: all)."""
        remaining = self._pending_accesses if accesses_max is None else accesses_max
        while remaining > 0 and (use := self._next()) is not None:
            remaining -= 1
            slot, hint = use
            if self._catalogue.sequence[slot]:
                self._catalogue.hits[slot] += 1
                self._touch(slot, hint)

    def _work_off(self) -> None:
        self._scheduled = False
        self.flush(SLICE)
        if self._pending_accesses:
            self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._call_later(DELAY_SECONDS if self._pending_accesses <= PENDING_EASY else 0.0, self._work_off)

    def _next(self) -> tuple[int, Hint] | None:
        while (use := next(self._current, None)) is None:
            if not self._pending:
                return None
            slots, hint = self._pending.popleft()
            known = [slot for slot in reversed(slots) if slot is not None]
            self._pending_accesses -= len(slots) - len(known)
            self._current = ((slot, hint) for slot in known)
        self._pending_accesses -= 1
        return use

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
        """A block is new in DRAM. Its parent is not told as used: a frequency policy would count every block twice."""
        self._policies.dram.insert(self.access(slot, hint))

    def entered_nvme(self, slot: int) -> None:
        """As important there as in DRAM."""
        self._policies.nvme.insert(self.access(slot, self._policies.dram.hint_of(slot)))

    def entered_hbm(self, slot: int) -> None:
        """As important there as in DRAM."""
        self._policies.hbm.insert(self.access(slot, self._policies.dram.hint_of(slot)))

    def _touch(self, slot: int, hint: Hint) -> None:
        access = self.access(slot, hint)
        self._policies.dram.touch(access)
        self._policies.nvme.touch(access)
        self._policies.hbm.touch(access)
        if self.on_use is not None:
            self.on_use(slot)
