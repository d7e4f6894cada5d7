"""From DRAM to HBM: blocks that are read often get a copy on the device. A copy there is always one more, never the last."""

from collections.abc import Callable, Coroutine

from mooncask.tiers.block import Extent
from mooncask.tiers.copies import Copies
from mooncask.tiers.flows import EVICT_HBM, PROMOTE_HBM
from mooncask.tiers.hbm import HbmTier
from mooncask.tiers.recency import Recency
from mooncask.tiers.sketch import FrequencySketch

UNDER_WAY_MAX = 8
"""Copies to the device at a time; what is hot comes by again."""


class HbmPromotion:
    """Told of every use of a block; copies it to HBM when it has been used `promote_after` times."""

    def __init__(
        self,
        hbm: HbmTier,
        copies: Copies,
        recency: Recency,
        sketch: FrequencySketch,
        promote_after: int,
        spawn: Callable[[Coroutine[None, None, None]], None],
    ) -> None:
        self._hbm = hbm
        self._copies = copies
        self._catalogue = copies.catalogue
        self._recency = recency
        self._sketch = sketch
        self.promote_after = promote_after
        """May be changed at any time, as `BringUp.promote_after`."""
        self._spawn = spawn
        self._under_way: set[int] = set()

    def used(self, slot: int) -> None:
        key = self._catalogue.keys[slot]
        self._sketch.add(key)
        if slot in self._catalogue.hbm or slot not in self._catalogue.dram or slot in self._under_way:
            return
        if self._sketch.estimate(key) >= self.promote_after and len(self._under_way) < UNDER_WAY_MAX:
            self._under_way.add(slot)
            self._spawn(self._promote(slot, self._catalogue.sequence[slot]))

    async def _promote(self, slot: int, sequence: int) -> None:
        [source] = self._copies.hold([slot])
        place = self._make_place(self._catalogue.size[slot]) if source is not None else None
        try:
            if source is not None and place is not None:
                await self._hbm.commit(place, self._catalogue.record(slot), self._copies.dram.view(source))
                if self._catalogue.sequence[slot] == sequence:
                    self._catalogue.place_hbm(slot, place)
                    self._recency.entered_hbm(slot)
                    self._copies.flows.add(PROMOTE_HBM, self._catalogue.size[slot])
                    place = None
        finally:
            self._under_way.discard(slot)
            if place is not None:
                self._hbm.free(place)
            if source is not None:
                self._copies.drop(source)

    def _make_place(self, size: int) -> Extent | None:
        """Evicts colder blocks from HBM until the new one fits; None when it can't."""
        while (place := self._hbm.reserve(size)) is None:
            victim = self._copies.policies.hbm.evict(self._catalogue.hbm.__contains__)
            if victim is None:
                return None
            self._copies.flows.add(EVICT_HBM, self._catalogue.size[victim])
            self._copies.drop_hbm(victim)
        return place
