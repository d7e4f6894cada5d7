"""The reclaimer: copies what lives in a segment elsewhere, so that the segment can be written again.

    scan -> copy live blocks and the tombstones still needed -> fdatasync -> one index batch (new places; the segment is
    free under a new generation) -> tell the store -> new generation into the segment's own header -> wait for reads in
    flight -> the segment is free

Until the index batch the old places count, from then on the new ones: a crash at any step leaves each block in one of them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from mooncask.errors import TierDegraded
from mooncask.tiers.block import BlockRecord, Extent
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.buffers import aligned_buffer
from mooncask.tiers.nvme.file_layer import read_fully, write_fully
from mooncask.tiers.nvme.group_commit import Entry, GroupCommit
from mooncask.tiers.nvme.index_entry import Change, Move, SegmentState, Set, Use, segment_key
from mooncask.tiers.nvme.log import Log, release_writes
from mooncask.tiers.nvme.record import HEADER_BYTES, Header, Place, Tombstone, pack_block
from mooncask.tiers.nvme.scan import Scanner
from mooncask.tiers.nvme.segment import Head, Segment, SegmentTable, State
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)

IsLive = Callable[[BlockRecord], Extent | None]
"""Where the store thinks this very copy lies; None when it is gone."""
Moved = Callable[[BlockRecord, Extent, Extent], bool]
"""(record, old, new): use the new place from now on. False: the block died meanwhile."""

_COPY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class _Copy:
    record: BlockRecord
    old: Place
    new: Place
    length: int


class Reclaimer:
    """One segment at a time, in the background. For the event loop's thread."""

    def __init__(
        self,
        log_: Log,
        files: SegmentFiles,
        workers: Workers,
        group: GroupCommit,
        is_live: IsLive,
        moved: Moved,
    ) -> None:
        self._log = log_
        self._table: SegmentTable = log_.table
        self._files = files
        self._workers = workers
        self._group = group
        self._is_live = is_live
        self._moved = moved
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._closed = False
        self._waiters: list[asyncio.Future[None]] = []
        self._draining: dict[int, tuple[Segment, int]] = {}
        self.reclaimed_segments = 0

    # --- asking ---

    async def room(self, length: int) -> bool:
        """True when the writers can take `length` bytes now; False when reclaiming can't make room for them.

        Waits as long as the reclaimer gets on. More room may come from freeing extents.
        """
        while not (self._closed or self._group.degraded):
            if self._table.can_take(Head.WRITERS, length):
                return True
            if not self._busy() and self._table.victim(urgent=True, passed_over=set()) is None:
                return False
            if not await self._one_round():
                return self._table.can_take(Head.WRITERS, length)
        return False

    def kick(self) -> None:
        """Look whether there is something to reclaim."""
        if self._closed or self._group.degraded:
            return
        if self._task is not None and not self._task.done():
            self._again = True
            return
        self._task = self._log.spawn(self._run())

    async def close(self) -> None:
        """Ends after the segment in hand."""
        self._closed = True
        if self._task is not None:
            with suppress(TierDegraded):
                await self._task
        self._wake()

    def _busy(self) -> bool:
        return (self._task is not None and not self._task.done()) or bool(self._draining)

    async def _one_round(self) -> bool:
        """Waits until a segment is free or the reclaimer has nothing more to do; whether a segment was freed."""
        before = self.reclaimed_segments
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.kick()
        await waiter
        return self.reclaimed_segments > before

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    # --- working ---

    async def _run(self) -> None:
        passed_over: set[int] = set()
        try:
            while not self._closed and not self._group.degraded:
                self._again = False
                victim = self._table.victim(bool(self._waiters), passed_over)
                if victim is None:
                    if self._again:
                        continue
                    break
                if not await self._reclaim(victim):
                    passed_over.add(victim.number)
        finally:
            if not self._draining:
                self._wake()

    async def _reclaim(self, victim: Segment) -> bool:
        """False when it can't be done now; all is as before then."""
        found = await self._scan(victim) if victim.live_bytes or victim.tombstones else []
        live = self._living(victim, found)
        if live is None or victim.busy:
            return False
        copies: list[_Copy] = []
        own: list[Segment] = []
        try:
            if not await self._copy_all(victim, live, copies):
                return self._take_back(copies)
            own = await self._log.write_tombstones([Head.RECLAIMER], self._needed(victim, found))
            crash_point("nvme.reclaim.copied")
            generation = self._table.next_generation()
            await self._group.settle(self._entry(victim, generation, copies, own))
        except (TierDegraded, OSError) as exc:
            log.warning("nvme tier: segment %d could not be reclaimed: %s", victim.number, exc)
            victim.unsaved = True  # the index may have been told that it is free
            return self._take_back(copies)
        finally:
            release_writes([self._table.segments[copy.new.segment] for copy in copies])
            release_writes(own)
        self._hand_over(victim, copies)
        return await self._retire(victim, generation)

    async def _scan(self, victim: Segment) -> list[Header]:
        scanner = Scanner(self._files, victim.number, victim.generation, victim.tail)
        return await run_off_loop(self._workers.sync, lambda: list(scanner.headers()))

    def _living(self, victim: Segment, found: Sequence[Header]) -> list[Header] | None:
        """The blocks to copy; None when somebody holds bytes in this segment that the store does not name.

        That is a block whose commit has just returned, an extent a reader keeps, or a damaged header: wait for them.
        """
        lengths = {header.place.offset: header.length for header in found}
        unfreed = sum(lengths.get(offset, 0) for offset in victim.deleted)
        live: list[Header] = []
        named = 0
        for header in found:
            extent = self._place_now(header)
            if extent is not None:
                live.append(header)
                named += extent.length
        return live if named + unfreed == victim.live_bytes else None

    def _place_now(self, header: Header) -> Extent | None:
        """The store's extent, when this record is the living copy of its block."""
        extent = self._is_live(header.block) if header.block is not None else None
        return extent if extent is not None and self._table.place_of(extent) == header.place else None

    def _needed(self, victim: Segment, found: Sequence[Header]) -> list[Tombstone]:
        """Tombstones that may still keep a copy in another segment dead."""
        oldest = self._table.oldest_generation(beside=victim)
        return [tombstone for header in found for tombstone in header.tombstones if tombstone.horizon >= oldest]

    async def _copy_all(self, victim: Segment, live: Sequence[Header], copies: list[_Copy]) -> bool:
        """Fills `copies`; False when room ran out."""
        for header in live:
            # Asked again, and no await until the place is taken: a tombstone written later has a horizon that covers it.
            if header.block is None or self._place_now(header) is None:
                continue
            place = self._table.take(Head.RECLAIMER, header.length)
            if place is None:
                return False
            target = self._table.segments[place.segment]
            target.writes += 1
            self._table.add_copy(place, header.length)
            copies.append(_Copy(header.block, header.place, place, header.length))
            await self._log.ready(target)
            try:
                await run_off_loop(self._workers.io, partial(self._copy, copies[-1]))
            except OSError as exc:
                self._log.write_failed(target, exc)
                raise
        return True

    def _copy(self, copy: _Copy) -> None:
        """Header for the new place, payload as it is: its checksum goes with it, so nothing wrong becomes right."""
        buffer = aligned_buffer(min(copy.length, _COPY_BYTES))
        done = HEADER_BYTES
        pack_block(buffer[:HEADER_BYTES], self._files.store, copy.new, copy.record)
        filled = HEADER_BYTES
        while True:
            part = min(len(buffer) - filled, copy.length - done)
            self._read_part(copy.old, done, buffer[filled : filled + part])
            with self._files.descriptor(copy.new.segment) as fd:
                write_fully(self._files.files, fd, [buffer[: filled + part]], copy.new.offset + done - filled)
            done += part
            filled = 0
            if done >= copy.length:
                return

    def _read_part(self, old: Place, start: int, into: memoryview) -> None:
        """What can't be read is copied as zeros: its checksum will tell, and the segment does not stay for ever."""
        got = 0
        try:
            with self._files.descriptor(old.segment) as fd:
                got = read_fully(self._files.files, fd, [into], old.offset + start)
        except OSError as exc:
            log.error("nvme tier: a block in segment %d can't be read while it is moved: %s", old.segment, exc)
        into[got:] = bytes(len(into) - got)

    def _entry(self, victim: Segment, generation: int, copies: Sequence[_Copy], own: Sequence[Segment]) -> Entry:
        changes: list[Change] = [Move(c.record.namespace, c.record.key, c.old, c.new) for c in copies]
        changes.append(Set(segment_key(victim.number), SegmentState(generation, Use.FREE, 0).pack()))
        targets = frozenset([*own, *(self._table.segments[copy.new.segment] for copy in copies)])
        return Entry("reclaim", changes, targets)

    def _take_back(self, copies: Sequence[_Copy]) -> bool:
        for copy in copies:
            self._table.drop_copy(copy.new, copy.length)
        return False

    def _hand_over(self, victim: Segment, copies: Sequence[_Copy]) -> None:
        for copy in copies:
            old = self._table.extent_at(copy.old, copy.length, copy.record.size)
            new = self._table.extent_at(copy.new, copy.length, copy.record.size)
            victim.moved.add(copy.old.offset)  # a store may free the old place: that must not take out the new one
            if self._moved(copy.record, old, new):
                self._table.drop_copy(copy.old, copy.length)
                continue
            victim.moved.discard(copy.old.offset)
            self._table.drop_copy(copy.new, copy.length)
            self._table.segments[copy.new.segment].hidden.add(copy.new.offset)

    async def _retire(self, victim: Segment, generation: int) -> bool:
        """The victim's records count no longer; it is free once nobody reads it."""
        crash_point("nvme.reclaim.moved")
        work = partial(self._files.prepare, victim.number, generation, victim.header_copy)
        try:
            victim.header_copy = await run_off_loop(self._workers.sync, work)
        except OSError as exc:
            victim.headed = False
            self._log.write_failed(victim, exc)
            return False
        crash_point("nvme.reclaim.retired")
        victim.state = State.DRAINING
        self._draining[victim.number] = victim, generation
        self.reader_left(victim)
        return True

    def reader_left(self, segment: Segment) -> None:
        """To be called when a segment may have lost its last reader."""
        if segment.readers or segment.number not in self._draining:
            return
        victim, generation = self._draining.pop(segment.number)
        self._table.release(victim, generation)
        self.reclaimed_segments += 1
        self._wake()
        self._shrink(victim.number)
        self._log.keep_spare()

    def _shrink(self, number: int) -> None:
        """A folder that was bigger gives its segments back as they become free."""
        if self._table.too_many:
            self._table.discard(self._table.segments[number])
            self._log.spawn(self._remove_file(number))

    async def _remove_file(self, number: int) -> None:
        await run_off_loop(self._workers.sync, partial(self._files.remove, number))
