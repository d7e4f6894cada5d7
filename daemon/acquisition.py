"""Brings blocks that are not in DRAM: from below, or from whoever is putting them. Nothing waits past the deadline.

A reference that the store hands out is never lost: fetches are not cancelled (a cancelled task can drop a result that
was already its own) but abandoned, and what they still bring is dropped on arrival.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.daemon.arrivals import Key, Layers
from mooncask.daemon.service import Service
from mooncask.daemon.waiter import Waiter
from mooncask.errors import MooncaskError
from mooncask.tiers.block import Extent, Hint, TierName
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

FETCHES_MAX = 32
"""Loads of one Acquire under way at a time: enough for the disk, and others come in between."""


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
    _slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FETCHES_MAX))

    async def run(self, missing: Iterable[int], on_arrival: Callable[[list[Arrived]], None]) -> None:
        """Calls `on_arrival` with what came together; items it was not called for are misses."""
        tasks = {asyncio.create_task(self._bring_checked(index)) for index in missing}
        try:
            while tasks and not self.abandoned:
                left = self.deadline - time.monotonic()
                done, tasks = await asyncio.wait(tasks, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return
                self._deliver([task.result() for task in done], on_arrival)
        finally:
            self.abandon()
            for task in tasks:
                self.service.stragglers.add(task)
                task.add_done_callback(self._drop_result)

    def abandon(self) -> None:
        """Nobody wants the answer any more."""
        self.abandoned = True
        for waiter in self._waiters:
            waiter.wake(published=False)

    def _deliver(self, arrived: list[Arrived], on_arrival: Callable[[list[Arrived]], None]) -> None:
        if not self.abandoned:
            on_arrival(arrived)
            return
        for item in arrived:
            self._drop(item)

    def _drop_result(self, task: "asyncio.Task[Arrived]") -> None:
        self.service.stragglers.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._drop(task.result())

    def _drop(self, item: Arrived) -> None:
        if item.found is not None:
            self.service.store.drop(item.found.extent)

    # --- one item ---

    async def _bring_checked(self, index: int) -> Arrived:
        """A fault while loading one block is a miss of that block, not the end of the request."""
        try:
            return Arrived(index, await self._bring(index))
        except MooncaskError as error:
            self.service.counters["acquire_faults"] += 1
            log.warning("acquire: %s", error.message)
            return Arrived(index, None)

    async def _bring(self, index: int) -> Found | None:
        key = self.keys[index]
        while True:
            extent = await self._fetch(key)
            if extent is not None:
                return Found(extent, TierName.NVME)
            # From this look-up until the waiter is registered there is no await, so no publish can slip through.
            (held,) = self.service.store.hold(self.namespace, [key], self.hint)
            if held is not None:
                return Found(held, TierName.DRAM)
            if not self.wait or not await self._published(index, key):
                return None

    async def _fetch(self, key: bytes) -> Extent | None:
        if key not in self.namespace.index:
            return None
        async with self._slots:
            if self.abandoned:
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
            if keys[index] in namespace.index:
                await service.store.verify(namespace, keys[index])
    return wrong
