"""ARC, the adaptive replacement cache (Megiddo and Modha, FAST 2003), in bytes.

    used once:   recent   <- what left it: recent_ghosts
    used again:  frequent <- what left it: frequent_ghosts

`_target` (the paper's p) is how many bytes `recent` should have. A block that comes back soon after leaving `recent`
says that it was too small, one that comes back after leaving `frequent` says that it was too large.

Where this differs from the paper: room is made before the newcomer is known, so the tie rule "|T1| = p and the newcomer
is a ghost of T2" cannot be applied, and the target moves after the eviction and not before it. The ratio of the ghost
lists is rounded down, as most implementations do.
"""

from itertools import product

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import QUICK_THEN_ALL, Ghosts, SizedOrder
from mooncask.tiers.policies.policy import MayLeave


class ARC:
    """Balances recency and frequency by itself. O(1) a call. Remembers at most `capacity` bytes' worth of ghosts."""

    __slots__ = ("_capacity", "_frequent", "_frequent_ghosts", "_recent", "_recent_ghosts", "_target")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._target = 0
        self._recent, self._frequent = SizedOrder(), SizedOrder()
        self._recent_ghosts, self._frequent_ghosts = Ghosts(), Ghosts()

    def insert(self, access: Access) -> None:
        key = access.key
        if key in self._recent or key in self._frequent:
            self.touch(access)
        elif key in self._recent_ghosts:  # too small
            self._adapt(self._frequent_ghosts, self._recent_ghosts, access.size_bytes)
            self._recent_ghosts.discard(key)
            self._frequent.append(key, access.parent, access.size_bytes)
        elif key in self._frequent_ghosts:  # too large
            self._adapt(self._recent_ghosts, self._frequent_ghosts, -access.size_bytes)
            self._frequent_ghosts.discard(key)
            self._frequent.append(key, access.parent, access.size_bytes)
        else:
            self._recent.append(key, access.parent, access.size_bytes)
        self._shrink_ghosts()

    def touch(self, access: Access) -> None:
        if self._recent.discard(access.key) or access.key in self._frequent:
            self._frequent.append(access.key, access.parent, access.size_bytes)

    def remove(self, key: int) -> None:
        for part in (self._recent, self._frequent, self._recent_ghosts, self._frequent_ghosts):
            part.discard(key)

    def evict(self, may_leave: MayLeave) -> int | None:
        recent_first = len(self._recent) > 0 and self._recent.size_bytes > self._target
        sides = [(self._recent, self._recent_ghosts), (self._frequent, self._frequent_ghosts)]
        if not recent_first:
            sides.reverse()
        for ask_all, (order, ghosts) in product(QUICK_THEN_ALL, sides):
            departed = order.take(may_leave, ask_all)
            if departed is not None:
                ghosts.append(departed)
                return departed.key
        return None

    def __len__(self) -> int:
        return len(self._recent) + len(self._frequent)

    def __contains__(self, key: int) -> bool:
        return key in self._recent or key in self._frequent

    def _adapt(self, other: Ghosts, hit: Ghosts, step_bytes: int) -> None:
        """Move the target by `step_bytes`, or more when the ghosts that were hit are the rarer kind."""
        factor = max(1, other.size_bytes // max(1, hit.size_bytes))
        self._target = min(max(self._target + step_bytes * factor, 0), self._capacity)

    def _shrink_ghosts(self) -> None:
        self._recent_ghosts.shrink(max(0, self._capacity - self._recent.size_bytes))
        rest = 2 * self._capacity - self._recent.size_bytes - self._frequent.size_bytes
        self._frequent_ghosts.shrink(max(0, rest - self._recent_ghosts.size_bytes))
