"""2Q, the full version (Johnson and Shasha, VLDB 1994), in bytes.

    newcomer -> probation (FIFO, 25 %) -> leaves, its key stays in ghosts (50 %'s worth)
    back while in ghosts -> main (LRU)

A use while on probation changes nothing: correlated uses soon after the first say little.
"""

from itertools import product

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import QUICK_THEN_ALL, Ghosts, SizedOrder
from mooncask.tiers.policies.policy import MayLeave

PROBATION_SHARE = 0.25
GHOST_SHARE = 0.5


class TwoQ:
    """Keeps blocks that come back after they left probation. O(1) a call."""

    __slots__ = ("_ghost_bytes_max", "_ghosts", "_main", "_probation", "_probation_bytes_max")

    def __init__(self, capacity: int) -> None:
        self._probation_bytes_max = PROBATION_SHARE * capacity
        self._ghost_bytes_max = GHOST_SHARE * capacity
        self._probation, self._main, self._ghosts = SizedOrder(), SizedOrder(), Ghosts()

    def insert(self, access: Access) -> None:
        if access.key in self:
            self.touch(access)
            return
        queue = self._main if self._ghosts.discard(access.key) else self._probation
        queue.append(access.key, access.parent, access.size_bytes)

    def touch(self, access: Access) -> None:
        if access.key in self._main:
            self._main.append(access.key, access.parent, access.size_bytes)

    def remove(self, key: int) -> None:
        for part in (self._probation, self._main, self._ghosts):
            part.discard(key)

    def evict(self, may_leave: MayLeave) -> int | None:
        probation_first = self._probation.size_bytes > self._probation_bytes_max
        sides = (self._probation, self._main) if probation_first else (self._main, self._probation)
        for ask_all, order in product(QUICK_THEN_ALL, sides):
            departed = order.take(may_leave, ask_all)
            if departed is not None:
                if order is self._probation:
                    self._ghosts.append(departed)
                    self._ghosts.shrink(self._ghost_bytes_max)
                return departed.key
        return None

    def __len__(self) -> int:
        return len(self._probation) + len(self._main)

    def __contains__(self, key: int) -> bool:
        return key in self._probation or key in self._main
