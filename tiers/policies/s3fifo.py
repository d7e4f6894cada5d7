"""S3-FIFO (Yang et al., SOSP 2023): three FIFO queues, in bytes.

    newcomer -> small (10 %) -> used twice since it entered -> main (90 %), goes round while it is used
                              -> else leaves, its key stays in ghosts; back from there -> main

Parameters as published: `small` is 10 % of the capacity, the use counter stops at 3, a block moves to `main` with more
than one use after its entry, its counter starts again from 0 there, `ghosts` holds as many bytes' worth as `main`.
"""

from itertools import product

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import QUICK_THEN_ALL, Ghosts, SizedOrder
from mooncask.tiers.policies.policy import MayLeave

SMALL_SHARE = 0.1
USES_MAX = 3
USES_TO_STAY = 2


class S3FIFO:
    """Lets one-time blocks leave quickly and keeps those used again. O(1) a call, amortised."""

    __slots__ = ("_ghost_bytes_max", "_ghosts", "_main", "_small", "_small_bytes_max", "_uses")

    def __init__(self, capacity: int) -> None:
        self._small_bytes_max = SMALL_SHARE * capacity
        self._ghost_bytes_max = capacity - self._small_bytes_max
        self._small, self._main, self._ghosts = SizedOrder(), SizedOrder(), Ghosts()
        self._uses: dict[int, int] = {}

    def insert(self, access: Access) -> None:
        if access.key in self._uses:
            self.touch(access)
            return
        queue = self._main if self._ghosts.discard(access.key) else self._small
        queue.append(access.key, access.parent, access.size_bytes)
        self._uses[access.key] = 0

    def touch(self, access: Access) -> None:
        uses = self._uses.get(access.key)
        if uses is not None and uses < USES_MAX:
            self._uses[access.key] = uses + 1

    def remove(self, key: int) -> None:
        if self._uses.pop(key, None) is not None and not self._small.discard(key):
            self._main.discard(key)
        self._ghosts.discard(key)

    def evict(self, may_leave: MayLeave) -> int | None:
        sides = [self._evict_small, self._evict_main]
        if self._small.size_bytes < self._small_bytes_max:
            sides.reverse()
        for ask_all, evict_from in product(QUICK_THEN_ALL, sides):
            key = evict_from(may_leave, ask_all)
            if key is not None:
                return key
        return None

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, key: int) -> bool:
        return key in self._uses

    def _evict_small(self, may_leave: MayLeave, ask_all: bool) -> int | None:
        uses = self._uses
        while departed := self._small.take(lambda key: uses[key] >= USES_TO_STAY or may_leave(key), ask_all):
            if uses[departed.key] >= USES_TO_STAY:
                uses[departed.key] = 0
                self._main.append(*departed)
                continue
            del uses[departed.key]
            self._ghosts.append(departed)
            self._ghosts.shrink(self._ghost_bytes_max)
            return departed.key
        return None

    def _evict_main(self, may_leave: MayLeave, ask_all: bool) -> int | None:
        uses = self._uses
        while departed := self._main.take(lambda key: uses[key] > 0 or may_leave(key), ask_all):
            if uses[departed.key] > 0:
                uses[departed.key] -= 1
                self._main.append(*departed)
                continue
            del uses[departed.key]
            return departed.key
        return None
