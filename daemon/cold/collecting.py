"""What is dead leaves the bucket: first out of the index objects, `grace` later the pack itself, so that whoever knows it from before
meets a 404 at the latest then, which is a miss. Only packs of nodes that this one looks after (`owning.py`).

A pack without an index object, as a crash leaves it, goes the same way.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.daemon.cold.bucket import BucketFault
from mooncask.daemon.cold.choice import dead_packs, to_merge
from mooncask.daemon.cold.index import PackName
from mooncask.daemon.cold.index_object import (
    IndexBody,
    NamespaceEntry,
    PackEntry,
    column,
    decode_index,
    encode_index,
    numbers,
)
from mooncask.daemon.cold.names import INDEX, PACKS, Run, index_path, pack_path, parse_numbered
from mooncask.daemon.cold.pack import BadObject
from mooncask.daemon.cold.refreshing import READ_SECONDS, Refreshing
from mooncask.daemon.cold.world import IndexFile, World

log = logging.getLogger(__name__)

MERGE_FILES = 16
"""Small index objects of one node, above which they become one."""
MERGED_BYTES_MAX = 1 << 20
SWEEP_SECONDS = 3600.0
DUE_MAX = 1 << 16


class Collecting:
    """Of one daemon; `round` is called now and then, by one task."""

    def __init__(self, world: World, refreshing: Refreshing) -> None:
        self._world = world
        self._refreshing = refreshing
        self._due: dict[PackName, tuple[float, str]] = {}
        """Packs that are to be deleted: when, by the monotonic clock, and their paths."""
        self._sweep_at = 0.0

    @property
    def waiting(self) -> int:
        """Packs that are dead and still there."""
        return len(self._due)

    async def round(self) -> None:
        """Raises BucketFault."""
        if not self._refreshing.looks:
            return  # who does not know what is there takes nothing away
        await self._bury()
        for node in sorted(self._world.owned):
            await self._merge(node)
        await self._delete_due()
        if time.monotonic() >= self._sweep_at:
            await self._sweep()
            self._sweep_at = time.monotonic() + SWEEP_SECONDS

    # --- out of the index ---

    async def _bury(self) -> None:
        world, section = self._world, self._world.section
        own = [pack for pack in world.index.packs if pack.node in world.owned]
        dead = {
            pack.name: pack
            for pack in dead_packs(own, world.writing | world.reading, section.capacity, section.keep, time.time())
        }
        touched = dead.keys() | world.dead_blocks.keys()
        for path, file in list(world.files.items()):
            if not touched.isdisjoint(file.packs) and self._is_owned(path):
                await self._rewrite([path], frozenset(dead))
        for name, pack in dead.items():
            self._due_later(name, pack_path(pack.run, name.number))
            self._refreshing.drop(name)
            world.counters["cold_packs_dead"] += 1

    async def _merge(self, node: str) -> None:
        files = sorted(path for path in self._world.files if path.startswith(f"{INDEX}{node}/"))
        sizes = [self._world.files[path].size for path in files]
        chosen = to_merge(sizes, MERGE_FILES, MERGED_BYTES_MAX)
        if chosen:
            await self._rewrite([files[i] for i in chosen], frozenset())

    async def _rewrite(self, paths: Sequence[str], dead: frozenset[PackName]) -> None:
        """These index objects of one node become one, without what is dead. First the new one, then the old ones go."""
        world = self._world
        namespaces, packs = dict[bytes, NamespaceEntry](), list[_Kept]()
        for path in paths:
            body = await self._read(path)
            if body is None:
                return
            owners = [one.ns_id for one in body.namespaces]
            namespaces.update((one.ns_id, one) for one in body.namespaces)
            packs += [self._without_dead(pack, owners) for pack in body.packs if _name(pack) not in dead]
        if packs:
            kept = list(namespaces.values())
            columns = {one.ns_id: number for number, one in enumerate(kept)}
            await self._write(paths[-1], IndexBody(kept, [_owned_by(one.entry, one.ns_ids, columns) for one in packs]))
        for path in paths:
            await world.bucket.delete(path)
            world.files.pop(path, None)
        for one in packs:
            self._are_out(_name(one.entry), one.gone)
        for name in dead:
            world.dead_blocks.pop(name, None)

    async def _read(self, path: str) -> IndexBody | None:
        named = parse_numbered(path, INDEX)
        data = await self._world.bucket.get(path, READ_SECONDS)
        if named is None or data is None:
            self._world.files.pop(path, None)
            return None
        try:
            return await asyncio.to_thread(decode_index, data, self._world.sealing, named.run.incarnation, named.number)
        except BadObject as error:
            log.error("%s of the bucket is of no use: %s", path, error)
            return None

    def _are_out(self, pack: PackName, gone: set[tuple[bytes, bytes]]) -> None:
        """The index object names these no more; what has died meanwhile it does."""
        dead = self._world.dead_blocks.pop(pack, set()) - gone
        if dead:
            self._world.dead_blocks[pack] = dead

    def _without_dead(self, entry: PackEntry, owners: Sequence[bytes]) -> "_Kept":
        """The pack's blocks that live."""
        dead = set(self._world.dead_blocks.get(_name(entry), ()))
        ids = [owners[owner] for owner in numbers(entry.owners)]
        keep = [i for i, key in enumerate(entry.keys) if (ids[i], key) not in dead]
        offsets, lengths = numbers(entry.offsets), numbers(entry.lengths)
        kept = PackEntry(
            entry.incarnation,
            entry.number,
            entry.node,
            entry.size,
            entry.created,
            entry.key_id,
            [entry.keys[i] for i in keep],
            b"",
            column([offsets[i] for i in keep]),
            column([lengths[i] for i in keep]),
        )
        return _Kept(kept, [ids[i] for i in keep], dead)

    async def _write(self, old_path: str, body: IndexBody) -> None:
        """In the folder of the node whose packs these are; its own run goes on counting, that of a dead one does not."""
        world = self._world
        named = parse_numbered(old_path, INDEX)
        assert named is not None
        run, number = world.run, 0
        if named.run.node == world.run.node:
            number = world.take_number()
        else:
            run, number = named.run, self._last_number(named.run) + 1
        encoded = await asyncio.to_thread(encode_index, run.incarnation, number, body, world.sealing)
        path = index_path(run, number)
        if not await world.bucket.put(path, encoded, only_new=True):
            raise BucketFault(f"{path} is there already: somebody else looks after this node's packs")
        world.files[path] = IndexFile(len(encoded), tuple(_name(pack) for pack in body.packs))
        world.counters["cold_indexes_merged"] += 1

    def _last_number(self, run: Run) -> int:
        found = [parse_numbered(path, INDEX) for path in self._world.files]
        return max((one.number for one in found if one is not None and one.run == run), default=0)

    def _is_owned(self, path: str) -> bool:
        named = parse_numbered(path, INDEX)
        return named is not None and named.run.node in self._world.owned

    # --- the packs themselves ---

    def _due_later(self, name: PackName, path: str) -> None:
        if name not in self._due and len(self._due) < DUE_MAX:  # those beyond are found again by a sweep
            self._due[name] = (time.monotonic() + self._world.section.grace, path)

    async def _delete_due(self) -> None:
        now = time.monotonic()
        for name, (due, path) in list(self._due.items()):
            if due > now:
                continue
            if self._world.index.pack(name) is None and name not in self._world.writing:
                await self._world.bucket.delete(path)
                self._world.counters["cold_packs_deleted"] += 1
            del self._due[name]

    async def _sweep(self) -> None:
        """Packs that no index object names. Not where one could not be read: it may name them."""
        world = self._world
        for node in sorted(world.owned):
            files = [file for path, file in world.files.items() if path.startswith(f"{INDEX}{node}/")]
            if any(not file.packs for file in files):
                continue
            async for found in world.bucket.list(f"{PACKS}{node}/"):
                named = parse_numbered(found.path, PACKS)
                if named is None:
                    continue
                name = PackName(named.run.incarnation, named.number)
                if world.index.pack(name) is None and name not in world.writing:
                    self._due_later(name, found.path)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A pack for a new index object, the namespace of each of its blocks, and those that it has no more."""

    entry: PackEntry
    ns_ids: list[bytes]
    gone: set[tuple[bytes, bytes]]


def _name(entry: PackEntry) -> PackName:
    return PackName(entry.incarnation, entry.number)


def _owned_by(entry: PackEntry, ids: Sequence[bytes], columns: dict[bytes, int]) -> PackEntry:
    """With the numbers that its namespaces have in the new object."""
    return PackEntry(
        entry.incarnation,
        entry.number,
        entry.node,
        entry.size,
        entry.created,
        entry.key_id,
        entry.keys,
        column([columns[ns_id] for ns_id in ids]),
        entry.offsets,
        entry.lengths,
    )
