"""From NVMe to DRAM: a block that is asked for is read once however many ask, checked, and kept if it is asked for often.

A copy that has not been read `promote_after` times within the sketch's window serves those who wait and goes again.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field

from mooncask.errors import Busy, CorruptBlock
from mooncask.tiers.block import Extent, aligned
from mooncask.tiers.copies import Copies
from mooncask.tiers.flows import LOAD, PROMOTE_DRAM
from mooncask.tiers.load_rate import LoadRate
from mooncask.tiers.nvme import NvmeTier
from mooncask.tiers.recency import Recency
from mooncask.tiers.room import Room
from mooncask.tiers.sketch import FrequencySketch

log = logging.getLogger(__name__)

READS_OF_A_MOVING_BLOCK = 3
"""How often a read is repeated because the reclaimer moved the block meanwhile."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One load and those who wait for it."""

    waiting: list[asyncio.Future[Extent | None]] = field(default_factory=list)
    stays: bool = False
    """Whether somebody wants it to be kept in DRAM, however seldom it was read."""


class BringUp:
    """Loads blocks from NVMe. `quarantine(slot, reason)` is called for a block whose bytes are wrong."""

    def __init__(
        self,
        nvme: NvmeTier,
        copies: Copies,
        room: Room,
        recency: Recency,
        sketch: FrequencySketch,
        promote_after: int,
        quarantine: Callable[[int, CorruptBlock], None],
        load_seconds_max: float,
        counters: Counter[str],
    ) -> None:
        self._nvme = nvme
        self._copies = copies
        self._catalogue = copies.catalogue
        self._room = room
        self._recency = recency
        self._sketch = sketch
        self.promote_after = promote_after
        """May be changed at any time; the sketch goes on counting."""
        self._quarantine = quarantine
        self._load_seconds_max = load_seconds_max
        self._counters = counters
        self.rate = LoadRate()
        self._flights: dict[int, _Flight] = {}
        """By sequence: a slot may have its next block while a load of the last one still runs."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def fetch(self, slot: int, deadline: float, stays: bool = False) -> Extent | None:
        """The block in DRAM with one reference for the caller, or None when it did not come by the deadline. `stays`: it is kept
        there as one that is read often.

        The load goes on without the caller if others may still want it.
        """
        sequence = self._catalogue.sequence[slot]
        flight = self._flights.get(sequence)
        if flight is None:
            flight = self._flights[sequence] = _Flight()
            self._spawn(self._load(slot, sequence, flight))
        flight.stays |= stays
        answer: asyncio.Future[Extent | None] = asyncio.get_running_loop().create_future()
        flight.waiting.append(answer)
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                return await answer
        except TimeoutError:
            self._decline(answer)
            return None
        except asyncio.CancelledError:
            self._decline(answer)
            raise

    async def drained(self) -> None:
        """Waits until no load is under way."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _decline(self, answer: asyncio.Future[Extent | None]) -> None:
        """The caller went away; if its reference was already handed out, it goes back."""
        if answer.done() and not answer.cancelled() and (extent := answer.result()) is not None:
            self._copies.drop(extent)

    async def _load(self, slot: int, sequence: int, flight: _Flight) -> None:
        extent: Extent | None = None
        try:
            extent = await self._read(slot, sequence)
        finally:
            del self._flights[sequence]
            self._hand_out(slot, extent, flight)

    def _hand_out(self, slot: int, extent: Extent | None, flight: _Flight) -> None:
        """No await in here: a reference for each who still waits, then the copy stays or is marked to go."""
        takers = [answer for answer in flight.waiting if not answer.done()]
        if extent is not None:
            extent = self._publish(slot, extent, len(takers), flight.stays)
        for answer in takers:
            answer.set_result(extent)

    def _publish(self, slot: int, extent: Extent, takers: int, stays: bool) -> Extent:
        self._catalogue.place_dram(slot, extent)
        if takers:
            self._copies.hold_extent(extent, takers)
        key = self._catalogue.keys[slot]
        self._sketch.add(key)
        if stays or self._sketch.estimate(key) >= self.promote_after:
            self._recency.entered_dram(slot)
            self._counters["promoted_dram"] += 1
            self._copies.flows.add(PROMOTE_DRAM, extent.size)
        elif takers:
            self._copies.mark_transient(slot)
        else:
            self._copies.drop_dram(slot)
        return extent

    async def _read(self, slot: int, sequence: int) -> Extent | None:
        """The payload in a fresh extent that only we refer to; None when it can't be had."""
        size = self._catalogue.size[slot]
        try:
            [extent] = await self._room.take([size], time.monotonic() + self._load_seconds_max, "load from NVMe")
        except Busy:
            self._counters["load_busy"] += 1
            return None
        extent.size = size
        try:
            loaded = await self._read_into(slot, sequence, extent)
        except BaseException:
            self._copies.free(extent)
            raise
        if not loaded:
            self._copies.free(extent)
        return extent if loaded else None

    async def _read_into(self, slot: int, sequence: int, extent: Extent) -> bool:
        for _ in range(READS_OF_A_MOVING_BLOCK):
            place = self._catalogue.nvme_extent(slot) if self._catalogue.sequence[slot] == sequence else None
            if place is None:
                return False  # deleted while we waited for room
            started = time.monotonic()
            view = self._copies.dram.view(extent)
            try:
                await self._nvme.read(place, self._catalogue.record(slot), view[: aligned(extent.size)])
            except CorruptBlock as error:
                if self._still_at(slot, sequence, place):
                    self._quarantine(slot, error)
                    return False
                continue  # the reclaimer moved it: look where it is now
            took = time.monotonic() - started
            self.rate.loaded(extent.size, took)
            self._copies.timings.nvme_read.observe(took)
            self._counters["nvme_read_bytes"] += extent.size
            self._copies.flows.add(LOAD, extent.size)
            return self._catalogue.sequence[slot] == sequence
        return False

    def _still_at(self, slot: int, sequence: int, place: Extent) -> bool:
        now = self._catalogue.nvme_extent(slot) if self._catalogue.sequence[slot] == sequence else None
        return now is not None and (now.offset, now.generation) == (place.offset, place.generation)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a load from NVMe failed: %s", error, exc_info=error)
