"""Which keys somebody is about to put, and who waits for them.

Pure: producers and waiters are whatever objects the caller uses; methods return the waiters that must be told.
A producer is an open reservation, or an announcement (`expect`) that ends with its time or its process. A waiter stays
until its key is published, until the last producer of the key is gone, or until it leaves.
"""

import heapq
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

Waiter = TypeVar("Waiter", bound=Hashable)


class Key(NamedTuple):
    """A key in its namespace (by incarnation number)."""

    namespace: int
    key: bytes


class Layers(NamedTuple):
    """Layers [0, done) of `total` are written."""

    done: int
    total: int


NO_LAYERS = Layers(0, 0)
ENDS_SPARE = 1024
"""Ends of promises that were renewed or kept; more of them than this beside the live ones are thrown out."""


@dataclass(slots=True)
class _Arrival(Generic[Waiter]):
    producers: dict[Hashable, Layers] = field(default_factory=dict)
    waiters: dict[Waiter, None] = field(default_factory=dict)


@dataclass(slots=True)
class Arrivals(Generic[Waiter]):
    """The keys under way. A key is here exactly while it has a producer; only then can it have waiters."""

    _arrivals: dict[Key, _Arrival[Waiter]] = field(default_factory=dict)
    _promises: dict[Hashable, dict[Key, float]] = field(default_factory=dict)
    """Producer -> key -> when its promise ends."""
    _ends: list[tuple[float, int, Hashable, Key]] = field(default_factory=list)
    """A heap of the ends of promises, kept or not: what is not in `_promises` with this very time means nothing."""
    _number: int = 0
    promised: int = 0
    """How many promises with a time there are."""
    on_change: Callable[[Key], None] | None = None
    """Called after a producer of the key came, got further or left; it must only take note."""

    def announce(self, key: Key, producer: Hashable, layers_total: int = 0) -> None:
        """`producer` will put `key`. Announcing twice is once."""
        self._arrivals.setdefault(key, _Arrival()).producers.setdefault(producer, Layers(0, layers_total))
        self._changed(key)

    def expect(self, key: Key, producer: Hashable, until_seconds: float) -> None:
        """As `announce`, but the promise ends at `until_seconds` unless it is renewed."""
        self.announce(key, producer)
        promises = self._promises.setdefault(producer, {})
        self.promised += key not in promises
        promises[key] = until_seconds
        self._number += 1  # so that the heap never compares producers
        heapq.heappush(self._ends, (until_seconds, self._number, producer, key))
        if len(self._ends) > 2 * self.promised + ENDS_SPARE:
            self._ends = [end for end in self._ends if self._holds(end)]
            heapq.heapify(self._ends)

    def advance(self, key: Key, producer: Hashable, done: int) -> tuple[Layers, list[Waiter]]:
        """`producer` has written layers [0, done): who must hear of it. Going back changes nothing and tells nobody."""
        arrival = self._arrivals.get(key)
        if arrival is None or producer not in arrival.producers:
            return NO_LAYERS, []
        before = arrival.producers[producer]
        if done <= before.done:
            return before, []
        now = arrival.producers[producer] = Layers(done, before.total)
        self._changed(key)
        return now, list(arrival.waiters)

    def published(self, key: Key) -> list[Waiter]:
        """The block is readable: all waiters of the key, and no promise of it is left."""
        arrival = self._arrivals.pop(key, None)
        if arrival is None:
            return []
        for producer in arrival.producers:
            self._end_promise(producer, key)
        self._changed(key)
        return list(arrival.waiters)

    def gone(self, key: Key, producer: Hashable) -> list[Waiter]:
        """`producer` will not put `key`: the waiters, if nobody else will."""
        arrival = self._arrivals.get(key)
        if arrival is None:
            return []
        arrival.producers.pop(producer, None)
        self._end_promise(producer, key)
        waiters: list[Waiter] = []
        if not arrival.producers:
            del self._arrivals[key]
            waiters = list(arrival.waiters)
        self._changed(key)
        return waiters

    def wait(self, key: Key, waiter: Waiter) -> Layers | None:
        """Registers a waiter and returns how far the furthest producer is; None when nobody is putting the key."""
        arrival = self._arrivals.get(key)
        if arrival is None:
            return None
        arrival.waiters[waiter] = None
        return max(arrival.producers.values())

    def leave(self, key: Key, waiter: Waiter) -> None:
        """The waiter waits no more; one that is not there is ignored."""
        if (arrival := self._arrivals.get(key)) is not None:
            arrival.waiters.pop(waiter, None)

    def expire(self, now_seconds: float) -> list[Waiter]:
        """Ends the promises whose time is over: waiters that nobody else will serve."""
        waiters: list[Waiter] = []
        while (next_seconds := self.next_expiry()) is not None and next_seconds <= now_seconds:
            _, _, producer, key = heapq.heappop(self._ends)
            waiters += self.gone(key, producer)
        return waiters

    def next_expiry(self) -> float | None:
        """When the next promise ends."""
        while self._ends and not self._holds(self._ends[0]):
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def promises(self, producer: Hashable) -> list[Key]:
        """Keys that `producer` expects to put."""
        return list(self._promises.get(producer, ()))

    def _changed(self, key: Key) -> None:
        if self.on_change is not None:
            self.on_change(key)

    def _holds(self, end: tuple[float, int, Hashable, Key]) -> bool:
        until_seconds, _, producer, key = end
        return self._promises.get(producer, {}).get(key) == until_seconds

    def _end_promise(self, producer: Hashable, key: Key) -> None:
        promises = self._promises.get(producer)
        if promises is None or promises.pop(key, None) is None:
            return
        self.promised -= 1
        if not promises:
            del self._promises[producer]

    def producers(self, key: Key) -> Mapping[Hashable, Layers]:
        """Who puts the key, or has promised to, and how far each is."""
        arrival = self._arrivals.get(key)
        return {} if arrival is None else arrival.producers

    def is_promised(self, key: Key) -> bool:
        """Whether somebody has said that it will put the key, and has no place for it yet."""
        return any(key in self._promises.get(producer, ()) for producer in self.producers(key))

    def is_written(self, key: Key) -> bool:
        """Whether somebody who puts the key has a place to write it to: more than a promise."""
        return any(key not in self._promises.get(producer, ()) for producer in self.producers(key))

    @property
    def waiting(self) -> int:
        """How many waits are under way."""
        return sum(len(arrival.waiters) for arrival in self._arrivals.values())

    def __contains__(self, key: Key) -> bool:
        return key in self._arrivals

    def __len__(self) -> int:
        return len(self._arrivals)
