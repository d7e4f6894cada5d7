"""Requests that wait for a place in a decode batch: the higher priority first, then who came first; bounded."""

import asyncio
import bisect
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from mooncask.errors import Overloaded

Place = TypeVar("Place")


@dataclass(order=True, slots=True)
class _Waiter(Generic[Place]):
    order: tuple[int, int]
    find: "Callable[[], Place | None]" = field(compare=False)
    found: "asyncio.Future[Place]" = field(compare=False)


class SlotQueue(Generic[Place]):
    """`find()` of a waiter takes a place in the very step in which it returns one. Belongs to one event loop.

    A place that was found for a waiter who is cancelled in that moment is his to give back, as any other.
    """

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._waiters: list[_Waiter[Place]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return len(self._waiters)

    async def take(self, find: Callable[[], Place | None], priority: int, seconds: float) -> Place:
        """A place, now or when `wake` finds one. Raises Overloaded when too many wait, or the time is over.

        When too many wait, whoever is more important than the last of them takes his place in the queue.
        """
        waiter = _Waiter((-priority, next(self._number)), find, asyncio.get_running_loop().create_future())
        bisect.insort(self._waiters, waiter)
        try:
            self.wake()
            if not waiter.found.done() and len(self._waiters) > self._waiting_max:
                self._turn_away(self._waiters.pop(), seconds)
            async with asyncio.timeout(seconds):
                return await waiter.found  # type: ignore[no-any-return]  # mypy loses the type in the Future
        except TimeoutError:
            raise Overloaded(f"no place to decode within {seconds:.1f} s", seconds) from None
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _turn_away(self, last: _Waiter[Place], seconds: float) -> None:
        if not last.found.done():
            last.found.set_exception(Overloaded(f"{self._waiting_max} requests wait for a place to decode", seconds))
            last.found.exception()  # seen, also when its task is cancelled in this moment

    def wake(self) -> None:
        """Something has become free: tried in order. Whoever finds nothing holds up nobody who looks elsewhere."""
        for waiter in list(self._waiters):
            if waiter.found.done():
                self._waiters.remove(waiter)
            elif (place := waiter.find()) is not None:
                self._waiters.remove(waiter)
                waiter.found.set_result(place)
