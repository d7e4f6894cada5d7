"""How fast ever growing sums grow: a snapshot a second, kept for a window, and the difference to now."""

from collections import Counter, deque
from collections.abc import Hashable, Mapping
from typing import Generic, NamedTuple, TypeVar

Thing = TypeVar("Thing", bound=Hashable)


class _Snapshot(NamedTuple, Generic[Thing]):
    seconds: float
    sums: dict[Thing, int]


class Rates(Generic[Thing]):
    """Of one set of sums. The caller takes a snapshot about once a second."""

    def __init__(self, window_seconds: float, began_seconds: float) -> None:
        self.window_seconds = window_seconds
        self._snapshots: deque[_Snapshot[Thing]] = deque([_Snapshot(began_seconds, {})])

    def snapshot(self, sums: Mapping[Thing, int], seconds: float) -> None:
        self._snapshots.append(_Snapshot(seconds, dict(sums)))
        while len(self._snapshots) > 1 and self._snapshots[1].seconds <= seconds - self.window_seconds:
            self._snapshots.popleft()

    def of(self, sums: Mapping[Thing, int], seconds: float) -> dict[Thing, float]:
        """Growth a second, from the snapshot that is about a window old until now."""
        oldest = self._snapshots[0]
        elapsed = max(1e-3, seconds - oldest.seconds)
        return {thing: (total - oldest.sums.get(thing, 0)) / elapsed for thing, total in sums.items()}


class Prefixes(NamedTuple):
    """Tokens of prefixes that were asked for and found."""

    requested: int
    hit: int


class RecentPrefixes:
    """Tokens of prefixes by namespace over the last minutes, in buckets of which the oldest falls out as a whole."""

    def __init__(self, bucket_seconds: float, buckets: int) -> None:
        self._bucket_seconds = bucket_seconds
        self._buckets: deque[tuple[float, Counter[int], Counter[int]]] = deque(maxlen=buckets)

    def add(self, namespace: int, requested: int, hit: int, seconds: float) -> None:
        if not self._buckets or seconds - self._buckets[-1][0] >= self._bucket_seconds:
            self._buckets.append((seconds, Counter(), Counter()))
        _, asked, found = self._buckets[-1]
        asked[namespace] += requested
        found[namespace] += hit

    def of(self, namespace: int, seconds: float) -> Prefixes:
        """Sums over the window that ends now."""
        oldest = seconds - self._bucket_seconds * (self._buckets.maxlen or 0)
        recent = [(asked, found) for began, asked, found in self._buckets if began > oldest]
        return Prefixes(sum(asked[namespace] for asked, _ in recent), sum(found[namespace] for _, found in recent))
