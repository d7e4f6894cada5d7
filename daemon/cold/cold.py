"""The cold tier of one daemon, from start to stop, as the rest of the daemon asks for it.

Without cold.bucket there is none of this: `Service.cold` is None then. A bucket that does not answer is no reason not to start.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from mooncask.daemon.cold.bucket import BucketFault, open_bucket
from mooncask.daemon.cold.collecting import Collecting
from mooncask.daemon.cold.fetching import Fetching
from mooncask.daemon.cold.index import ColdIndex
from mooncask.daemon.cold.names import run_of
from mooncask.daemon.cold.owning import Owning
from mooncask.daemon.cold.refreshing import Refreshing
from mooncask.daemon.cold.sealing import open_sealing
from mooncask.daemon.cold.spilling import Spilling
from mooncask.daemon.cold.world import World
from mooncask.daemon.config import Config
from mooncask.daemon.directory.directory import new_incarnation
from mooncask.daemon.http.callers.credentials import secret_of_file
from mooncask.daemon.insight.verdicts import clock_text
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.peers.specs import Spec, open_spec
from mooncask.daemon.service import Service
from mooncask.errors import NoSuchNamespace
from mooncask.tiers.block import TierName
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import Match, TierStatus

log = logging.getLogger(__name__)

COLLECT_SECONDS_MAX = 60.0
REFRESH_BEFORE_SPILL_SECONDS = 2.0
"""What others have put into the bucket is looked at before a pack is written, unless that was done so lately."""


class Cold:
    """Belongs to the event loop's thread. Nothing here waits for the bucket but `bring`, and that ends by the deadline."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._refreshing = Refreshing(world)
        self._fetching = Fetching(world)
        self._spilling = Spilling(world, self._look_before_spill)
        self._collecting = Collecting(world, self._refreshing)
        self._owning = Owning(world)
        self._tasks: list[asyncio.Task[None]] = []

    @staticmethod
    def open(service: Service, config: Config) -> "Cold":
        """Works from now on. Raises ConfigError: packages that are missing, files that can't be read."""
        section = config.cold
        secret = section.secret
        if section.secret_file:
            secret = secret_of_file("cold.secret_file", section.secret_file)
        cluster = service.cluster
        incarnation = (
            cluster.endpoint.identity.incarnation if cluster is not None else new_incarnation(config.node.name)
        )
        run = run_of(config.node.name, incarnation)
        bucket, sealing = open_bucket(section, secret), open_sealing(section.encryption_key_file)
        index, shared = ColdIndex(section.blocks_max), SharedNamespaces(service.store)
        world = World(service, section, bucket, sealing, run, index, shared, owned={run.node})
        cold = Cold(world)
        loop = asyncio.get_running_loop()
        cold._tasks = [loop.create_task(cold._refreshing.run()), loop.create_task(cold._look_after())]
        if section.spill != "none":
            cold._tasks.append(loop.create_task(cold._spilling.run()))
            service.store.departures.eviction_observers.append(cold._evicted)
        service.store.on_deleted = cold._deleted
        log.info("blocks go to and come from %s as %s", section.bucket, run.folder)
        return cold

    async def close(self) -> None:
        """Nothing is written into the store after this. What was not spilled yet is still on this node."""
        store = self._world.service.store
        store.on_deleted = lambda namespace, keys: None
        if self._evicted in store.departures.eviction_observers:
            store.departures.eviction_observers.remove(self._evicted)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._spilling.close()
        await self._fetching.close()

    # --- for readers ---

    def has(self, namespace: Namespace, key: bytes) -> bool:
        """Whether the bucket is said to have it, and answers."""
        return self._world.usable() and self._world.may_have(self._id_of(namespace), key)

    async def bring(self, namespace: Namespace, key: bytes, deadline: float) -> bool:
        """Whether the block is here now, brought if need be. False is a miss, also one by the deadline or by cold.deadline."""
        return await self._fetching.bring(namespace, self._id_of(namespace), key, deadline)

    def locate(self, namespace: Namespace, keys: Sequence[bytes], begun_seconds: float) -> Match:
        """How far a prefix goes on over what is here or in the bucket; `begun_seconds`: the loading time of what came before."""
        world, ns_id = self._world, self._id_of(namespace)
        store, where = world.service.store, world.service.store.catalogue.where
        tiers, seconds, total, asked = bytearray(), list[float](), begun_seconds, False
        usable = world.usable()
        for key in keys:
            slot = namespace.index.get(key) if store.has(namespace, key) else None
            if slot is None and not (usable and world.may_have(ns_id, key)):
                break
            if slot is None:
                total += world.pace.seconds(world.index.length(ns_id, key)) + (
                    0.0 if asked else world.pace.latency_seconds
                )
                asked = True
            tiers.append(TierName.COLD if slot is None else where[slot])
            seconds.append(total)
        return Match(bytes(tiers), seconds)

    def _id_of(self, namespace: Namespace) -> bytes:
        """Empty for what stays on its node."""
        return self._world.shared.id_of(namespace)

    def _deleted(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        ns_id = self._id_of(namespace)
        for key in keys:
            self._world.hide(ns_id, key)

    def _evicted(self, namespace_number: int, key: bytes) -> None:
        namespace = self._world.service.store.catalogue.registry.by_id(namespace_number)
        if namespace is not None:
            self._spilling.left(namespace, key)

    async def open_namespace(self, tenant: str, name: str) -> Namespace:
        """The tenant's namespace of that name, as an index object describes it. Raises NoSuchNamespace, and what `open_spec` raises."""
        for one in list(self._world.namespaces.values()):
            if (one.name, one.tenant) == (name, tenant):
                spec = Spec(one.name, one.family, one.shard, one.tenant, one.fingerprint)
                return await open_spec(self._world.service, self._world.shared, spec, one.ns_id)
        raise NoSuchNamespace(name)

    # --- for people ---

    def in_words(self, namespace: Namespace, key: bytes) -> str:
        """Of a block that is not here. Empty for what never goes there."""
        world, name = self._world, (self._id_of(namespace), key)
        if not name[0]:
            return ""
        place = world.index.find(*name)
        if world.health.down_since:
            return f"the bucket has not answered since {clock_text(world.health.down_since)}"
        if name in world.hidden:
            return "deleted here by name, and so not taken from the bucket"
        if place is not None:
            return f"in the bucket since {clock_text(place.pack.created)}, and comes to whoever acquires it"
        left = world.left.get(name)
        return (
            "not in the bucket" if left is None else f"in the bucket until {clock_text(left)}, gone there with its pack"
        )

    @property
    def state(self) -> str:
        """ "ok", or what is the matter."""
        health = self._world.health
        if health.down_since:
            since = time.strftime("%H:%M:%S", time.localtime(health.down_since))
            return f"down since {since}: {health.why}"
        if not self._refreshing.looks:
            return "looking"
        return f"partly unreadable: {self._world.why_unreadable}" if self._world.why_unreadable else "ok"

    def status(self) -> TierStatus:
        """All that is known of the bucket, whoever put it there; `capacity_bytes` is of this node's own packs, 0 = no limit."""
        index, section = self._world.index, self._world.section
        return TierStatus(
            TierName.COLD,
            section.capacity,
            sum(pack.size for pack in index.packs),
            index.blocks,
            0,
            0,
            0,
            section.spill,
            self.state,
        )

    def gauges(self) -> dict[str, float]:
        """Name -> value, for metrics."""
        world = self._world
        return {
            "packs": world.index.pack_count,
            "own_packs": sum(pack.node in world.owned for pack in world.index.packs),
            "index_files": len(world.files),
            "blocks_left_out": world.index.left_out,
            "dead_packs": self._collecting.waiting,
            "reads_waiting": self._fetching.flights,
            "gathered_bytes": self._spilling.queued_bytes,
            "up": float(not world.health.down_since),
        }

    # --- in the background ---

    async def _look_before_spill(self) -> None:
        await self._refreshing.look(REFRESH_BEFORE_SPILL_SECONDS)

    async def _look_after(self) -> None:
        """Signs of life, and what is dead."""
        world = self._world
        pause = max(0.1, min(COLLECT_SECONDS_MAX, world.section.grace / 4, self._owning.interval_seconds))
        while True:
            if world.usable():
                try:
                    await self._owning.beat()
                    await self._collecting.round()
                except BucketFault as error:
                    world.failed("collecting", error)
                except Exception:
                    log.exception("collecting failed by a fault of this daemon")
            await asyncio.sleep(pause)
