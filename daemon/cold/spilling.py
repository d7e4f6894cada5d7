"""Puts blocks into the bucket before they have to leave: chosen in rounds, gathered until they fill a pack, read, packed, written.

Eviction waits for none of this: what is not there in time is lost, as it would be without a bucket. What is being gathered is known
by name only; in memory are the packs that are being written, a few of them.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice
from typing import Any

from mooncask.daemon.cold.bucket import BucketFault
from mooncask.daemon.cold.choice import Rules, others_will
from mooncask.daemon.cold.index import Pack, PackName
from mooncask.daemon.cold.index_object import IndexBody, encode_index
from mooncask.daemon.cold.names import index_path, pack_path
from mooncask.daemon.cold.pack import BlockFacts
from mooncask.daemon.cold.pack_builder import PackBuilder, namespace_entry
from mooncask.daemon.cold.world import IndexFile, World
from mooncask.errors import MooncaskError
from mooncask.tiers.leaving import Candidate, Payload
from mooncask.tiers.namespace import Namespace, NamespaceSpec

log = logging.getLogger(__name__)

ROUND_SECONDS = 0.5
LOOKING_SHARE = 20
"""So many times as long as a round of looking took, nothing is looked at: 65,536 blocks take a tenth of a second."""
SLICE = 256
"""Blocks looked at in one go. What is gathered may be more than a pack by so many; it becomes two."""
WRITES_MAX = 4
GATHERED_MAX = 1 << 16
LOOKUP_SECONDS = 0.5
LOOKUP_KEYS = 256
SPARED_SECONDS = 60.0
"""How long a block that another node will put there is not asked about again."""
SPARED_MAX = 1 << 16

Name = tuple[bytes, bytes]


class Spilling:
    """Of one daemon. `run` until it is cancelled."""

    def __init__(self, world: World, refresh: Callable[[], Coroutine[Any, Any, None]]) -> None:
        section = world.section
        self._world = world
        self._refresh = refresh
        self._leaving = world.service.store.leaving
        self._rules = Rules(section.spill, section.spill_at, section.hits_min, section.age_min)
        self._gathered: dict[Name, Candidate] = {}
        self._gathered_bytes = 0
        self._gathering_since = 0.0
        self._slots = asyncio.Semaphore(max(1, min(WRITES_MAX, section.queue_max // (2 * section.pack))))
        self._writes: set[asyncio.Task[None]] = set()
        self._spared: OrderedDict[Name, float] = OrderedDict()

    @property
    def queued_bytes(self) -> int:
        return self._gathered_bytes

    async def run(self) -> None:
        while True:
            looking = 0.0
            try:
                if self._world.usable() and self._rules.active(self._leaving.fill()):
                    looking = await self._round()
                if self._gathered and time.monotonic() - self._gathering_since >= self._world.section.pack_wait:
                    await self._hand_over()
            except Exception:
                log.exception("a round of spilling failed by a fault of this daemon")
            await asyncio.sleep(max(LOOKING_SHARE * looking, min(ROUND_SECONDS, self._world.section.pack_wait)))

    async def close(self) -> None:
        for task in self._writes:
            task.cancel()
        if self._writes:
            await asyncio.wait(set(self._writes))

    # --- choosing ---

    async def _round(self) -> float:
        """How many seconds the looking took, in which the loop served nobody."""
        store = self._world.service.store
        most = self._rules.window(sum(namespace.blocks for namespace in store.namespaces()))
        now, candidates, looking = time.time(), self._leaving.soonest(most), 0.0
        while True:
            began = time.perf_counter()
            some = list(islice(candidates, SLICE))
            for candidate in some:
                if candidate is not None:
                    self._consider(candidate, now)
            looking += time.perf_counter() - began
            if self._gathered_bytes >= self._world.section.pack or len(self._gathered) >= GATHERED_MAX:
                await self._hand_over()
            await asyncio.sleep(0)
            if len(some) < SLICE or not self._world.usable():
                return looking

    def _consider(self, candidate: Candidate, now: float) -> None:
        name = (self._world.shared.id_of(candidate.namespace), candidate.key)
        if name in self._world.packing or self._world.index.has(*name):
            return
        if self._spared.get(name, 0.0) > time.monotonic():
            return
        if candidate.size and self._rules.wants(candidate, now):
            if not self._gathered:
                self._gathering_since = time.monotonic()
            self._gathered[name] = candidate
            self._world.packing.add(name)
            self._world.hidden.pop(name, None)  # it is here; whoever deletes it from now on hides it anew
            self._gathered_bytes += candidate.size

    async def _hand_over(self) -> None:
        """What is gathered becomes packs, as soon as one may be written. What others have put there meanwhile does not."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, {}, 0
        await self._slots.acquire()
        try:
            await self._refresh()
            wanted = await self._not_elsewhere(gathered)
        except BaseException:
            self._slots.release()
            self._world.packing.difference_update(gathered)
            raise
        if not wanted:
            self._slots.release()
            self._world.packing.difference_update(gathered)
            return
        task = asyncio.get_running_loop().create_task(self._write(wanted, set(gathered)))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _not_elsewhere(self, gathered: dict[Name, Candidate]) -> dict[Name, Candidate]:
        """Neither in the bucket nor to be put there by another node that has it."""
        left = {name: one for name, one in gathered.items() if not self._world.index.has(*name)}
        cluster = self._world.service.cluster
        if cluster is not None and cluster.directory.state == "ok":
            own, names = cluster.endpoint.identity.incarnation, list(left)
            for first in range(0, len(names), LOOKUP_KEYS):
                for name, holders in await self._holders(names[first : first + LOOKUP_KEYS]):
                    if others_will(own, holders):
                        del left[name]
                        self._spare(name)
        self._world.counters["cold_spills_spared"] += len(gathered) - len(left)
        return left

    def left(self, namespace: Namespace, key: bytes) -> None:
        """It was evicted: counted, where it is nowhere and nobody else is known to put it there."""
        name = (self._world.shared.id_of(namespace), key)
        if namespace.spec.kind == "kv" and not self._world.index.has(*name) and name not in self._spared:
            self._world.counters["cold_blocks_left_unspilled"] += 1

    def _spare(self, name: Name) -> None:
        self._spared.pop(name, None)
        self._spared[name] = time.monotonic() + SPARED_SECONDS
        if len(self._spared) > SPARED_MAX:
            self._spared.popitem(last=False)

    async def _holders(self, names: Sequence[Name]) -> list[tuple[Name, list[bytes]]]:
        cluster = self._world.service.cluster
        assert cluster is not None
        found: list[tuple[Name, list[bytes]]] = []
        for ns_id in dict.fromkeys(ns_id for ns_id, _ in names):
            keys = [key for one, key in names if one == ns_id]
            located = await cluster.directory.lookup(ns_id, keys, time.monotonic() + LOOKUP_SECONDS)
            found += [((ns_id, key), holders) for key, holders in zip(keys, located, strict=True)]
        return found

    # --- writing ---

    async def _write(self, wanted: dict[Name, Candidate], busy: set[Name]) -> None:
        world = self._world
        try:
            waiting = list(wanted.items())
            while waiting:
                waiting = await self._write_pack(waiting)
            world.worked()
        except BucketFault as error:
            world.counters["cold_spill_failures"] += 1
            world.failed("spilling", error)
        except MooncaskError as error:
            log.warning("spilling: %s", error.message)
        except Exception:
            log.exception("spilling failed by a fault of this daemon")
        finally:
            self._slots.release()
            self._world.packing.difference_update(busy)

    async def _write_pack(self, waiting: list[tuple[Name, Candidate]]) -> list[tuple[Name, Candidate]]:
        """One pack and its index object; what did not fit into it."""
        world = self._world
        name = PackName(world.run.incarnation, world.take_number())
        builder = PackBuilder(name, world.sealing, world.section.pack)
        specs: dict[bytes, NamespaceSpec] = {}
        taken = 0
        for (ns_id, _), candidate in waiting:
            if builder.blocks and not builder.fits(candidate.size):
                break
            taken += 1
            payload = await self._leaving.payload(candidate)
            if payload is not None and (ns_id, candidate.key) not in world.hidden:
                specs[ns_id] = candidate.namespace.spec
                await asyncio.to_thread(builder.add, _facts(ns_id, payload), payload.view)
        if builder.blocks:
            world.writing.add(name)
            try:
                await self._put(builder, specs)
            finally:
                world.writing.discard(name)
        return waiting[taken:]

    async def _put(self, builder: "PackBuilder", specs: dict[bytes, NamespaceSpec]) -> None:
        world, created = self._world, int(time.time())
        data = await asyncio.to_thread(builder.finish)
        path = pack_path(world.run, builder.name.number)
        if not await world.bucket.put(path, data, only_new=True):
            raise BucketFault(f"{path} is there already: do two nodes have the name of this one?")
        entry = builder.entry(world.run.node, created, list(specs))
        body = IndexBody([namespace_entry(ns_id, spec) for ns_id, spec in specs.items()], [entry])
        number = world.take_number()
        encoded = await asyncio.to_thread(encode_index, world.run.incarnation, number, body, world.sealing)
        await world.bucket.put(index_path(world.run, number), encoded)
        pack = Pack(builder.name, world.run.node, builder.size, created, world.sealing.key_id)
        await world.take_in(pack, iter(builder.blocks))
        world.namespaces.update((one.ns_id, one) for one in body.namespaces)
        world.files[index_path(world.run, number)] = IndexFile(len(encoded), (builder.name,))
        for block in builder.blocks:
            if (block.ns_id, block.key) in world.hidden:  # deleted while it was on its way
                world.forget(block.ns_id, block.key)
        world.counters["cold_spilled_blocks"] += len(builder.blocks)
        world.counters["cold_spilled_bytes"] += builder.size
        world.counters["cold_packs_written"] += 1


def _facts(ns_id: bytes, payload: Payload) -> BlockFacts:
    record = payload.record
    return BlockFacts(
        ns_id, record.key, record.size, record.checksum, record.parent, record.depth, record.tokens, record.created
    )
