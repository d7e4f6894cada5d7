"""Blocks that left the node: which, when, from where and why. A list that grows until somebody takes it.

`Copies` notes each departure; who wants to explain misses takes them regularly. Nobody there: the oldest are forgotten.
"""

from collections import Counter, deque
from collections.abc import Callable
from typing import NamedTuple

DEPARTURES_MAX = 1 << 16
"""Of those that nobody has taken yet."""


class Departure(NamedTuple):
    """One block that left. `seconds` is the wall clock; `tier` a TierName, the fastest that had it; `reason` one of

    evicted, expired, deleted, quarantined, replaced, lost_dirty (could not be written down before it had to go), withdrawn.
    """

    seconds: float
    namespace: int
    key: bytes
    tier: int
    reason: str
    size: int


class Departures:
    """Those that nobody has taken yet, oldest first."""

    def __init__(self, most: int = DEPARTURES_MAX) -> None:
        self._noted: deque[tuple[float, int, bytes, int, str, int]] = deque(maxlen=most)
        """Fields of `Departure`s, which are made of them when they are taken: eviction should not wait even for that."""
        self.noted = 0
        """Ever since the start."""
        self.observers: list[Callable[[int, bytes], None]] = []
        """Called with namespace and key in the step in which the block leaves: they must only take note."""
        self.eviction_observers: list[Callable[[int, bytes], None]] = []
        """As `observers`, only for blocks that had to go for others."""
        self.by_reason: Counter[tuple[str, int]] = Counter()
        """(reason, last tier) -> how many, since the start."""

    def note(self, seconds: float, namespace: int, key: bytes, tier: int, reason: str, size: int) -> None:
        """See `Departure`."""
        self._noted.append((seconds, namespace, key, tier, reason, size))
        self.by_reason[(reason, tier)] += 1
        self.noted += 1
        for observer in self.observers:
            observer(namespace, key)
        if reason in ("evicted", "lost_dirty"):
            for observer in self.eviction_observers:
                observer(namespace, key)

    def take(self, most: int) -> list[Departure]:
        """Up to `most` of them; they are no longer here then."""
        return [Departure._make(self._noted.popleft()) for _ in range(min(most, len(self._noted)))]

    def __len__(self) -> int:
        return len(self._noted)
