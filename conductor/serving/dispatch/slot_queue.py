"""Requests that wait for a place in a decode batch: the higher priority first, then who came first; bounded."""

import asyncio
import heapq
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
    """`find()` of a waiter takes a place in the very step in which it returns one. Belongs to one event loop."""

    def __init__(self, waiting_max: int) -> None:
        self._waiting_max = waiting_max
        self._heap: list[_Waiter[Place]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return sum(not waiter.found.done() for waiter in self._heap)

    async def take(self, find: Callable[[], Place | None], priority: int, seconds: float) -> Place:
        """A place, now or when `wake` finds one. Raises Overloaded when too many wait, or the time is over."""
        if not len(self) and (place := find()) is not None:
            return place
        if len(self) >= self._waiting_max:
            raise Overloaded(f"{self._waiting_max} requests wait for a place to decode", seconds)
        waiter = _Waiter((-priority, next(self._number)), find, asyncio.get_running_loop().create_future())
        heapq.heappush(self._heap, waiter)
        self.wake()
        try:
            async with asyncio.timeout(seconds):
                return await waiter.found  # type: ignore[no-any-return]  # mypy loses the type in the Future
        except TimeoutError:
            raise Overloaded(f"no place to decode within {seconds:.1f} s", seconds) from None

    def wake(self) -> None:
        """Something has become free: served in order, until nothing is found for the first."""
        while self._heap:
            first = self._heap[0]
            if not first.found.done():
                place = first.find()
                if place is None:
                    return
                first.found.set_result(place)
            heapq.heappop(self._heap)
