"""The NVMe tier: a log of segments read and written with O_DIRECT, an index in RocksDB beside it.

docs/FORMAT.md says what lies on the disk and what a crash at each step leaves. Here is the facade; the parts are log.py
(places, writing), group_commit.py (durability), reclaim.py, rebuild.py, opening.py, check.py.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from mooncask.errors import BadRequest, BlockTooLarge, CorruptBlock, TierDegraded
from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.checksum import check_room
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.check import Problem, Progress, check_tier
from mooncask.tiers.nvme.config import NvmeConfig
from mooncask.tiers.nvme.file_layer import FileLayer
from mooncask.tiers.nvme.group_commit import Entry, GroupCommit
from mooncask.tiers.nvme.index import IndexFault
from mooncask.tiers.nvme.index_entry import (
    META_SEQUENCE,
    BlockEntry,
    Change,
    Delete,
    Forget,
    Put,
    Set,
    SetMeta,
    pack_sequence,
)
from mooncask.tiers.nvme.log import Log, release_writes
from mooncask.tiers.nvme.namespace_store import NamespaceStore
from mooncask.tiers.nvme.opening import SEQUENCES_AHEAD, Opened, open_tier
from mooncask.tiers.nvme.reader import Reader
from mooncask.tiers.nvme.reclaim import IsLive, Moved, Reclaimer
from mooncask.tiers.nvme.record import (
    Place,
    Tombstone,
    check_header_room,
    record_length,
)
from mooncask.tiers.nvme.recovered import RecoveredBlock, recovered_blocks
from mooncask.tiers.nvme.reopening import IndexReopener
from mooncask.tiers.nvme.segment import Head, Segment
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class NvmeTier:
    """A `Tier` whose commits survive a crash. Made by `NvmeTier.open`.

    Called from the event loop's thread; any number of commits, reads and deletes may be under way at a time. For one
    key the caller orders its own commits and deletes.
    """

    name = TierName.NVME

    def __init__(self, config: NvmeConfig, opened: Opened, files: FileLayer, is_live: IsLive, moved: Moved) -> None:
        self.capacity_bytes = config.capacity_bytes
        self.highest_sequence = opened.highest_sequence
        """Every sequence that was ever on this disk is at most this one; at the moment of opening."""
        self.rebuilt = opened.rebuilt
        """What the rebuild of the index found; None when there was none."""
        self._folder = opened.folder
        self._files = opened.files
        self._table = opened.table
        self._sequence_mark = opened.sequence_mark
        self._raising: asyncio.Task[None] | None = None
        self._workers = Workers(config.io_threads)
        self._group = GroupCommit(self._table, self._files, self._workers, opened.index)
        self._reopener = IndexReopener(self._folder.path, files, self._workers, self._group)
        self._group.on_index_fault = self._reopener.start
        self._log = Log(self._table, self._files, self._workers, self._group)
        self._reader = Reader(self._files, self._workers, self._log.pages)
        self._namespaces = NamespaceStore(
            self._folder.path, opened.namespaces, self._table, self._files, self._workers, self._group
        )
        self._reclaimer = Reclaimer(self._log, self._files, self._workers, self._group, is_live, moved)
        self._table.on_open = self._segment_opened
        self._committing: dict[tuple[int, bytes], list[Entry]] = {}
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @classmethod
    async def open(
        cls, config: NvmeConfig, is_live: IsLive, moved: Moved, files: FileLayer | None = None
    ) -> "NvmeTier":
        """Open the data folder, rebuilding the index if need be; `recovered` is ready afterwards.

        `is_live` and `moved` are asked on the loop's thread, while the tier is reclaiming. Raises ConfigError,
        FolderInUse, ForeignFolder, UnsupportedVersion, FolderNotWritable, NoDirectIO.
        """
        files = files or FileLayer()
        opened = await asyncio.to_thread(open_tier, config, files)
        tier = cls(config, opened, files, is_live, moved)
        tier._log.keep_spare()
        return tier

    async def close(self) -> None:
        """Ends what is under way, writes the evictions that wait, releases files and threads."""
        await self._idle.wait()
        await self._reopener.close()
        await self._reclaimer.close()
        await self._log.close()
        self._table.seal_heads()
        try:
            await self._group.flush()
        except TierDegraded as exc:
            log.warning("nvme tier: evictions of the last moments are not in the index: %s", exc)
        try:
            await run_off_loop(self._workers.index, self._group.index.close)
        except IndexFault as exc:
            log.warning("nvme tier: closing the index: %s", exc)
        self._workers.close()
        self._files.close()
        self._folder.close()

    # --- state ---

    @property
    def used_bytes(self) -> int:
        return self._table.used_bytes

    @property
    def usable_bytes(self) -> int:
        """What blocks and their headers can occupy: the capacity without the index's 2 % and the reclaimer's two segments.

        Unused ends of segments count against it too, so `reserve` may find no room a little earlier.
        """
        return self._table.usable_bytes

    @property
    def block_bytes_max(self) -> int:
        return self._table.layout.block_bytes_max

    @property
    def state(self) -> str:
        """ "ok", or "degraded: why"; a degraded tier is read-only."""
        return f"degraded: {self._group.degraded}" if self._group.degraded else "ok"

    @property
    def reclaimed_segments(self) -> int:
        return self._reclaimer.reclaimed_segments

    @property
    def recovered(self) -> Iterator[RecoveredBlock]:
        """What the index holds, decoded as it is taken: for the store's catalogue, once, right after opening."""
        return recovered_blocks(self._group.index, self._table.layout.segment_bytes)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        for entry in self._group.index.entries():
            segment = self._table.at(entry.place)
            if segment is not None and entry.place.offset not in segment.hidden:
                yield entry.record.namespace, entry.record.key

    # --- a block's life ---

    def reserve(self, size: int) -> Extent | None:
        """A place for `size` payload bytes; None when there is none now: `room` tells whether waiting helps.

        Raises BlockTooLarge for what fits into no segment.
        """
        if size > self.block_bytes_max:
            raise BlockTooLarge(size, self.block_bytes_max)
        length = record_length(size)
        place = None if self._group.degraded else self._table.reserve(length)
        return None if place is None else self._table.extent_at(place, length, size)

    async def room(self, size: int) -> bool:
        """Waits until `size` payload bytes can be reserved (True) or reclaiming can't bring that about (False).

        After False only giving up blocks helps.
        """
        return await self._counted(self._reclaimer.room(record_length(size)))

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        """As `Tier.commit`; durable when it returns. `payload` may be padded to a multiple of 4 KiB, which saves a copy."""
        await self._counted(self._commit(extent, record, payload))

    async def _commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        self._group.refuse_if_degraded()
        check_header_room(len(record.key), len(record.parent), len(record.attributes))
        if payload.nbytes < record.size:
            raise BadRequest(f"block {record.name} has {record.size} bytes; its payload {payload.nbytes}")
        segment, place = self._table.of(extent), self._table.place_of(extent)
        assert segment is not None and place.offset in segment.reserved, "commit of an extent that is not reserved"
        assert record_length(record.size) <= extent.length, "the record is longer than its place"
        put = Put(BlockEntry(place, record))
        entry = Entry("commit", (put,), frozenset((segment,)), extent.length)
        name = (record.namespace, record.key)
        self._committing.setdefault(name, []).append(entry)
        try:
            await self._raise_mark(record.sequence)
            await self._log.ready(segment)
            segment.begun.add(place.offset)
            await self._log.write_block(place, segment, record, payload)
            crash_point("nvme.commit.written")
            await self._group.settle(entry)
        finally:
            self._end_commit(name, entry, segment, place)

    def _end_commit(self, name: tuple[int, bytes], entry: Entry, segment: Segment, place: Place) -> None:
        if entry.indexed:  # else it stays a reservation, and what was written of it is blanked when it is freed
            segment.reserved.discard(place.offset)
            segment.begun.discard(place.offset)
        same = self._committing[name]
        same.remove(entry)
        if not same:
            del self._committing[name]

    async def _raise_mark(self, sequence: int) -> None:
        """No sequence reaches the disk above the mark that the index holds: a start need not look for the highest."""
        while sequence > self._sequence_mark:
            if self._raising is None or self._raising.done():
                self._raising = asyncio.create_task(self._save_mark(sequence + SEQUENCES_AHEAD))
            await asyncio.shield(self._raising)

    async def _save_mark(self, mark: int) -> None:
        await self._group.settle(Entry("note", (Set(META_SEQUENCE, pack_sequence(mark)),)))
        self._sequence_mark = max(self._sequence_mark, mark)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        """As `Tier.read`, with one preadv. CorruptBlock also when the disk can't read (`why` begins with "unreadable"),
        and when the block was moved meanwhile: look where it is now before believing that."""
        await self._counted(self._read(extent, record, into))

    async def _read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        check_room(record, into)
        segment, place = self._table.of(extent), self._table.place_of(extent)
        if segment is None:
            raise CorruptBlock(record.name, "nvme", "its place was reclaimed")
        segment.readers += 1
        try:
            why = await self._reader.block(place, record, into)
        finally:
            segment.readers -= 1
            self._reclaimer.reader_left(segment)
        if why:
            raise CorruptBlock(record.name, "nvme", why)

    def free(self, extent: Extent) -> None:
        """Give the place back. A block that is committed there and was not deleted is forgotten with it.

        An extent whose block the reclaimer has moved needs no freeing; doing it is no harm.
        """
        segment, place = self._table.of(extent), self._table.place_of(extent)
        if segment is None or place.offset in segment.moved:
            return
        self._give_back(segment, extent.length)
        if place.offset in segment.reserved:
            self._abandon(segment, place)
        elif place.offset in segment.deleted:
            segment.deleted.discard(place.offset)
        else:
            segment.hidden.add(place.offset)
            segment.readers += 1
            self._log.spawn(self._forget_unnamed(segment, place))
        self._freed(segment)

    def forget(self, extent: Extent, record: BlockRecord) -> None:
        """Evict: give the place back and take the block out of the index with the next batch. No tombstone: after a crash,
        or a rebuild of the index, it may be there again, whole."""
        segment, place = self._table.of(extent), self._table.place_of(extent)
        if segment is None:
            return
        self._give_back(segment, extent.length)
        if place.offset in segment.reserved:
            self._abandon(segment, place)
        elif place.offset in segment.deleted:
            segment.deleted.discard(place.offset)
        else:
            segment.hidden.add(place.offset)
            self._group.remove_later(Forget(record.namespace, record.key, record.sequence))
        self._freed(segment)

    def _abandon(self, segment: Segment, place: Place) -> None:
        """A reservation ends without a block. What was written of it must not be found by a rebuild."""
        segment.reserved.discard(place.offset)
        if place.offset in segment.begun:
            segment.begun.discard(place.offset)
            segment.writes += 1
            self._log.spawn(self._log.blank(segment, place))

    def _give_back(self, segment: Segment, length: int) -> None:
        assert segment.live_bytes >= length, f"segment {segment.number}: an extent was freed twice"
        self._table.drop_live(segment, length)

    def _freed(self, segment: Segment) -> None:
        self._table.drop_absent(segment)
        if self._table.worth_a_look(segment):
            self._reclaimer.kick()

    async def _forget_unnamed(self, segment: Segment, place: Place) -> None:
        """`free` names no key: the header does."""
        try:
            header = await self._reader.header(place)
        finally:
            segment.readers -= 1
            self._reclaimer.reader_left(segment)
        if header is not None and header.block is not None:
            block = header.block
            self._group.remove_later(Forget(block.namespace, block.key, block.sequence))

    # --- for good ---

    async def delete(self, blocks: Sequence[tuple[int, bytes, int]]) -> None:
        """Delete (namespace, key, sequence) for good: that copy and every older one. Durable when it returns.

        Writes under way of those sequences end well, but the index never hears of them. The extents are still to be
        freed. Raises TierDegraded; the blocks may then be there again after a restart.
        """
        if blocks:
            await self._counted(self._delete(blocks))

    async def _delete(self, blocks: Sequence[tuple[int, bytes, int]]) -> None:
        self._group.refuse_if_degraded()
        for namespace, key, sequence in blocks:
            for entry in self._committing.get((namespace, key), ()):
                self._kill_older(entry, sequence)
        await self._raise_mark(max(sequence for _, _, sequence in blocks))
        horizon = self._table.highest_generation
        tombstones = [Tombstone(namespace, key, sequence, horizon) for namespace, key, sequence in blocks]
        changes: list[Change] = [Delete(namespace, key, sequence) for namespace, key, sequence in blocks]
        written = await self._log.write_tombstones([Head.WRITERS, Head.RECLAIMER], tombstones)
        try:
            crash_point("nvme.delete.written")
            await self._group.settle(Entry("delete", changes, frozenset(written)))
        finally:
            release_writes(written)

    def _kill_older(self, entry: Entry, sequence: int) -> None:
        for change in entry.changes:
            if isinstance(change, Put) and change.entry.record.sequence <= sequence:
                entry.dead = True

    async def put_meta(self, record: BlockRecord, ttl_deadline: float, pins: int) -> None:
        """Time to live (wall clock seconds, 0 = none) and pins of a committed block; in the index only, durable."""
        change = SetMeta(record.namespace, record.key, record.sequence, ttl_deadline, pins)
        await self._counted(self._group.settle(Entry("note", (change,))))

    async def save_namespace(self, number: int, blob: bytes) -> None:
        """Remember a namespace, durably. To be done before its first block is committed."""
        await self._counted(self._namespaces.save(number, blob))

    def saved_namespaces(self) -> dict[int, bytes]:
        return dict(self._namespaces.known.blobs)

    @property
    def highest_namespace(self) -> int:
        """The highest number that was ever saved; dropped ones count, and none may be used again."""
        return self._namespaces.known.highest

    async def drop_namespace(self, number: int) -> None:
        """Forget a namespace and, for good, all its blocks. Their extents are still to be freed."""
        writes = [entry for (namespace, _), some in self._committing.items() if namespace == number for entry in some]
        await self._counted(self._namespaces.drop(number, writes))

    async def check(self, progress: Progress | None = None) -> list[Problem]:
        """See `check_tier`, which also says what a check can't detect. Reads all blocks; changes nothing."""
        return await self._counted(check_tier(self._table, self._files, self._workers, self._group, progress))

    # --- in the background ---

    def _segment_opened(self) -> None:
        self._log.keep_spare()
        self._reclaimer.kick()

    async def _counted(self, call: Coroutine[Any, Any, Result]) -> Result:
        """`close` waits for calls that are under way."""
        self._calls += 1
        self._idle.clear()
        try:
            return await call
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()
