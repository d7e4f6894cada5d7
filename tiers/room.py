"""Hands out DRAM: at once where it can, else first come first served while eviction makes room, until a deadline.

Loads pass only reserves that wait for the limit on what can't be evicted. Which block leaves is the evictor's decision
(`tiers/pressure.py`). Deadlines are `time.monotonic()` seconds.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncask.errors import Busy
from mooncask.tiers.block import Extent, aligned
from mooncask.tiers.dram import DramTier
from mooncask.tiers.pressure import Pressure, ScanPause

EVICTIONS_A_TURN = 64
"""One takes up to 0.1 ms."""


@dataclass(slots=True, eq=False)
class _Ticket:
    sizes: Sequence[int]
    reserves: bool
    answer: asyncio.Future[list[Extent]]
    extents: list[Extent] = field(default_factory=list)

    @property
    def missing(self) -> Sequence[int]:
        return self.sizes[len(self.extents) :]


class Room:
    """A queue before the DRAM tier. Only its head holds bytes while it waits, so no two waiters can block each other.

    `may_reserve(size_bytes)` answers whether that much more may be reserved now (the limit on what can't be evicted).
    """

    def __init__(
        self,
        dram: DramTier,
        evict_one: Callable[[], Pressure],
        may_reserve: Callable[[int], bool],
        queue_max: int,
    ) -> None:
        self._dram = dram
        self._evict_one = evict_one
        self._may_reserve = may_reserve
        self.reserved_bytes = 0
        """Bytes in extents that were taken as reservations and not yet released."""
        self._queue_max = queue_max
        self._queue: deque[_Ticket] = deque()
        self._pump_scheduled = False
        self._pause = ScanPause()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._queue)

    async def reserve(self, sizes: Sequence[int], deadline: float, what: str) -> list[Extent]:
        """Like `take`, for bytes that somebody will write: counted until `release`, and held to the limit."""
        return await self._take(_Ticket(sizes, True, asyncio.get_running_loop().create_future()), deadline, what)

    def release(self, extent: Extent) -> None:
        """A reservation ended: its extent was published, or is about to be freed."""
        self.reserved_bytes -= extent.length
        self.changed()

    async def take(self, sizes: Sequence[int], deadline: float, what: str) -> list[Extent]:
        """Extents for all `sizes`, or Busy at the deadline and none. The wait is FIFO over all callers."""
        return await self._take(_Ticket(sizes, False, asyncio.get_running_loop().create_future()), deadline, what)

    async def _take(self, ticket: _Ticket, deadline: float, what: str) -> list[Extent]:
        started = time.monotonic()
        if len(self._queue) >= self._queue_max:
            raise Busy(f"{what}: {len(self._queue)} requests wait for DRAM already")
        self._queue.append(ticket)
        self._pump()
        if ticket.answer.done():
            return ticket.answer.result()
        try:
            async with asyncio.timeout(max(0.0, deadline - started)):
                return await ticket.answer
        except TimeoutError as exc:
            why = self._why(ticket)
            self._give_up(ticket)
            raise Busy(f"{what}: {why}", time.monotonic() - started) from exc
        except asyncio.CancelledError:
            self._give_up(ticket)
            raise

    def changed(self) -> None:
        """Bytes came free, a lease ended or a write landed: whoever waits may have room now."""
        if self._queue and not self._pump_scheduled:
            self._pump_scheduled = True
            asyncio.get_running_loop().call_soon(self._scheduled_pump)

    def _scheduled_pump(self) -> None:
        self._pump_scheduled = False
        self._pump()

    def _pump(self) -> None:
        while (ticket := self._first_in_line()) is not None and self._fill(ticket):
            self._queue.remove(ticket)
            if ticket.reserves:
                self.reserved_bytes += sum(extent.length for extent in ticket.extents)
            ticket.answer.set_result(ticket.extents)

    def _first_in_line(self) -> _Ticket | None:
        """Who is served next. Loads pass reserves that wait for the limit to allow them, since those hold no bytes and the
        limit does not concern loads: it may take as long as the longest lease."""
        held_up = False
        for ticket in self._queue:
            if ticket.answer.done():  # gave up; its own task takes it out
                return None
            if not ticket.reserves or (not held_up and self._allowed(ticket)):
                return ticket
            held_up = True
        return None

    def _allowed(self, ticket: _Ticket) -> bool:
        return not ticket.reserves or bool(ticket.extents) or self._may_reserve(sum(map(aligned, ticket.sizes)))

    def _fill(self, ticket: _Ticket) -> bool:
        """Whether the ticket has all its extents, after as much eviction as that takes and one turn of the loop allows."""
        started_bytes = evicted = 0
        while ticket.missing:
            extent = self._dram.reserve(ticket.missing[0])
            if extent is not None:
                ticket.extents.append(extent)
                continue
            if started_bytes >= sum(ticket.missing):
                return False
            if evicted == EVICTIONS_A_TURN:  # of small blocks it may take thousands
                self.changed()
                return False
            step = self._look_for_one()
            if step is Pressure.NOTHING:
                return False
            evicted += 1
            if step is Pressure.STARTED:
                started_bytes += ticket.missing[0]
        return True

    def _look_for_one(self) -> Pressure:
        if pause := self._pause.left_seconds():
            self._pump_later(pause)
            return Pressure.NOTHING
        began = time.monotonic()
        step = self._evict_one()
        if step is Pressure.NOTHING:
            self._pause.found_nothing(began)
        return step

    def _pump_later(self, seconds: float) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._pause_over)

    def _pause_over(self) -> None:
        self._timer = None
        self.changed()

    def _why(self, ticket: _Ticket) -> str:
        if self._queue and self._queue[0] is not ticket:
            return "other requests wait for DRAM before this one"
        if not self._allowed(ticket):
            return "too much of DRAM is leased, pinned or reserved"
        return "no block may leave DRAM to make room"

    def _give_up(self, ticket: _Ticket) -> None:
        if ticket in self._queue:
            self._queue.remove(ticket)
        elif ticket.reserves:  # granted in the very moment in which the caller went away
            self.reserved_bytes -= sum(extent.length for extent in ticket.extents)
        for extent in ticket.extents:
            self._dram.free(extent)
        ticket.extents = []
        self.changed()
