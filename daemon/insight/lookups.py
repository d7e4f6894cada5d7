"""Who asked for what: every look-up is noted for observers, off the reader's path.

A reader only appends to a list; observers are told a moment later, in slices. Not here: what became of the bytes, and what
observers make of it (`misses.py`, `hot_chains.py`, ghost caches).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NamedTuple, Protocol

from mooncask.tiers.block import Hint
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

DELAY_SECONDS = 0.05
"""Many look-ups share one timer, and none of their readers waits for it."""
SLICE_KEYS = 4096
"""Keys that observers are told of in one turn of the loop."""
PENDING_KEYS_MAX = 1 << 17
"""Keys that may wait; past that look-ups are not observed, and are counted."""


class LookupKind(Enum):
    """How it was asked: a match promises nothing and reads nothing, the others read."""

    MATCH = "match"
    ACQUIRE = "acquire"
    HTTP_GET = "http_get"


class Lookup(NamedTuple):
    """One look-up. The first `hits` of `keys` were here, in whatever tier; the next one was not, or there is none.

    `seconds` is `time.monotonic()`, in which order look-ups are told. `client` is the token of the process that asked, empty over
    HTTP; `memory_hits` of the hits, counted from the first, were in DRAM or HBM; `waits`: it also waits for what is not here yet.
    """

    kind: LookupKind
    namespace: Namespace
    keys: Sequence[bytes]
    hits: int
    hint: Hint
    seconds: float
    client: bytes = b""
    memory_hits: int = 0
    waits: bool = False


class LookupObserver(Protocol):
    """Told of all look-ups, oldest first. Runs on the event loop: a microsecond a key is much."""

    def __call__(self, lookups: Sequence[Lookup]) -> None: ...


class LookupFeed:
    """Notes look-ups and tells the observers. Owned by the event loop's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._observers: list[LookupObserver] = []
        self._pending: deque[tuple[Any, ...]] = deque()
        """Fields of `Lookup`s, which are made of them when they are told: the reader should not wait even for that."""
        self._pending_keys = 0
        self._scheduled = False
        self.dropped = 0
        """Look-ups that no observer was told of, since too many waited."""

    def add(self, observer: LookupObserver) -> None:
        """`observer` hears of look-ups from now on."""
        self._observers.append(observer)

    def note(
        self,
        kind: LookupKind,
        namespace: Namespace,
        keys: Sequence[bytes],
        hits: int,
        hint: Hint,
        client: bytes = b"",
        memory_hits: int = 0,
        waits: bool = False,
    ) -> None:
        """The reader's part: no call to any observer. `keys` must not be changed afterwards."""
        if self._pending_keys > PENDING_KEYS_MAX:
            self.dropped += 1
            return
        self._pending.append((kind, namespace, keys, hits, hint, self._clock(), client, memory_hits, waits))
        self._pending_keys += len(keys)
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_later(DELAY_SECONDS, self._tell)

    def flush(self) -> None:
        """Tell all that waits, for whoever wants to read what the observers know now."""
        while self._pending:
            self._tell_slice()

    def _tell(self) -> None:
        self._scheduled = False
        self._tell_slice()
        if self._pending and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell_slice(self) -> None:
        told: list[Lookup] = []
        keys = 0
        while self._pending and keys < SLICE_KEYS:
            lookup = Lookup._make(self._pending.popleft())
            keys += len(lookup.keys)
            told.append(lookup)
        self._pending_keys -= keys
        for observer in self._observers:
            try:
                observer(told)
            except Exception:  # an observer's fault must not end the others' news
                log.exception("an observer of look-ups failed by a fault of this daemon")
