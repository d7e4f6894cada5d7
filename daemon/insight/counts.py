"""Frequent things among very many, in little memory: counts that fade, of those that come often.

Misra and Gries' summary, thinned out in batches, with weights that grow by time in place of counts that shrink: what is
counted n times a second for long has a count of about n * HALF_LIFE / ln 2. What is told is at most too small.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

HALF_LIFE_SECONDS = 60.0
_WEIGHT_MAX = 1e12
_HALVES_MAX = 1000.0

Thing = TypeVar("Thing", bound=Hashable)


class Frequent(NamedTuple, Generic[Thing]):
    thing: Thing
    rate: float
    """How often a second, faded over the last minutes."""


class FadingCounts(Generic[Thing]):
    """Keeps at most 2 * `most` things. Times may be of any clock that only grows."""

    def __init__(self, most: int, began_seconds: float) -> None:
        self._most = most
        self._zero_seconds = began_seconds
        self._counts: dict[Thing, float] = {}

    def add(self, things: Mapping[Thing, int], seconds: float) -> None:
        """How often each was seen, all at about this time."""
        counts, weight = self._counts, self._weight(seconds)
        for thing, count in things.items():
            counts[thing] = counts.get(thing, 0.0) + count * weight
            if len(counts) > 2 * self._most:
                self._thin_out()
                counts = self._counts

    def most_frequent(self, count: int, seconds: float) -> list[Frequent[Thing]]:
        """The `count` most frequent, most frequent first."""
        scale = math.log(2) / HALF_LIFE_SECONDS / self._weight(seconds)
        found = sorted(self._counts.items(), key=lambda item: item[1], reverse=True)[:count]
        return [Frequent(thing, weight * scale) for thing, weight in found]

    def __contains__(self, thing: Thing) -> bool:
        return thing in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    def start_anew_if_needed(self, seconds: float) -> None:
        """To be called now and then: keeps the weights within what a float can tell apart."""
        weight = self._weight(seconds)
        if weight > _WEIGHT_MAX:
            self._counts = {thing: count / weight for thing, count in self._counts.items() if count / weight > 1e-6}
            self._zero_seconds = seconds

    def _weight(self, seconds: float) -> float:
        halves = (seconds - self._zero_seconds) / HALF_LIFE_SECONDS
        return float(2.0 ** min(halves, _HALVES_MAX))  # a machine may sleep for days

    def _thin_out(self) -> None:
        """All counts minus the one that is the `most` + first: so many different others were seen for each of it."""
        least = sorted(self._counts.values(), reverse=True)[self._most]
        self._counts = {thing: count - least for thing, count in self._counts.items() if count > least}
