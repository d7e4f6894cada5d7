"""An open folder: entries by their position, found while they are read. Knows no store and no kernel.

The kernel reads a folder in pieces and names the position it wants to go on at. Entries come from an iterator that reads
pages of the store; the last ones are kept, so that a piece that did not fit is not asked for again. A position from before
those starts the iterator anew.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

KEPT = 2048


class OpenFolder(Generic[T]):
    """Any thread may use it; pieces are read one after the other."""

    def __init__(self, make: Callable[[], Iterator[T]]) -> None:
        self._make = make
        self._source: Iterator[T] | None = None
        self._kept: deque[T] = deque(maxlen=KEPT)
        self._next = 0
        """Position of the entry that the source gives next."""
        self.lock = threading.Lock()
        """To be held while entries are read."""

    def entries(self, start: int) -> Iterator[tuple[T, int]]:
        """Entries from position `start` on, each with the position of the one after it."""
        if start == 0 or self._source is None or start < self._next - len(self._kept):
            self._restart()
        while self._next < start:
            if self._advance() is None:
                return
        position = start
        for entry in list(self._kept)[len(self._kept) - (self._next - start) :]:
            position += 1
            yield entry, position
        while (found := self._advance()) is not None:
            position += 1
            yield found, position

    def _restart(self) -> None:
        self._source, self._next = self._make(), 0
        self._kept.clear()

    def _advance(self) -> T | None:
        assert self._source is not None
        try:
            found = next(self._source, None)
        except BaseException:
            self._source = None  # or it would seem to be at its end
            raise
        if found is not None:
            self._kept.append(found)
            self._next += 1
        return found
