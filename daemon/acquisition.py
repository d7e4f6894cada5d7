"""Brings blocks that are not in DRAM: from below, or from whoever is putting them. Nothing waits past the deadline.

A reference that the store hands out is never lost: fetches are not cancelled (a cancelled task can drop a result that
was already its own) but abandoned, and what they still bring is dropped on arrival.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.daemon.arrivals import Key, Layers
from mooncask.daemon.flights import Answer
from mooncask.daemon.service import Service
from mooncask.daemon.waiter import Waiter
from mooncask.errors import MooncaskError
from mooncask.tiers.block import Extent, Hint, TierName
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

FETCHES_MAX = 32
"""Loads of one Acquire under way at a time: enough for the disk, and others come in between."""


STARTS_MAX = 128


class Found(NamedTuple):
    """A block that is held for the caller; `tier` is where it was when it was asked for."""

    extent: Extent
    tier: TierName


@dataclass(frozen=True, slots=True)
class Arrived:
    """Item `index` of the request: its block, or None for a miss."""

    index: int
    found: Found | None


@dataclass(slots=True, eq=False)
class Acquisition:
    """One Acquire that DRAM alone could not answer. `run` ends when every item is decided or the deadline is over."""

    service: Service
    namespace: Namespace
    keys: Sequence[bytes]
    deadline: float
    hint: Hint
    wait: bool
    on_progress: Callable[[int, Layers], None]
    abandoned: bool = False
    _waiters: set[Waiter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_MAX))
    _arrived: list[Arrived] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, missing: Sequence[int], on_arrival: Callable[[list[Arrived]], None]) -> None:
        """Calls `on_arrival` with what came together; items it was not called for are misses."""
        undecided = len(missing)
        try:
            async with asyncio.timeout_at(self.deadline):
                await self._start(missing)
                while undecided and not self.abandoned:
                    await self._changed.wait()
                    self._changed.clear()
                    arrived, self._arrived = self._arrived, []
                    undecided -= len(arrived)
                    self._deliver(arrived, on_arrival)
        except TimeoutError:
            pass  # what is not decided is missed
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        self.abandoned = True
        self._changed.set()
        for waiter in self._waiters:
            waiter.wake(published=False)
        for task in self._tasks:
            task.cancel()
        self._drop(self._arrived)
        self._arrived = []

    async def _start(self, missing: Sequence[int]) -> None:
        """What is here below DRAM, or is put here, gets a task an item; what can only come from other nodes, one for all."""
        far: dict[bool, list[int]] = {}
        near = []
        for index in missing:
            if self._is_far(index):
                far.setdefault(self.service.may_be_cold(self.namespace, self.keys[index]), []).append(index)
            else:
                near.append(index)
        for indexes in far.values():
            self._begin(self._bring_far(indexes))
        await self._start_each(near)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        """For many items: it holds nothing while it waits, so that it can be cancelled."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start_each(self, indexes: Sequence[int], *, tried_peers: bool = False) -> None:
        """A task an item, begun some at a time: the loop runs all that is ready before it looks for I/O again."""
        for first in range(0, len(indexes), STARTS_MAX):
            for index in indexes[first : first + STARTS_MAX]:
                task = asyncio.create_task(self._bring_checked(index, tried_peers))
                self.service.loads.add(task)
                task.add_done_callback(self._task_done)
            await asyncio.sleep(0)

    def _task_done(self, task: "asyncio.Task[Arrived]") -> None:
        self.service.loads.discard(task)
        if task.cancelled():
            return
        arrived = [task.result()]
        if self.abandoned:
            self._drop(arrived)
        else:
            self._arrived += arrived
            self._changed.set()

    def _deliver(self, arrived: list[Arrived], on_arrival: Callable[[list[Arrived]], None]) -> None:
        if self.abandoned:
            self._drop(arrived)
        elif arrived:
            on_arrival(arrived)

    def _drop(self, arrived: list[Arrived]) -> None:
        for item in arrived:
            if item.found is not None:
                self.service.store.drop(item.found.extent)

    # --- many items ---

    def _is_far(self, index: int) -> bool:
        key = self.keys[index]
        return key not in self.namespace.index and self._may_be_far(key)

    async def _bring_far(self, indexes: list[int]) -> None:
        """Items that other nodes may have, and that are here in no tier."""
        left = dict.fromkeys(indexes)

        def answered(answers: list[Answer]) -> None:
            for answer in answers:
                left.pop(indexes[answer.place])
            self._take([indexes[answer.place] for answer in answers if answer.here])
            self._look_elsewhere([indexes[answer.place] for answer in answers if not answer.here])

        remote, keys = self.service.remote, [self.keys[index] for index in indexes]
        assert remote is not None  # or nothing is far
        try:
            await remote.bring_many(self.namespace, keys, self._peers_deadline(keys[0]), answered)
        except Exception:
            self.service.counters["acquire_faults"] += 1
            log.exception("acquire failed by a fault of this daemon")
        self._look_elsewhere(list(left))

    def _take(self, indexes: list[int]) -> None:
        """What has come from other nodes."""
        if self.abandoned or not indexes:
            return
        held = self.service.store.hold(self.namespace, [self.keys[index] for index in indexes], self.hint)
        gone = [index for index, extent in zip(indexes, held, strict=True) if extent is None]
        found = [(index, extent) for index, extent in zip(indexes, held, strict=True) if extent is not None]
        self._arrived += [Arrived(index, Found(extent, TierName.PEER)) for index, extent in found]
        self._changed.set()
        self._look_elsewhere(gone)

    def _look_elsewhere(self, indexes: list[int]) -> None:
        """No node has these; most often nobody else has them either."""
        if self.abandoned or not indexes:
            return
        wanted = [index for index in indexes if self._may_be_elsewhere(self.keys[index])]
        self._arrived += [Arrived(index, None) for index in sorted(set(indexes).difference(wanted))]
        self._changed.set()
        if wanted:
            self._begin(self._start_each(wanted, tried_peers=True))

    def _may_be_elsewhere(self, key: bytes) -> bool:
        return self.wait or key in self.namespace.index or self.service.may_be_cold(self.namespace, key)

    # --- one item ---

    async def _bring_checked(self, index: int, tried_peers: bool) -> Arrived:
        """A fault while loading one block is a miss of that block, not the end of the request."""
        try:
            return Arrived(index, await self._bring(index, tried_peers))
        except MooncaskError as error:
            self.service.counters["acquire_faults"] += 1
            log.warning("acquire: %s", error.message)
        except Exception:
            self.service.counters["acquire_faults"] += 1
            log.exception("acquire failed by a fault of this daemon")
        return Arrived(index, None)

    async def _bring(self, index: int, tried_peers: bool) -> Found | None:
        key, followed, tried_cold = self.keys[index], False, False
        while True:
            extent = await self._fetch(key)
            if extent is not None:
                return Found(extent, _came_from(tried_peers, tried_cold, TierName.NVME))
            # From this look-up until the waiter is registered there is no await, so no publish can slip through.
            if self.service.objects.in_parts(self.namespace, key):
                return None
            (held,) = self.service.store.hold(self.namespace, [key], self.hint)
            if held is not None:
                return Found(held, _came_from(tried_peers, tried_cold, TierName.DRAM))
            if not tried_peers and self._may_be_far(key):
                tried_peers = True
                if await self.service.remote.bring(self.namespace, key, self._peers_deadline(key)):  # type: ignore[union-attr]
                    continue
            if not tried_cold and self.service.may_be_cold(self.namespace, key) and not self.abandoned:
                tried_cold = True
                if await self.service.cold.bring(self.namespace, key, self.deadline):  # type: ignore[union-attr]
                    continue
            if not followed and self._may_be_put_far():
                followed = tried_peers = True
                await self.service.remote.progressive.follow(self.namespace, key, self.deadline)  # type: ignore[union-attr]
                continue  # it may have come meanwhile
            if not self.wait or not await self._published(index, key):
                return None

    def _may_be_far(self, key: bytes) -> bool:
        """Who waits for a block that is being put here already need not fetch it."""
        service = self.service
        if service.remote is None or self.abandoned or not service.remote.may_have(self.namespace):
            return False
        return not (self.wait and service.arrivals.is_written(Key(self.namespace.id, key)))

    def _may_be_put_far(self) -> bool:
        """Whether another node may be where somebody puts what is waited for."""
        remote = self.service.remote
        return self.wait and not self.abandoned and remote is not None and remote.may_have(self.namespace)

    def _peers_deadline(self, key: bytes) -> float:
        """Where the bucket has the block as well, slow peers leave it half of the time."""
        if not self.service.may_be_cold(self.namespace, key):
            return self.deadline
        now = time.monotonic()
        return now + (self.deadline - now) / 2

    async def _fetch(self, key: bytes) -> Extent | None:
        if key not in self.namespace.index:
            return None
        async with self._slots:
            # Looked at in the step in which the store chooses the copy: a manifest is nobody's bytes.
            if self.abandoned or self.service.objects.in_parts(self.namespace, key):
                return None
            return await self.service.store.fetch(self.namespace, key, self.deadline, self.hint)

    async def _published(self, index: int, key: bytes) -> bool:
        arrivals, name = self.service.arrivals, Key(self.namespace.id, key)
        waiter = Waiter(lambda layers: self.on_progress(index, layers))
        layers = arrivals.wait(name, waiter)
        if layers is None or self.abandoned:
            arrivals.leave(name, waiter)
            return False
        self._waiters.add(waiter)
        try:
            if layers.done:
                self.on_progress(index, layers)
            return await waiter.until(self.deadline)
        finally:
            self._waiters.discard(waiter)
            arrivals.leave(name, waiter)


def _came_from(tried_peers: bool, tried_cold: bool, here: TierName) -> TierName:
    """The bucket is asked last."""
    return TierName.COLD if tried_cold else TierName.PEER if tried_peers else here


async def wrong_copies(
    service: Service,
    namespace: Namespace,
    keys: Sequence[bytes],
    held: Sequence[Extent | None],
    checksums: Sequence[bytes | None],
) -> set[int]:
    """Indexes of DRAM hits whose bytes are not what was stored; those are quarantined, the caller keeps its references.

    `checksums` were looked up together with `held`, with no await in between, so that they belong to these copies.
    """
    wrong: set[int] = set()
    for index, (extent, checksum) in enumerate(zip(held, checksums, strict=True)):
        if extent is None or checksum is None:
            continue
        payload = service.store.view(extent)[: extent.size]
        if await asyncio.to_thread(payload_checksum, payload) != checksum:
            wrong.add(index)
            if service.store.has(namespace, keys[index]):
                await service.store.verify(namespace, keys[index])
    return wrong
