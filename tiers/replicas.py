"""Blocks that other nodes have as well: which of them may be forgotten first, and which not before somebody was asked. Pure.

    noted ──(cold, asked: another node keeps it)──> spare ──(room is needed)──> forgotten
      │  └──(asked: it is the last copy)──> no replica: leaves as any other block, by the policy's order
      └──(used since it was looked at)──> looked at again later; a spare one is taken back

Who asks the other nodes, ahead of need, is `daemon/peers/spares.py`. A node that is alone notes nothing, and pays nothing.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from mooncask.tiers.catalogue import NOWHERE, Catalogue

LOOKS_MAX = 64
"""Spares that one eviction looks at."""
NOTED_LOOKS_MAX = 1024
"""Noted blocks, and spares that may have been used, that one call looks at: about a millisecond."""
REST_SECONDS = 1.0
"""A block is looked at no sooner after it was noted or found in use."""


@dataclass(slots=True)
class _Copy:
    """Of one version of a block; slots are used again for others."""

    sequence: int
    hits: int
    since_seconds: float
    size: int = 0
    on_nvme: bool = False
    """As it was when it became a spare one."""


class Replicas:
    """Of one store; belongs to the event loop's thread. Costs about 200 bytes a block that others have."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._noted: OrderedDict[int, _Copy] = OrderedDict()
        self._spare: OrderedDict[int, _Copy] = OrderedDict()
        self._spare_bytes = {False: 0, True: 0}
        self.asked_first = False
        """Whether a noted block must not be forgotten before the other nodes were asked: set while there is somebody who asks, and
        whom one can ask."""
        self.on_wanted: Callable[[bool], None] = lambda at_once: None
        """Called when spares get fewer, and with True when room is needed that only they can give: it must only take note."""

    def __len__(self) -> int:
        """About how many blocks others have too."""
        return len(self._noted) + len(self._spare)

    @property
    def spares(self) -> int:
        return len(self._spare)

    # --- what is known ---

    def note(self, slot: int, now_seconds: float) -> None:
        """Another node has this block too, or has it now."""
        if slot in self._spare and self._lives(slot, self._spare[slot]):
            return
        self._drop_spare(slot)
        self._noted[slot] = _Copy(self._catalogue.sequence[slot], self._catalogue.hits[slot], now_seconds)
        self._noted.move_to_end(slot)

    def coldest(
        self,
        most: int,
        most_bytes: int,
        fits: Callable[[int], bool],
        now_seconds: float,
        at_once: bool = False,
    ) -> list[int]:
        """Up to `most` noted blocks of about `most_bytes` that `fits` takes and that nobody has used lately: those that continue others
        first. They stay noted until `released` or `is_last` is said of them. `at_once`: also those that were noted or used only now."""
        found: list[int] = []
        for _ in range(min(len(self._noted), NOTED_LOOKS_MAX)):
            slot, copy = next(iter(self._noted.items()))
            if not self._lives(slot, copy):
                del self._noted[slot]
                continue
            if copy.since_seconds + (0.0 if at_once else REST_SECONDS) > now_seconds:
                break  # all that follow are younger, or were looked at just now
            self._noted.move_to_end(slot)
            used, copy.hits = self._catalogue.hits[slot] != copy.hits, self._catalogue.hits[slot]
            copy.since_seconds = now_seconds
            if (at_once or not used) and fits(slot):
                found.append(slot)
                most_bytes -= self._catalogue.size[slot]
                if len(found) == most or most_bytes <= 0:
                    break
        return sorted(found, key=lambda slot: -self._catalogue.depth[slot])

    def released(self, slot: int, sequence: int) -> None:
        """Another node keeps it, and relies on this one no more: it may go."""
        copy = self._noted.pop(slot, None)
        if copy is not None and copy.sequence == sequence and self._lives(slot, copy):
            copy.size, copy.on_nvme = self._catalogue.size[slot], self._catalogue.nvme_offset[slot] != NOWHERE
            self._spare[slot] = copy
            self._spare_bytes[copy.on_nvme] += copy.size

    def is_last(self, slot: int, sequence: int) -> None:
        """No other node has it."""
        for known, drop in ((self._noted, self._noted.pop), (self._spare, self._drop_spare)):
            copy = known.get(slot)
            if copy is not None and copy.sequence == sequence:
                drop(slot)

    def spares_longest_unasked(self, most: int) -> list[int]:
        """They go to the end: next time it is the turn of others."""
        found = list(islice(self._spare, most))
        for slot in found:
            self._spare.move_to_end(slot)
        return [slot for slot in found if self._lives(slot, self._spare[slot])]

    def used_spares(self) -> list[int]:
        """Some of those that were used since they were released: they are noted again, and the other nodes must be told. Each call
        looks at the next ones."""
        seen = list(islice(self._spare.items(), NOTED_LOOKS_MAX))
        for slot, copy in seen:
            if self._lives(slot, copy):
                self._spare.move_to_end(slot)
            else:
                self._drop_spare(slot)
        return [slot for slot, copy in seen if self._is_used(slot, copy) and self._take_back(slot)]

    def is_spare(self, slot: int) -> bool:
        copy = self._spare.get(slot)
        return copy is not None and self._lives(slot, copy)

    def spare_bytes(self, on_nvme: bool) -> int:
        """About: those that left in another way count until somebody looks at them."""
        return self._spare_bytes[on_nvme]

    def take_all_back(self) -> list[int]:
        """What was released is no longer sure, or no longer needed."""
        return [slot for slot in list(self._spare) if self._take_back(slot)]

    # --- what may leave ---

    def holds_back(self, slot: int) -> bool:
        """Whether the other nodes must be asked before this block is forgotten."""
        if not self.asked_first:
            return False
        copy = self._noted.get(slot)
        return copy is not None and self._lives(slot, copy)

    def fell_short(self) -> None:
        """Nothing could leave: whether blocks that are held back may is to be asked now."""
        if self.asked_first and self._noted:
            self.on_wanted(True)

    def take(self, may_leave: Callable[[int], bool]) -> int | None:
        """A spare block that may leave; it is a spare no more, the caller forgets it."""
        if self._noted:
            self.on_wanted(False)
        for _ in range(min(LOOKS_MAX, len(self._spare))):
            slot, copy = next(iter(self._spare.items()))
            if not self._lives(slot, copy):
                self._drop_spare(slot)
            elif self._is_used(slot, copy) or not may_leave(slot):
                self._spare.move_to_end(slot)
            else:
                self._drop_spare(slot)
                return slot
        return None

    def _lives(self, slot: int, copy: _Copy) -> bool:
        return self._catalogue.sequence[slot] == copy.sequence

    def _is_used(self, slot: int, copy: _Copy) -> bool:
        return self._catalogue.hits[slot] != copy.hits

    def _take_back(self, slot: int) -> bool:
        copy = self._drop_spare(slot)
        if copy is None or not self._lives(slot, copy):
            return False
        copy.hits = self._catalogue.hits[slot]
        self._noted[slot] = copy
        return True

    def _drop_spare(self, slot: int) -> _Copy | None:
        copy = self._spare.pop(slot, None)
        if copy is not None:
            self._spare_bytes[copy.on_nvme] -= copy.size
        return copy
