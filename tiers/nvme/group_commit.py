"""Group commit: many writes share one fdatasync a segment and one synced index batch, and only then are acknowledged.

    write A --+
    write B --+--> fdatasync of each segment written --> one index batch --> A, B, C return
    write C --+          (a failed one fences its segment; its writes fail, the others go on)

One group at a time; what arrives meanwhile forms the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from mooncask.errors import MooncaskError, TierDegraded
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.index import Index, IndexFault
from mooncask.tiers.nvme.index_entry import Change, Forget, Move, Put, SegmentState, Set, Use, segment_key
from mooncask.tiers.nvme.record import Place
from mooncask.tiers.nvme.segment import Segment, SegmentTable
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.waiting import outlast
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)

GROUP_BYTES = 64 << 20
"""A group waits for no more writes once it has this much: fdatasync and index batch are then under 10 % of its time."""
LINGER_SECONDS = 0.05
"""How long a group waits at most for writes that are on their way to the disk already."""
REMOVALS_MAX = 1024
"""Evictions wait for the next group up to this many."""
FENCES_MAX = 3
"""After so many lost segments in a row, without one fdatasync that succeeds, the disk is at fault, not a place on it."""


@dataclass(slots=True, eq=False)
class Entry:
    """One thing to make durable: what it wrote to and what the index shall say of it."""

    kind: str
    """commit, delete, reclaim or note; names the crash points."""
    changes: Sequence[Change]
    segments: frozenset[Segment] = frozenset()
    size_bytes: int = 0
    dead: bool = False
    """Deleted while it was being written: the index never hears of it."""
    applied: bool = False
    """It is durable."""
    indexed: bool = False
    """The index was told of it: it was not dead when its group's batch was made."""
    done: "asyncio.Future[None]" = field(init=False)

    def kill(self) -> None:
        self.dead = True


class GroupCommit:
    """Makes entries durable in groups. For the event loop's thread."""

    def __init__(self, table: SegmentTable, files: SegmentFiles, workers: Workers, index: Index) -> None:
        self._table = table
        self._files = files
        self._workers = workers
        self.index = index
        self.degraded = ""
        """Why the tier takes no writes; empty when it does."""
        self.on_index_fault: Callable[[], None] = lambda: None
        self._writing = 0
        self._waiting: list[Entry] = []
        self._removals: list[Change] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._fences = 0
        self._undo_due = False
        """Removals wait that take back a batch of unknown outcome: not to be left for long."""

    def refuse_if_degraded(self) -> None:
        if self.degraded:
            raise TierDegraded("nvme", self.degraded)

    def recovered(self) -> None:
        """The index can be written again."""
        self.degraded = ""
        if self._undo_due:
            self._start()

    # --- arriving ---

    def write_began(self) -> None:
        self._writing += 1

    def write_ended(self) -> None:
        self._writing -= 1
        self._wake.set()

    def remove_later(self, change: Change) -> None:
        """An eviction: rides with the next group."""
        self._removals.append(change)
        if len(self._removals) >= REMOVALS_MAX and not self.degraded:
            self._start()

    async def settle(self, entry: Entry) -> None:
        """Returns when the entry is durable. TierDegraded when it can't be made so.

        Cancelling waits for the group to end; `entry.indexed` then tells whether the index knows of it.
        """
        self.refuse_if_degraded()
        entry.done = asyncio.get_running_loop().create_future()
        self._waiting.append(entry)
        self._start()
        await outlast(entry.done, entry.kill)

    async def flush(self) -> None:
        """Ends what is under way and writes what waits for a next group: evictions, segments that were sealed."""
        while self._task is not None and not self._task.done():
            await asyncio.wait((self._task,))
        unsaved = [segment_state(s, Use.SEALED) for s in self._table if s.unsaved and s.settled]
        if (self._removals or unsaved) and not self.degraded:
            await self.settle(Entry("note", unsaved))

    def _start(self) -> None:
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    # --- one group ---

    async def _run(self) -> None:
        while self._waiting or self._removals_due():
            await self._linger()
            group, self._waiting = self._waiting, []
            try:
                await self._settle(group)
            except BaseException as error:
                self._fail([*group, *self._waiting], str(error) or type(error).__name__)
                self._waiting = []
                raise
            if self.degraded:
                break
        self._fail(self._waiting, self.degraded)
        self._waiting = []

    def _removals_due(self) -> bool:
        return len(self._removals) >= REMOVALS_MAX or self._undo_due

    async def _linger(self) -> None:
        """Wait a little for writes in flight, so that they share this group's fdatasync."""
        loop = asyncio.get_running_loop()
        until = loop.time() + LINGER_SECONDS
        while self._writing and sum(entry.size_bytes for entry in self._waiting) < GROUP_BYTES:
            left = until - loop.time()
            if left <= 0:
                return
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return

    async def _settle(self, group: list[Entry]) -> None:
        await self._sync({segment for entry in group for segment in entry.segments})
        kinds = {entry.kind for entry in group}
        for kind in kinds:
            crash_point(f"nvme.{kind}.synced")
        good: list[Entry] = []
        for entry in group:
            faults = [segment.fault for segment in entry.segments if segment.fault]
            if faults:
                self._fail([entry], faults[0])
            else:
                good.append(entry)
        await self._apply(good)
        for kind in kinds:
            crash_point(f"nvme.{kind}.indexed")
        for entry in good:
            if entry.applied:
                entry.done.set_result(None)

    async def _sync(self, segments: Iterable[Segment]) -> None:
        wanted = [segment for segment in segments if not segment.fault]
        jobs = (run_off_loop(self._workers.sync, partial(self._fdatasync, segment.number)) for segment in wanted)
        for segment, why in zip(wanted, await asyncio.gather(*jobs), strict=True):
            if why:
                self._sync_failed(segment, why)
            else:
                self._fences = 0

    def _fdatasync(self, number: int) -> str:
        try:
            with self._files.descriptor(number) as fd:
                self._files.files.fdatasync(fd)
        except OSError as exc:
            return exc.strerror or str(exc)
        return ""

    def _sync_failed(self, segment: Segment, why: str) -> None:
        """The kernel may have dropped the pages and will answer the next fdatasync with success: never ask it again."""
        segment.fault = f"fdatasync of segment {segment.number} failed: {why}"
        log.error("%s; the segment is fenced, its blocks stay readable", segment.fault)
        self._table.fence(segment)
        self.segment_lost(why)

    def segment_lost(self, why: str) -> None:
        """A segment was fenced for a fault of the disk; several in a row, and the tier stays read-only until a restart."""
        self._fences += 1
        if self._fences >= FENCES_MAX:
            self.degraded = f"{self._fences} segments in a row could not be written: {why}"
            log.error("nvme tier: %s", self.degraded)

    async def _apply(self, good: list[Entry]) -> None:
        removals, self._removals = self._removals, []
        self._undo_due = False
        told = [entry for entry in good if not entry.dead]
        changes = [*removals, *(change for entry in told for change in entry.changes)]
        if changes:
            unsaved = [segment for segment in self._table if segment.unsaved and segment.settled]
            # Before the entries: one that is reclaimed in this batch is said to be free after it.
            changes = [*(segment_state(segment, Use.SEALED) for segment in unsaved), *changes]
            for segment in unsaved:
                segment.unsaved = False  # what changes during the batch is news for the next one
            try:
                lost = await run_off_loop(self._workers.index, partial(self.index.apply, changes))
            except IndexFault as fault:
                for segment in unsaved:
                    segment.unsaved = True
                self._index_failed(good, removals, fault)
                return
            self._note_lost(lost)
        for entry in good:
            entry.applied = True
        for entry in told:
            entry.indexed = True

    def _note_lost(self, places: Iterable[Place]) -> None:
        """Copies that left the index: their extents are freed already (`hidden`) or will be (`deleted`)."""
        for place in places:
            segment = self._table.at(place)
            if segment is None:
                continue
            if place.offset in segment.hidden:
                segment.hidden.discard(place.offset)
            else:
                segment.deleted.add(place.offset)

    def _index_failed(self, good: list[Entry], removals: list[Change], fault: IndexFault) -> None:
        """Nobody knows whether the batch took effect: what it put is removed as soon as the index can be written again."""
        self.degraded = f"the index can't be written: {fault}"
        log.error("nvme tier: %s", self.degraded)
        undo = [undone for entry in good for change in entry.changes if (undone := _undo(change)) is not None]
        self._removals = [*removals, *undo, *self._removals]
        self._undo_due = True
        self._fail(good, self.degraded)
        self.on_index_fault()

    def _fail(self, entries: Iterable[Entry], why: str) -> None:
        for entry in entries:
            if not entry.done.done():
                error: MooncaskError = TierDegraded("nvme", why)
                entry.done.set_exception(error)


def _undo(change: Change) -> Change | None:
    """What takes back a change that may or may not have happened, and does nothing if it has not."""
    match change:
        case Put(entry):
            return Forget(entry.record.namespace, entry.record.key, entry.record.sequence)
        case Move(namespace, key, old, new):
            return Move(namespace, key, old=new, new=old)
    return None


def segment_state(segment: Segment, use: Use) -> Change:
    return Set(segment_key(segment.number), SegmentState(segment.generation, use, segment.tombstones).pack())
