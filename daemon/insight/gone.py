"""What is remembered of blocks that left: the newest exactly, older ones as "it was here once", the rest not at all.

The store notes each departure in passing (`tiers/departures.py`); `absorb` takes them in slices, off the way of eviction.
A departure that is pushed out of the log goes into a filter of bits, which answers "may have been here" or "was not here".
"""

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import NamedTuple

from xxhash import xxh3_128_intdigest

from mooncask.tiers.departures import Departure, Departures

ABSORB_MAX = 2048
"""Departures taken in one go: about three milliseconds when all of them push an older one out."""
FILTER_BITS = 1 << 23
"""A mebibyte. With FILTER_KEYS in it, 2 of 100 keys that were never here look as if they had been."""
FILTER_KEYS = 1_000_000
_HASHES = 4
_SHIFT = 32


class Name(NamedTuple):
    namespace: int
    key: bytes


class KeyFilter:
    """A set of keys that forgets nothing and sometimes says yes for no."""

    def __init__(self, began_seconds: float) -> None:
        self.began_seconds = began_seconds
        self.keys = 0
        self._bits = bytearray(FILTER_BITS // 8)

    def add(self, name: Name) -> None:
        self.keys += 1
        for place in _places(name):
            self._bits[place >> 3] |= 1 << (place & 7)

    def __contains__(self, name: Name) -> bool:
        return all(self._bits[place >> 3] & 1 << (place & 7) for place in _places(name))


def _places(name: Name) -> list[int]:
    digest = xxh3_128_intdigest(name.key, name.namespace)
    return [(digest >> _SHIFT * i) % FILTER_BITS for i in range(_HASHES)]


class Gone:
    """The departures of one daemon's life. Owned by the event loop's thread."""

    def __init__(self, departures: Departures, most: int, began_seconds: float) -> None:
        """`most` departures are remembered exactly, at about 400 bytes each. `began_seconds` is the wall clock's now."""
        self._departures = departures
        self._most = most
        self._last: OrderedDict[Name, Departure] = OrderedDict()
        self._filters: deque[KeyFilter] = deque(maxlen=2)
        self._absorbed = 0
        self.began_seconds = began_seconds
        """When this daemon began."""
        self.exact_since_seconds = began_seconds
        """Whatever left since then is in the log, unless the same key left again later."""
        self.known_since_seconds = began_seconds
        """What is neither in the log nor in a filter has not left since then."""

    def absorb(self) -> bool:
        """Takes over what the store has noted, some at a time; whether there is more."""
        taken = self._departures.take(ABSORB_MAX)
        self._absorbed += len(taken)
        if taken:
            self._notice_lost(taken[0])
        for departure in taken:
            name = Name(departure.namespace, departure.key)
            self._last.pop(name, None)
            self._last[name] = departure
        while len(self._last) > self._most:
            name, oldest = self._last.popitem(last=False)
            self.exact_since_seconds = max(self.exact_since_seconds, oldest.seconds)
            self._filter(oldest.seconds).add(name)
        return bool(len(self._departures))

    def last(self, namespace: int, key: bytes) -> Departure | None:
        """How this key left the last time, as far as the log reaches back."""
        return self._last.get(Name(namespace, key))

    def may_have_been(self, namespace: int, key: bytes) -> bool:
        """Whether this key probably left before the log reaches back to."""
        name = Name(namespace, key)
        return any(name in older for older in self._filters)

    def newest(self) -> Iterator[Departure]:
        """Newest first; a key that left more than once is told of its last time only."""
        return iter(reversed(self._last.values()))

    def __len__(self) -> int:
        return len(self._last)

    def _filter(self, now_seconds: float) -> KeyFilter:
        if not self._filters or self._filters[-1].keys >= FILTER_KEYS:
            if len(self._filters) == 2:
                self.known_since_seconds = self._filters[1].began_seconds
            self._filters.append(KeyFilter(now_seconds))
        return self._filters[-1]

    def _notice_lost(self, next_taken: Departure) -> None:
        """Departures that nobody took in time are gone for good: what left before can't be told from what never was."""
        lost = self._departures.noted - self._absorbed - len(self._departures)
        if lost:
            self._absorbed += lost
            self.exact_since_seconds = self.known_since_seconds = next_taken.seconds
