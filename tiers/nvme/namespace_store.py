"""Saving and dropping namespaces: the file first, since a rebuild goes by it, then the index."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from mooncask.errors import TierDegraded
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.group_commit import Entry, GroupCommit
from mooncask.tiers.nvme.index_entry import DropNamespace, Set, namespace_key
from mooncask.tiers.nvme.namespaces import NAMESPACES, NamespaceTable
from mooncask.tiers.nvme.segment import SegmentTable
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop


class NamespaceStore:
    """One change at a time. For the event loop's thread."""

    def __init__(
        self,
        folder: Path,
        known: NamespaceTable,
        table: SegmentTable,
        files: SegmentFiles,
        workers: Workers,
        group: GroupCommit,
    ) -> None:
        self._path = folder / NAMESPACES
        self.known = known
        self._table = table
        self._files = files
        self._workers = workers
        self._group = group
        self._lock = asyncio.Lock()

    async def save(self, number: int, blob: bytes) -> None:
        async with self._lock:
            self._group.refuse_if_degraded()
            self.known.save(number, blob)
            await self._publish()
            await self._group.settle(Entry("note", (Set(namespace_key(number), blob),)))

    async def drop(self, number: int, writes: Iterable[Entry]) -> None:
        """`writes`: those of the namespace's blocks that are under way; the index never hears of them."""
        for entry in writes:
            entry.dead = True
        async with self._lock:
            self._group.refuse_if_degraded()
            self.known.drop(number, self._table.highest_generation)
            await self._publish()
            crash_point("nvme.namespace.dropped")
            await self._group.settle(Entry("note", (DropNamespace(number),)))

    async def _publish(self) -> None:
        self.known.purge(self._table.oldest_generation())
        work = partial(self._files.files.publish, self._path, self.known.pack())
        try:
            await run_off_loop(self._workers.sync, work)
        except OSError as exc:
            raise TierDegraded("nvme", f"{NAMESPACES} can't be written: {exc.strerror or exc}") from exc
