"""Learns what is in the bucket: lists the index objects now and then, reads those that are new, forgets the packs of those that are
gone. What this node writes itself it knows already (`spilling.py`)."""

import asyncio
import logging
import time
from collections.abc import Sequence

from mooncask.daemon.cold.bucket import BucketFault, Found
from mooncask.daemon.cold.index import Block, Pack, PackName
from mooncask.daemon.cold.index_object import IndexBody, PackEntry, decode_index, numbers
from mooncask.daemon.cold.names import INDEX, parse_numbered
from mooncask.daemon.cold.pack import BadObject
from mooncask.daemon.cold.world import IndexFile, World

log = logging.getLogger(__name__)

READS = 4
READ_SECONDS = 30.0
INDEX_BYTES_MAX = 256 << 20
FILES_MAX = 1 << 16
NAMESPACES_MAX = 1 << 16


class Refreshing:
    """Of one daemon. Looks are made one at a time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lock = asyncio.Lock()
        self._looked: float | None = None
        self._again: set[PackName] = set()
        self.looks = 0
        """That went well."""

    async def run(self) -> None:
        """For ever. When the bucket is down, as soon as it may be asked again."""
        while True:
            try:
                if self._world.usable():
                    await self.look()
            except Exception:
                log.exception("a look at the bucket failed by a fault of this daemon")
            await asyncio.sleep(self._world.section.refresh if self.looks else min(1.0, self._world.section.refresh))

    async def look(self, age_seconds_max: float = 0.0) -> None:
        """Unless the last one was begun so lately. What fails is noted, and raises nothing."""
        async with self._lock:
            began = time.monotonic()
            if self._looked is not None and began - self._looked < age_seconds_max:
                return
            try:
                await self._look()
            except BucketFault as error:
                self._world.failed("looking", error)
                return
            self._looked = began
            self.looks += 1
            self._world.worked()

    async def _look(self) -> None:
        world = self._world
        before = set(world.files)
        listed: dict[str, Found] = {}
        async for found in world.bucket.list(INDEX):
            if len(listed) < FILES_MAX and parse_numbered(found.path, INDEX) is not None:
                listed[found.path] = found
        again = self._to_read_again()
        new = [found for path, found in listed.items() if path not in world.files or path in again]
        for first in range(0, len(new), READS):
            some = new[first : first + READS]
            for found, body in zip(some, await asyncio.gather(*map(self._read, some)), strict=True):
                await self._take_in(found, body)
        self._forget(before - listed.keys())

    async def _read(self, found: Found) -> IndexBody | None:
        """None: it is gone already, or can't be read."""
        named = parse_numbered(found.path, INDEX)
        assert named is not None
        if found.size > INDEX_BYTES_MAX:
            self._unreadable(found.path, f"of {found.size} bytes")
            return IndexBody([], [])
        data = await self._world.bucket.get(found.path, READ_SECONDS)
        if data is None:
            return None
        try:
            return await asyncio.to_thread(decode_index, data, self._world.sealing, named.run.incarnation, named.number)
        except BadObject as error:
            self._unreadable(found.path, str(error))
            return IndexBody([], [])

    def _unreadable(self, path: str, why: str) -> None:
        """Said once: it is not read again."""
        self._world.counters["cold_indexes_unreadable"] += 1
        if self._world.why_unreadable != why:
            log.error("%s of the bucket is of no use: %s", path, why)
        self._world.why_unreadable = why

    async def _take_in(self, found: Found, body: IndexBody | None) -> None:
        if body is None:
            return
        world, owners = self._world, [one.ns_id for one in body.namespaces]
        if len(world.namespaces) < NAMESPACES_MAX:
            world.namespaces.update((one.ns_id, one) for one in body.namespaces)
        names = []
        for entry in body.packs:
            names.append(await self._add(entry, owners))
        world.files[found.path] = IndexFile(found.size, tuple(names))

    async def _add(self, entry: PackEntry, owners: Sequence[bytes]) -> PackName:
        world, name = self._world, PackName(entry.incarnation, entry.number)
        pack = Pack(name, entry.node, entry.size, entry.created, entry.key_id)
        columns = zip(numbers(entry.owners), entry.keys, numbers(entry.offsets), numbers(entry.lengths), strict=True)
        await world.take_in(pack, (Block(owners[owner], key, offset, length) for owner, key, offset, length in columns))
        return name

    def drop(self, name: PackName) -> None:
        """The pack is not to be found any more. Packs that have copies of what was in it are looked at again."""
        if self._world.drop(name):
            self._again.update(pack.name for pack in self._world.index.packs if pack.shadowed)

    def _forget(self, gone: set[str]) -> None:
        """Packs that no index object names any more."""
        files = self._world.files
        lost = {name for path in gone if path in files for name in files.pop(path).packs}
        for file in files.values():
            lost.difference_update(file.packs)
        for name in lost - self._world.writing:
            self.drop(name)

    def _to_read_again(self) -> set[str]:
        """Index objects of packs that may have copies of what has gone with another pack."""
        again, self._again = self._again, set()
        return (
            {path for path, file in self._world.files.items() if not again.isdisjoint(file.packs)} if again else set()
        )
