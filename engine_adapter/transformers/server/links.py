"""Ways to the store for several threads: a StoreLink serves one at a time, so each thread borrows one."""

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mooncask.engine_adapter.transformers.store_link import StoreLink


class LinkPool:
    """Makes links as they are needed and keeps them; as many as threads ever used one at the same time."""

    def __init__(self, make: Callable[[], StoreLink]) -> None:
        self._make = make
        self._idle: queue.SimpleQueue[StoreLink] = queue.SimpleQueue()

    @contextmanager
    def link(self) -> Iterator[StoreLink]:
        """One link, for this thread alone until the block ends."""
        try:
            link = self._idle.get_nowait()
        except queue.Empty:
            link = self._make()
        try:
            yield link
        finally:
            self._idle.put(link)

    def close(self) -> None:
        """Closes the links that nobody uses."""
        while not self._idle.empty():
            self._idle.get_nowait().close()
