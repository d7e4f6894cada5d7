"""The log: gives out places, keeps a spare segment ready, writes records. Group commit makes them durable afterwards.

one record = header page + payload, in one pwritev straight from the caller's memory
"""

import asyncio
import errno
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from mooncask.errors import TierDegraded
from mooncask.tiers.block import BlockRecord
from mooncask.tiers.nvme.buffers import PagePool, aligned_buffer, pieces_to_write
from mooncask.tiers.nvme.file_layer import write_fully
from mooncask.tiers.nvme.group_commit import Entry, GroupCommit, segment_state
from mooncask.tiers.nvme.index_entry import Use
from mooncask.tiers.nvme.record import (
    HEADER_BYTES,
    Place,
    Tombstone,
    pack_block,
    pack_tombstones,
    record_length,
    split_tombstones,
)
from mooncask.tiers.nvme.segment import Head, Segment, SegmentTable
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.nvme.write_queue import Pieces, WriteQueue
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)

RETRY_FULL_DISK_SECONDS = 30.0
TOMBSTONE_RECORDS_MAX = 64
"""Records of tombstones in one write."""


class Log:
    """Appends. For the event loop's thread; the writing itself is done by the workers."""

    def __init__(self, table: SegmentTable, files: SegmentFiles, workers: Workers, group: GroupCommit) -> None:
        self.table = table
        self.pages = PagePool()
        self._files = files
        self._workers = workers
        self._group = group
        self._writes = WriteQueue(files, workers)
        self._tasks: set[asyncio.Task[None]] = set()
        self._retry: asyncio.TimerHandle | None = None
        self._closed = False

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """A background task that `close` waits for; it reports its own errors."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, TierDegraded):
            log.error("nvme tier: %s", error, exc_info=error)

    async def close(self) -> None:
        """Ends preparing; the caller ended all else."""
        self._closed = True
        if self._retry is not None:
            self._retry.cancel()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    # --- segments that are ready to be written ---

    def keep_spare(self) -> None:
        """Have the next segment prepared before somebody needs it."""
        segment = None if self._closed or self._group.degraded else self.table.spare()
        if segment is not None:
            self._prepare(segment)

    async def ready(self, segment: Segment) -> None:
        """Returns when the segment can be written; TierDegraded when its file can't be made."""
        if segment.ready:
            return
        if segment.fault:
            raise TierDegraded("nvme", segment.fault)
        await asyncio.shield(self._prepare(segment))

    def _prepare(self, segment: Segment) -> "asyncio.Task[None]":
        if segment.preparing is None:
            segment.preparing = self.spawn(self._make_ready(segment))
        return segment.preparing

    async def _make_ready(self, segment: Segment) -> None:
        """Its file, then the index: a start looks for unacknowledged records only in segments that the index calls open."""
        try:
            if not segment.headed:
                await self._give_header(segment)
            await self._group.settle(Entry("note", (segment_state(segment, Use.OPEN),)))
            segment.ready = True
        finally:
            segment.preparing = None

    async def _give_header(self, segment: Segment) -> None:
        work = partial(self._files.prepare, segment.number, segment.generation, segment.header_copy)
        try:
            segment.header_copy = await run_off_loop(self._workers.sync, work)
        except OSError as exc:
            self._not_ready(segment, exc)
            raise TierDegraded("nvme", segment.fault) from exc
        segment.headed = True

    def _not_ready(self, segment: Segment, exc: OSError) -> None:
        segment.fault = f"segment {segment.number} could not be made: {exc.strerror or exc}"
        log.error("nvme tier: %s; it goes on with the %d it has", segment.fault, len(self.table.segments) - 1)
        full = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        self.table.give_up(segment, absent=full)
        if not full:
            self._group.segment_lost(segment.fault)
        else:
            self.table.limit = len(self.table.segments)
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(RETRY_FULL_DISK_SECONDS, self._try_all_again)

    def _try_all_again(self) -> None:
        self.table.limit = self.table.layout.segments

    # --- writing ---

    async def write_block(self, place: Place, segment: Segment, record: BlockRecord, payload: memoryview) -> None:
        """Header and payload; not yet durable. TierDegraded after a fault, which fences the segment."""
        page, spare = self.pages.take(), self.pages.take()
        try:
            pieces = partial(self._pieces, place, record, payload, page, spare)
            await self._write(segment, place, record_length(record.size), pieces)
        finally:
            self.pages.give(page)
            self.pages.give(spare)

    def _pieces(
        self, place: Place, record: BlockRecord, payload: memoryview, page: memoryview, spare: memoryview
    ) -> list[memoryview]:
        pack_block(page, self._files.store, place, record)
        return pieces_to_write(page, payload, record.size, spare)

    async def write_tombstones(self, heads: Sequence[Head], tombstones: Sequence[Tombstone]) -> list[Segment]:
        """Appends tombstones under the first of `heads` that has room; not yet durable.

        The segments returned have `writes` raised by one each: the caller lowers it when the index knows of them.
        """
        groups = list(split_tombstones(tombstones))
        written: list[Segment] = []
        try:
            for first in range(0, len(groups), TOMBSTONE_RECORDS_MAX):
                part = groups[first : first + TOMBSTONE_RECORDS_MAX]
                segment, place = self._place_own(heads, len(part) * HEADER_BYTES)
                written.append(segment)
                await self.ready(segment)
                await self._write(segment, place, len(part) * HEADER_BYTES, partial(self._tombstones, place, part))
                segment.tombstones += len(part)
        except BaseException:
            release_writes(written)
            raise
        return written

    def _place_own(self, heads: Sequence[Head], length: int) -> tuple[Segment, Place]:
        for head in heads:
            place = self.table.take(head, length)
            if place is not None:
                segment = self.table.segments[place.segment]
                segment.writes += 1
                return segment, place
        raise TierDegraded("nvme", "there is no room for a tombstone")

    def _tombstones(self, place: Place, groups: Sequence[Sequence[Tombstone]]) -> list[memoryview]:
        buffer = aligned_buffer(len(groups) * HEADER_BYTES)
        for number, group in enumerate(groups):
            start = number * HEADER_BYTES
            at = Place(place.segment, place.offset + start, place.generation)
            pack_tombstones(buffer[start : start + HEADER_BYTES], self._files.store, at, group)
        return [buffer]

    async def blank(self, segment: Segment, place: Place) -> None:
        """Zeros over the header of a write that was given up. The caller raised `writes`, which keeps the segment open."""
        try:
            await run_off_loop(self._workers.sync, partial(self._blank, place))
        except OSError as exc:
            self.write_failed(segment, exc)  # the index goes on calling it open: the next start blanks it
        finally:
            segment.writes -= 1

    def _blank(self, place: Place) -> None:
        with self._files.descriptor(place.segment) as fd:
            write_fully(self._files.files, fd, [aligned_buffer(HEADER_BYTES)], place.offset)
            self._files.files.fdatasync(fd)

    async def _write(self, segment: Segment, place: Place, length: int, pieces: Pieces) -> None:
        self._group.write_began()
        try:
            await self._writes.write(place, length, pieces)
        except OSError as exc:
            self.write_failed(segment, exc)
            raise TierDegraded("nvme", f"segment {segment.number} can't be written: {exc.strerror or exc}") from exc
        finally:
            self._group.write_ended()

    def write_failed(self, segment: Segment, exc: OSError) -> None:
        """What was written before may still be synced; nothing new goes there."""
        log.error("nvme tier: segment %d can't be written (%s): fenced", segment.number, exc.strerror or exc)
        self.table.fence(segment)
        self._group.segment_lost(exc.strerror or str(exc))


def release_writes(segments: Sequence[Segment]) -> None:
    """The records that `write_tombstones` wrote are known to the index, or given up."""
    for segment in segments:
        segment.writes -= 1
