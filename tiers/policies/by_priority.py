"""A policy in three bands: blocks of low priority leave first, those of high priority last, each band by the same policy.

A block is as important as its latest use says: a request without a hint that shares a block of a low one keeps it for itself.
"""

from collections.abc import Callable

from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.policies.policy import EvictionPolicy, MayLeave, Ordered

NEUTRAL = NO_HINT.priority
LOW, HIGH = 0, 255
_HINTS = (Hint(priority=LOW), NO_HINT, Hint(priority=HIGH))


class ByPriority:
    """`make` makes the policy of one band. As `EvictionPolicy`; costs what its bands cost."""

    __slots__ = ("_bands",)

    def __init__(self, make: Callable[[], EvictionPolicy]) -> None:
        self._bands = (make(), make(), make())

    def hint_of(self, key: int) -> Hint:
        """A hint of the band that the block is in; that of no hint for one that is not here."""
        return next((hint for hint, band in zip(_HINTS, self._bands, strict=True) if key in band), NO_HINT)

    def insert(self, access: Access) -> None:
        chosen = self._chosen(access)
        for band in self._bands:
            if band is not chosen and access.key in band:
                band.remove(access.key)
        chosen.insert(access)

    def touch(self, access: Access) -> None:
        chosen = self._chosen(access)
        if access.key in chosen:
            chosen.touch(access)
        elif access.key in self:
            self.insert(access)

    def remove(self, key: int) -> None:
        for band in self._bands:
            band.remove(key)

    def evict(self, may_leave: MayLeave) -> int | None:
        for band in self._bands:
            if len(band) and (key := band.evict(may_leave)) is not None:
                return key
        return None

    def __len__(self) -> int:
        return sum(len(band) for band in self._bands)

    def __contains__(self, key: int) -> bool:
        return any(key in band for band in self._bands)

    def _chosen(self, access: Access) -> EvictionPolicy:
        priority = access.hint.priority
        return self._bands[0 if priority < NEUTRAL else 1 if priority == NEUTRAL else 2]


class OrderedByPriority(ByPriority):
    """The same of policies that can tell the order beforehand."""

    __slots__ = ()

    def soonest(self, most: int) -> list[int]:
        found: list[int] = []
        for band in self._bands:
            if isinstance(band, Ordered) and len(found) < most:
                found += band.soonest(most - len(found))
        return found


def by_priority(make: Callable[[], EvictionPolicy]) -> ByPriority:
    """The policy that `make` makes, in bands."""
    return OrderedByPriority(make) if isinstance(make(), Ordered) else ByPriority(make)
