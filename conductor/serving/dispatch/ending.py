"""Something that may happen once, and whoever is to be called then: an `asyncio.Event` without a task for each who waits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ending:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._set = False
        self._calls: dict[object, Callable[[], None]] = {}

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Once is enough. Calls run before this returns, so they must only take note."""
        if not self._set:
            self._set = True
            for call in list(self._calls.values()):
                call()

    @contextmanager
    def calling(self, call: Callable[[], None]) -> Iterator[None]:
        """`call` runs when it happens, or at once if it has; not after this is left."""
        name = object()
        self._calls[name] = call
        if self._set:
            call()
        try:
            yield
        finally:
            del self._calls[name]
