"""Blocks on their way into this node from somewhere slow: each is fetched once however many want it, what is wanted in one turn
of the loop begins together, and one that has come can't leave before those that waited for it had their turn.

Not here: where they come from (`peers/remote.py`, `cold/fetching.py`).
"""

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from mooncask.daemon.arrivals import Key
from mooncask.tiers.block import Extent
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

FLIGHTS_MAX = 1 << 16
"""Blocks on their way at a time; more are misses."""
HELD_SECONDS = 0.05
"""For those that waited."""
CLOSE_SECONDS = 2.0
STARTS_MAX = 512
"""Of one request in one turn of the loop: others come in between."""

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Flight:
    """One block on its way. `answer`: whether it is here now."""

    namespace: Namespace
    ns_id: bytes
    key: bytes
    deadline: float
    answer: "asyncio.Future[bool]"


class Answer(NamedTuple):
    """Of the key at `place`: whether the block is here now."""

    place: int
    here: bool


class Flights(Generic[Result]):
    """Of one source. `begin(namespace, flights)` is called with what was wanted in one turn of the loop; whoever fetches says
    `arrived` or `end` of each. Everything belongs to the event loop's thread."""

    def __init__(self, store: Store, begin: Callable[[Namespace, list[Flight]], None]) -> None:
        self._store, self._begin = store, begin
        self._flights: dict[Key, Flight] = {}
        self._wanted: dict[Namespace, list[Flight]] = {}
        self._tasks: set[asyncio.Task[Result]] = set()
        self._held: dict[Extent, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._flights)

    def find(self, namespace: Namespace, key: bytes) -> Flight | None:
        return self._flights.get(Key(namespace.id, key))

    def new(self, namespace: Namespace, ns_id: bytes, key: bytes, deadline: float) -> Flight | None:
        """A flight that its caller begins; None when there are FLIGHTS_MAX."""
        if len(self._flights) >= FLIGHTS_MAX:
            return None
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        flight = self._flights[Key(namespace.id, key)] = Flight(namespace, ns_id, key, deadline, answer)
        return flight

    def want(self, flight: Flight) -> None:
        """It begins with all others that are wanted in this turn."""
        if not self._wanted:
            asyncio.get_running_loop().call_soon(self._dispatch)
        self._wanted.setdefault(flight.namespace, []).append(flight)

    async def bring(
        self,
        namespace: Namespace,
        key: bytes,
        deadline: float,
        take_off: Callable[[], Flight | None],
        joined: Callable[[], None] = lambda: None,
    ) -> bool:
        """Whether the block is here now; False is a miss, also one by the deadline. `take_off` makes a flight and wants it, or
        gives None for what can't be had; `joined` hears of each that was on its way already."""
        while True:
            known = self.find(namespace, key)
            flight = known or take_off()
            if flight is None:
                return False
            if known is not None:
                joined()
            try:
                async with asyncio.timeout_at(deadline):
                    here = await asyncio.shield(flight.answer)
            except TimeoutError:
                return False
            if here or known is None or flight.deadline >= deadline:
                return here  # else it was given up for somebody who had less time

    async def bring_many(
        self,
        namespace: Namespace,
        keys: Sequence[bytes],
        deadline: float,
        take_off: Callable[[bytes], Flight | None],
        on_answers: "Callable[[list[Answer]], None]",
        joined: Callable[[], None] = lambda: None,
    ) -> None:
        """As `bring`, for many blocks, with one wait for all of them: thousands of tasks and timers of their own would all have to
        have their turn at the deadline, and the answer would come after it. `on_answers` gets what was answered since the last time,
        once for each of the keys; what it did not get when this returns has not come by the deadline."""
        answers: list[Answer] = []
        news, left, is_over = asyncio.Event(), len(keys), False

        def note(place: int, flight: Flight, was_known: bool, answer: "asyncio.Future[bool]") -> None:
            if is_over:
                return
            here = not answer.cancelled() and answer.result()
            if not here and was_known and flight.deadline < deadline:
                begin(place)  # it was given up for somebody who had less time
                return
            answers.append(Answer(place, here))
            news.set()

        def begin(place: int) -> None:
            known = self.find(namespace, keys[place])
            flight = known or take_off(keys[place])
            if flight is None:
                answers.append(Answer(place, False))
                news.set()
                return
            if known is not None:
                joined()
            flight.answer.add_done_callback(functools.partial(note, place, flight, known is not None))

        try:
            async with asyncio.timeout_at(deadline):
                for first in range(0, len(keys), STARTS_MAX):
                    for place in range(first, min(first + STARTS_MAX, len(keys))):
                        begin(place)
                    await asyncio.sleep(0)
                while left:
                    await news.wait()
                    news.clear()
                    some, answers = answers, []
                    left -= len(some)
                    on_answers(some)
        except TimeoutError:
            pass
        finally:
            is_over = True

    def start(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        """A task that `close` ends."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def arrived(self, flight: Flight) -> bool:
        """Whether the block is here; then those who wait hear of it, and it is held for them."""
        if not self._store.has(flight.namespace, flight.key):
            return False
        if not flight.answer.done():
            (extent,) = self._store.hold(flight.namespace, [flight.key])
            if extent is not None:
                self._keep(extent)
        self.end(flight, here=True)
        return True

    def end(self, flight: Flight, *, here: bool) -> None:
        """What was said before stays said."""
        if not flight.answer.done():
            flight.answer.set_result(here)
        name = Key(flight.namespace.id, flight.key)
        if self._flights.get(name) is flight:
            del self._flights[name]

    async def close(self) -> None:
        """Before the store is closed: nothing is written into it any more."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_SECONDS)
        for extent, timer in self._held.items():
            timer.cancel()
            self._store.drop(extent)
        self._held.clear()

    def _dispatch(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for namespace, flights in wanted.items():
            self._begin(namespace, flights)

    def _keep(self, extent: Extent) -> None:
        if extent in self._held:
            self._store.drop(extent)
        else:
            self._held[extent] = asyncio.get_running_loop().call_later(HELD_SECONDS, self._let_go, extent)

    def _let_go(self, extent: Extent) -> None:
        del self._held[extent]
        self._store.drop(extent)
