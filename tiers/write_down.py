"""From DRAM to NVMe: write-through, demotion and deletes, in the order in which each key's changes were made.

The log orders what is handed to it; this module orders what is still on its way there: a delete must not overtake the
write it deletes, nor a new copy the delete before it.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial

from mooncask.errors import Busy, DeadlineExceeded, MooncaskError, NotEvictable, TierDegraded
from mooncask.tiers.block import BlockRecord, Extent, aligned
from mooncask.tiers.catalogue import NOWHERE, Catalogue
from mooncask.tiers.copies import Copies
from mooncask.tiers.flows import EVICT_NVME, WRITE
from mooncask.tiers.nvme import NvmeTier
from mooncask.tiers.pressure import LeaveRules, ScanPause
from mooncask.tiers.recency import SLICE, Recency

log = logging.getLogger(__name__)

Key = tuple[int, bytes]
Tombstone = tuple[int, bytes, int]
"""Namespace, key and the sequence of the delete."""
ATTEMPTS = 2
"""A write that met a fenced segment is done once more elsewhere."""
HEADER_BYTES_MAX = 4096
COMPLAIN_SECONDS = 60.0
FULL_SECONDS = 0.5
"""How long NVMe is taken for full after a write found nothing that may leave it: finding that out looks at every block."""


class WriteDown:
    """Owns every write and delete on the NVMe tier. One write a block at a time."""

    def __init__(
        self,
        nvme: NvmeTier,
        copies: Copies,
        recency: Recency,
        rules: LeaveRules,
        counters: Counter[str],
        dirty_bytes_max: int,
    ) -> None:
        self._nvme = nvme
        self._copies = copies
        self._catalogue: Catalogue = copies.catalogue
        self._recency = recency
        self._rules = rules
        self._counters = counters
        self._dirty_bytes_max = dirty_bytes_max
        self.dirty_bytes = 0
        """Bytes whose write is under way or waiting."""
        self._tails: dict[Key, asyncio.Task[None]] = {}
        self._writes: dict[int, asyncio.Task[None]] = {}
        """By sequence and not by slot: a slot may have its next block while the last one's write still runs."""
        self._landed = asyncio.Event()
        self._complain_after = 0.0
        self._full_until = 0.0
        self._pause = ScanPause()
        self._superseded: dict[Key, list[Extent]] = {}

    # --- writing ---

    def start(self, slot: int) -> "asyncio.Task[None]":
        """Begin to write a block down unless that is under way; the task raises what went wrong."""
        sequence, size = self._catalogue.sequence[slot], self._catalogue.size[slot]
        task = self._writes.get(sequence)
        if task is None:
            self.dirty_bytes += size
            key = (self._catalogue.namespace[slot], self._catalogue.keys[slot])
            task = self._after(key, lambda: self._write(slot, sequence))
            self._writes[sequence] = task
            task.add_done_callback(lambda done: self._write_ended(sequence, size, done))
        return task

    def limit_dirty(self, bytes_max: int) -> None:
        """From now on; who waits looks again."""
        self._dirty_bytes_max = bytes_max
        self._landed.set()

    async def below_dirty_limit(self, deadline: float) -> None:
        """Waits until less than `dirty_bytes_max` is waiting for the disk. Busy at the deadline."""
        started = time.monotonic()
        while self.dirty_bytes >= self._dirty_bytes_max:
            self._landed.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                    await self._landed.wait()
            except TimeoutError as exc:
                what = f"{self.dirty_bytes} bytes wait for NVMe, at most {self._dirty_bytes_max} may (nvme.dirty_max)"
                raise Busy(what, time.monotonic() - started) from exc

    async def drained(self, deadline: float) -> None:
        """Waits for all that is under way; DeadlineExceeded when that takes too long."""
        tasks = set(self._tails.values())
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=max(0.0, deadline - time.monotonic()))
            if late:
                raise DeadlineExceeded(f"{len(late)} writes to NVMe", 0.0)

    async def _write(self, slot: int, sequence: int) -> None:
        for attempt in range(ATTEMPTS):
            extent = self._catalogue.dram.get(slot)
            if extent is None or self._catalogue.sequence[slot] != sequence:
                return  # deleted or replaced while it waited its turn
            if self._catalogue.nvme_offset[slot] != NOWHERE:
                return
            try:
                return await self._write_once(slot, sequence, extent)
            except TierDegraded:
                self._counters["nvme_write_failures"] += 1
                if attempt + 1 == ATTEMPTS or self._nvme.state != "ok":
                    raise

    async def _write_once(self, slot: int, sequence: int, extent: Extent) -> None:
        record = self._catalogue.record(slot)
        self._copies.hold_extent(extent)
        try:
            place = await self._place(record.size)
            try:
                started = time.monotonic()
                await self._nvme.commit(place, record, self._copies.dram.view(extent))
                self._copies.timings.nvme_write.observe(time.monotonic() - started)
            except BaseException:
                self._nvme.free(place)
                raise
            self._counters["nvme_written_bytes"] += record.size
            self._copies.flows.add(WRITE, record.size)
            if self._landed_at(slot, sequence, record, place):
                await self._save_meta(slot, record)
        finally:
            self._copies.drop(extent)

    async def _save_meta(self, slot: int, record: BlockRecord) -> None:
        """Pins and a time to live that the block got before it was on the disk. Read here: what comes later saves itself."""
        pins, ttl = self._catalogue.lasting_pins(slot), self._catalogue.ttl[slot]
        if pins or ttl:
            await self._nvme.put_meta(record, ttl, pins)

    def _landed_at(self, slot: int, sequence: int, record: BlockRecord, place: Extent) -> bool:
        """Whether the block is still wanted. Between commit's return and here nothing else ran: the place is ours to note,
        to keep or to forget."""
        key = (record.namespace, record.key)
        for older in self._superseded.pop(key, ()):
            self._nvme.free(older)
        if self._catalogue.sequence[slot] == sequence:
            self._catalogue.place_nvme(slot, place)
            self._recency.entered_nvme(slot)
            return True
        if self._has_newer(record):
            self.supersede(key, place)  # on disk until the newer one is
        else:
            self._nvme.forget(place, record)
        return False

    def _has_newer(self, record: BlockRecord) -> bool:
        namespace = self._catalogue.registry.by_id(record.namespace)
        return namespace is not None and record.key in namespace.index

    def supersede(self, key: Key, place: Extent) -> None:
        """An older copy's place is dead as soon as the newer copy of its key is on disk, and not before."""
        self._superseded.setdefault(key, []).append(place)

    def may_be_below(self, key: Key) -> bool:
        """Whether the disk has, or is about to get, a version of this key that the catalogue does not name any more."""
        tail = self._tails.get(key)
        # One that is done, but has not been taken out yet, brings nothing any more.
        return key in self._superseded or (tail is not None and not tail.done())

    def _write_ended(self, sequence: int, size: int, task: "asyncio.Task[None]") -> None:
        self.dirty_bytes -= size
        self._writes.pop(sequence, None)
        self._landed.set()
        self._copies.room_changed()
        if not task.cancelled() and isinstance(error := task.exception(), MooncaskError):
            self._complain(error)

    def _complain(self, error: MooncaskError) -> None:
        """Counted always, logged once in a while: a full or broken disk fails every write."""
        self._counters["nvme_writes_given_up"] += 1
        if (now := time.monotonic()) >= self._complain_after:
            self._complain_after = now + COMPLAIN_SECONDS
            log.warning("write to NVMe failed: %s", error.message)

    # --- deleting ---

    async def delete(self, tombstones: Sequence[Tombstone]) -> None:
        """Durable when it returns."""
        await asyncio.gather(*(self._after((stone[0], stone[1]), partial(self._bury, stone)) for stone in tombstones))

    async def _bury(self, tombstone: Tombstone) -> None:
        await self._nvme.delete([tombstone])
        for older in self._superseded.pop((tombstone[0], tombstone[1]), ()):
            self._nvme.free(older)

    # --- making room below ---

    async def _place(self, size: int) -> Extent:
        needed = aligned(size) + HEADER_BYTES_MAX
        while True:
            while self._nvme.used_bytes + needed > self._nvme.usable_bytes:
                self._evict_one(size)
            extent = self._nvme.reserve(size)
            if extent is not None:
                return extent
            if not await self._nvme.room(size):
                if self._nvme.state != "ok":
                    raise TierDegraded("nvme", self._nvme.state)
                self._evict_one(size)

    def _evict_one(self, size: int) -> None:
        """Raises NotEvictable when nothing may leave."""
        if self._pause.left_seconds():
            raise NotEvictable("the NVMe tier", size)
        self._recency.flush(SLICE)
        if (spare := self._rules.replicas.take(self._rules.spare_may_leave_nvme)) is not None:
            self._copies.forget_replica(spare, "nvme", EVICT_NVME)
            return
        began = time.monotonic()
        slot = self._copies.policies.nvme.evict(self._rules.may_leave_nvme)
        if slot is None:
            self._rules.replicas.fell_short()
            self._pause.found_nothing(began)
            self._found_full()
            raise NotEvictable("the NVMe tier", size)
        self._copies.flows.add(EVICT_NVME, self._catalogue.size[slot])
        if slot in self._catalogue.dram:
            self._copies.drop_nvme(slot)
            self._counters["evicted_nvme_copies"] += 1
        else:
            self._copies.forget(slot, "nvme")

    @property
    def full(self) -> bool:
        """Whether a write has just failed for lack of room that eviction could make."""
        return time.monotonic() < self._full_until

    def _found_full(self) -> None:
        """Eviction from DRAM does not try again at once, and hears of it when it may."""
        if not self.full:
            self._full_until = time.monotonic() + FULL_SECONDS
            asyncio.get_running_loop().call_later(FULL_SECONDS, self._copies.room_changed)

    # --- order ---

    def _after(self, key: Key, start: Callable[[], Coroutine[None, None, None]]) -> "asyncio.Task[None]":
        """Runs `start` once all that was begun for this key before has ended."""
        before = self._tails.get(key)

        async def run() -> None:
            if before is not None:
                await asyncio.wait({before})
            await start()

        task = asyncio.get_running_loop().create_task(run())
        self._tails[key] = task
        task.add_done_callback(lambda done: self._step_ended(key, done))
        return task

    def _step_ended(self, key: Key, task: "asyncio.Task[None]") -> None:
        if self._tails.get(key) is task:
            del self._tails[key]
        if not task.cancelled():
            task.exception()  # seen: the waiters, if any, get it from the task itself
