"""What goes on beside requests: times to live run out, a slow scrub checks every copy, pins and TTLs reach the disk."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from mooncask.errors import CorruptBlock, MooncaskError, PinLimitExceeded
from mooncask.tiers.block import TierName, aligned, printable_key
from mooncask.tiers.catalogue import NOWHERE
from mooncask.tiers.parts import Parts

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""How late a block may vanish from the catalogue after its time; lookups see it expired at once."""


SWEEP_BLOCKS = 128
"""What one turn of the loop forgets."""


class Housekeeping:
    """Background tasks of one store, and the calls that share their code."""

    def __init__(self, parts: Parts, quarantine: Callable[[int, CorruptBlock], None]) -> None:
        self._parts = parts
        self._catalogue = parts.catalogue
        self._quarantine = quarantine
        self._tasks: list[asyncio.Task[None]] = []
        self._scrub_rate = parts.config.scrub_bytes_per_second
        self._scrub_rate_changed = asyncio.Event()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._sweep_for_ever()))
        self._tasks.append(loop.create_task(self._scrub_for_ever()))

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- pins and times to live ---

    async def pin(self, slot: int) -> None:
        catalogue = self._catalogue
        self._check_may_pin(slot)
        sequence = catalogue.sequence[slot]
        catalogue.add_pins(slot, 1)
        try:
            await self._save(slot)
        except MooncaskError:
            if catalogue.sequence[slot] == sequence and catalogue.lasting_pins(slot):
                catalogue.add_pins(slot, -1)  # who is refused a pin holds none
            raise

    async def unpin(self, slot: int) -> None:
        if self._catalogue.lasting_pins(slot):
            self._catalogue.add_pins(slot, -1)
            self._parts.copies.room_changed()
            await self._save(slot)

    def hold(self, slot: int) -> int:
        """A pin of this run. Returns the block's sequence, for `unhold`."""
        self._check_may_pin(slot)
        self._catalogue.add_holds(slot, 1)
        return self._catalogue.sequence[slot]

    def unhold(self, slot: int, sequence: int) -> None:
        """Without effect when another block has come in its place: that one was not held."""
        if self._catalogue.sequence[slot] == sequence:
            self._catalogue.add_holds(slot, -1)
            self._parts.copies.room_changed()

    def _check_may_pin(self, slot: int) -> None:
        catalogue, parts = self._catalogue, self._parts
        if catalogue.pins[slot]:
            return
        length, limit = aligned(catalogue.size[slot]), parts.held_limit_bytes()
        below = catalogue.nvme_offset[slot] != NOWHERE
        if not below and catalogue.pinned_dram_bytes + length > limit:
            raise PinLimitExceeded("dram", catalogue.pinned_dram_bytes + length, limit)
        if below and catalogue.pinned_bytes + length > parts.held_limit_nvme_bytes():
            raise PinLimitExceeded("nvme", catalogue.pinned_bytes + length, parts.held_limit_nvme_bytes())

    async def set_ttl(self, slot: int, seconds: float | None) -> None:
        self._catalogue.set_ttl(slot, 0.0 if seconds is None else time.time() + seconds)
        await self._save(slot)

    async def _save(self, slot: int) -> None:
        """Pins and times live in the disk index beside the block, once it is there."""
        catalogue, nvme = self._catalogue, self._parts.nvme
        if nvme is not None and catalogue.nvme_offset[slot] != NOWHERE:
            await nvme.put_meta(catalogue.record(slot), catalogue.ttl[slot], catalogue.lasting_pins(slot))

    async def _sweep_for_ever(self) -> None:
        while True:
            more = self.sweep(time.time()) == SWEEP_BLOCKS
            await asyncio.sleep(0 if more else SWEEP_SECONDS)
            self._parts.recency.flush()

    def sweep(self, now_seconds: float) -> int:
        """Forget what has expired, SWEEP_BLOCKS at most; returns how many blocks that were."""
        expired = self._catalogue.take_expired(now_seconds, SWEEP_BLOCKS)
        for slot in expired:
            self._expire(slot)
        return len(expired)

    def _expire(self, slot: int) -> None:
        """An older version that is still on the disk must not come back in its place; and what has attributes may stand for
        other blocks that go with it, so that not even a rebuild of the index may bring it back."""
        parts, key = self._parts, (self._catalogue.namespace[slot], self._catalogue.keys[slot])
        for_good = slot in self._catalogue.attributes
        parts.copies.forget(slot, "expired", "expired")
        if parts.write_down is not None and (for_good or parts.write_down.may_be_below(key)):
            parts.bury_later((*key, parts.next_sequence()))

    # --- checking ---

    async def verify(self, slot: int) -> bool:
        """Whether every copy of the block is right; a wrong one takes the block into quarantine."""
        sequence = self._catalogue.sequence[slot]
        for check in (self._check_dram, self._check_nvme):
            try:
                await check(slot)
            except CorruptBlock as error:
                if self._catalogue.sequence[slot] == sequence:
                    self._quarantine(slot, error)
                return False
            if self._catalogue.sequence[slot] != sequence:
                return True  # it left by itself: nothing to check any more
        return True

    async def _check_dram(self, slot: int) -> None:
        parts = self._parts
        [extent] = parts.copies.hold([slot])
        if extent is None:
            return
        want = self._catalogue.checksum(slot)
        try:
            if await parts.dram.checksum(extent, self._catalogue.size[slot]) != want:
                raise CorruptBlock(
                    printable_key(self._catalogue.keys[slot]), TierName.DRAM.name.lower(), "wrong checksum"
                )
        finally:
            parts.copies.drop(extent)

    async def _check_nvme(self, slot: int) -> None:
        """Reads into memory of its own, since the arena's is for those who wait."""
        parts, catalogue = self._parts, self._catalogue
        place = catalogue.nvme_extent(slot)
        if parts.nvme is None or place is None:
            return
        buffer = memoryview(bytearray(aligned(max(1, catalogue.size[slot]))))
        sequence = catalogue.sequence[slot]
        try:
            await parts.nvme.read(place, catalogue.record(slot), buffer)
        except CorruptBlock:
            now = catalogue.nvme_extent(slot) if catalogue.sequence[slot] == sequence else None
            if now is not None and (now.offset, now.generation) == (place.offset, place.generation):
                raise  # else the reclaimer moved it while we read

    def scrub_at(self, bytes_per_second: float) -> None:
        """From now on, also for a scrub that pauses by the old rate; 0 = no scrub."""
        self._scrub_rate = bytes_per_second
        self._scrub_rate_changed.set()

    async def _scrub_for_ever(self) -> None:
        while True:
            if self._scrub_rate > 0:
                await self.scrub_once()
                await asyncio.sleep(SWEEP_SECONDS)
            else:
                await self._scrub_rate_changed.wait()
                self._scrub_rate_changed.clear()

    async def scrub_once(self) -> None:
        """Verifies every block that is here at the beginning, at most `scrub_bytes_per_second`."""
        for slot in list(self._catalogue.slots()):
            if self._scrub_rate > 0 and self._catalogue.sequence[slot]:
                await self._scrub_one(slot)

    async def _scrub_one(self, slot: int) -> None:
        size = self._catalogue.size[slot]
        try:
            await self.verify(slot)
        except MooncaskError as error:  # a disk that is away: the next round tries again
            log.warning("scrub: %s", error.message)
        self._parts.counters["scrubbed_bytes"] += size
        await self._pause(size)

    async def _pause(self, size: int) -> None:
        """As long as reading `size` bytes may take at the rate, or until the rate changes."""
        rate = self._scrub_rate
        if rate > 0:
            self._scrub_rate_changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(size / rate):
                    await self._scrub_rate_changed.wait()
