"""Prefetch: blocks that are only on NVMe or on another node are brought into local DRAM, in the background, before they are asked for.

A chain is brought in its order. What is asked for meanwhile waits for the same load or transfer, and causes no second one.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.client import control
from mooncask.daemon.service import Service
from mooncask.errors import Busy, MooncaskError
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

WORKERS = 32
"""Blocks that are being brought at a time: enough for a disk, and for batches from a peer."""
WAITING_MAX = 1 << 15
SLICE = 1024
"""Blocks looked at in one go."""
SHARE_OF_DRAM = 0.5
"""What all that waits may fill: more would drive itself out."""
SIZE_UNKNOWN = 1 << 20
BLOCK_SECONDS = 10.0
"""A block that has not come by then is left."""


@dataclass(slots=True)
class _Wanted:
    namespace: Namespace
    key: bytes
    size: int


class Warming:
    """Of one daemon, also of one that is alone. Everything belongs to the event loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting: deque[_Wanted] = deque()
        self._wanted: set[tuple[int, bytes]] = set()
        self._bytes = 0
        self._workers: set[asyncio.Task[None]] = set()

    async def warm(self, namespace: Namespace, keys: Sequence[bytes]) -> control.Warming:
        """Begins to bring what is not in DRAM, and does not wait for it. Raises Busy when too much waits already."""
        here: list[bytes] = []
        below: list[bytes] = []
        absent: list[bytes] = []
        for number, key in enumerate(dict.fromkeys(keys)):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            slot = namespace.index.get(key) if self._service.store.has(namespace, key) else None
            (absent if slot is None else here if slot in self._service.store.catalogue.dram else below).append(key)
        far = await self._located(namespace, absent)
        wanted = far.union(below)
        coming = [key for key in dict.fromkeys(keys) if key in wanted]
        begun = self._begin(namespace, coming)
        for key in here:
            await self._service.store.warm(namespace, key, time.monotonic())
        return control.Warming(
            namespace=namespace.spec.name,
            blocks=len(here) + len(below) + len(absent),
            in_memory=len(here),
            coming=begun,
            left_out=len(coming) - begun,
            missing=len(absent) - len(far),
        )

    async def close(self) -> None:
        self._waiting.clear()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)

    async def _located(self, namespace: Namespace, keys: Sequence[bytes]) -> set[bytes]:
        """Which of these another node has."""
        remote = self._service.remote
        return await remote.known(namespace, keys) if remote is not None and keys else set()

    def _begin(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """How many of them are on their way."""
        if len(self._waiting) >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} blocks wait to be brought into memory already")
        begun, room = 0, SHARE_OF_DRAM * self._service.store.dram.capacity_bytes
        for key in keys:
            name = (namespace.id, key)
            if name not in self._wanted:
                size = self._size(namespace, key)
                if len(self._waiting) >= WAITING_MAX or self._bytes + size > room:
                    break
                self._wanted.add(name)
                self._bytes += size
                self._waiting.append(_Wanted(namespace, key, size))
            begun += 1
        while len(self._workers) < min(WORKERS, len(self._waiting)):
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        return begun

    def _size(self, namespace: Namespace, key: bytes) -> int:
        """Of one that is elsewhere: as those that are here are."""
        slot = namespace.index.get(key)
        if slot is not None:
            return self._service.store.catalogue.size[slot]
        return namespace.stored_bytes // namespace.blocks if namespace.blocks else SIZE_UNKNOWN

    async def _work(self) -> None:
        while self._waiting:
            wanted = self._waiting.popleft()
            try:
                warmed = await self._bring(wanted)
                self._service.counters["blocks_warmed"] += warmed
            except MooncaskError as error:
                log.info("a block was not brought into memory: %s", error.message)
            except Exception:
                log.exception("bringing a block into memory failed by a fault of this daemon")
            finally:
                self._bytes -= wanted.size
                self._wanted.discard((wanted.namespace.id, wanted.key))

    async def _bring(self, wanted: _Wanted) -> bool:
        service, deadline = self._service, time.monotonic() + BLOCK_SECONDS
        if not service.store.has(wanted.namespace, wanted.key):
            await service.bring(wanted.namespace, wanted.key, deadline)
        return await service.store.warm(wanted.namespace, wanted.key, deadline)
