"""Who wants to hear that somebody began to put a key, got further, put it or gave it up: other nodes that follow a block, and
pages that wait. Pure but for the event loop; what a key's state is the caller looks up himself."""

import asyncio
from collections.abc import Hashable, Iterable
from typing import TypeVar

from mooncask.daemon.arrivals import Arrivals, Key
from mooncask.errors import Busy

WATCHES_MAX = 1 << 16
"""Keys whose changes are waited for at a time."""

Waiter = TypeVar("Waiter", bound=Hashable)


class KeyWatches:
    """Of one daemon. Belongs to the event loop's thread."""

    def __init__(self, arrivals: Arrivals[Waiter]) -> None:
        self._events: dict[Key, list[asyncio.Event]] = {}
        arrivals.on_change = self._changed

    async def change(self, names: Iterable[Key]) -> None:
        """Returns when a producer of one of these has come, got further or left. Raises Busy."""
        changed, watched = asyncio.Event(), list(names)
        if len(self._events) + len(watched) > WATCHES_MAX:
            raise Busy(f"{len(self._events)} blocks are followed already")
        for name in watched:
            self._events.setdefault(name, []).append(changed)
        try:
            await changed.wait()
        finally:
            for name in watched:
                events = self._events[name]
                events.remove(changed)
                if not events:
                    del self._events[name]

    def _changed(self, key: Key) -> None:
        for event in self._events.get(key, ()):
            event.set()
