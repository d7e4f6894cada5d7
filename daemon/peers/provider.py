"""What this node gives to others: its blocks, held in DRAM while somebody reads them, and whether it has them."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from mooncask.daemon.directory.have import HAVE_KEYS_MAX, Has, Have, decoded
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.peers.showing import Showing
from mooncask.daemon.service import Service
from mooncask.daemon.transport.transport import HeldBlock, PeerInfo
from mooncask.errors import BadRequest
from mooncask.tiers.block import NO_HINT, Extent
from mooncask.tiers.namespace import Namespace

LOADS_MAX = 32
"""Blocks that one question brings up from NVMe at a time."""


class StoreProvider:
    """See `BlockProvider`. What others read counts as read here too: it is worth keeping."""

    def __init__(self, service: Service, shared: SharedNamespaces) -> None:
        self._service = service
        self._store = service.store
        self._shared = shared
        self.on_served: Callable[[Namespace, Sequence[bytes]], None] = lambda namespace, keys: None
        """Called with blocks that another node reads now: it must only take note."""
        self.showing = Showing(service, shared)

    async def hold(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[HeldBlock | None]:
        namespace = self._shared.find(ns_id)
        if namespace is None:
            return [None] * len(keys)
        held = [
            self._described(namespace, key, extent)
            for key, extent in zip(keys, self._store.hold(namespace, keys), strict=True)
        ]
        below = [i for i, block in enumerate(held) if block is None and keys[i] in namespace.index]
        if below:
            try:
                await self._bring_up(namespace, keys, below, held, deadline)
            except BaseException:
                for block in held:
                    if block is not None:
                        self.drop(block)
                raise
        self.on_served(namespace, [block.key for block in held if block is not None])
        return held

    def hold_writing(self, ns_id: bytes, keys: Sequence[bytes]) -> list[HeldBlock | None]:
        return self.showing.hold(ns_id, keys)

    def drop(self, held: HeldBlock) -> None:
        self._store.drop(held.extent)

    async def has(self, peer: PeerInfo, payload: bytes) -> bytes:
        """Answers `have`."""
        question = decoded(payload, Have)
        if len(question.keys) > HAVE_KEYS_MAX:
            raise BadRequest(f"{len(question.keys)} keys in one question; {HAVE_KEYS_MAX} are allowed")
        namespace = self._shared.find(question.ns_id)
        sizes = [0] * len(question.keys) if namespace is None else [self._size(namespace, k) for k in question.keys]
        return msgspec.msgpack.encode(Has(sizes))

    # --- one block ---

    def _size(self, namespace: Namespace, key: bytes) -> int:
        """A spare one is about to go: nobody should count on it."""
        catalogue, slot = self._store.catalogue, namespace.index.get(key)
        if slot is None or (namespace.ttl_blocks and catalogue.expired(slot, time.time())):
            return 0
        if self._store.replicas.is_spare(slot):
            return 0
        return catalogue.size[slot]

    async def _bring_up(
        self,
        namespace: Namespace,
        keys: Sequence[bytes],
        below: Sequence[int],
        held: list[HeldBlock | None],
        deadline: float,
    ) -> None:
        """Fills `held`. A load is never cancelled, since what it brings could be lost then: what comes too late is dropped."""
        for first in range(0, len(below), LOADS_MAX):
            some = below[first : first + LOADS_MAX]
            loads = [asyncio.ensure_future(self._load(namespace, keys[i], deadline)) for i in some]
            self._service.loads.update(loads)
            for load in loads:
                load.add_done_callback(self._service.loads.discard)
            try:
                done, late = await asyncio.wait(loads, timeout=max(0.0, deadline - time.monotonic()))
            except BaseException:
                for load in loads:
                    load.add_done_callback(self._drop_late)
                raise
            for load in late:
                load.add_done_callback(self._drop_late)
            for i, load in zip(some, loads, strict=True):
                held[i] = load.result() if load in done else None

    async def _load(self, namespace: Namespace, key: bytes, deadline: float) -> HeldBlock | None:
        extent = await self._store.fetch(namespace, key, deadline, NO_HINT)
        return self._described(namespace, key, extent)

    def _described(self, namespace: Namespace, key: bytes, extent: Extent | None) -> HeldBlock | None:
        """Takes the reference over. No await between the look-ups: they are of one version."""
        if extent is None:
            return None
        catalogue, slot = self._store.catalogue, namespace.index.get(key)
        if slot is None or catalogue.dram.get(slot) is not extent:  # it left while it was being brought up
            self._store.drop(extent)
            return None
        return HeldBlock(
            key,
            extent,
            self._store.view(extent)[: extent.size],
            catalogue.checksum(slot),
            catalogue.parents[slot],
            catalogue.depth[slot],
            catalogue.tokens[slot],
        )

    def _drop_late(self, load: "asyncio.Future[HeldBlock | None]") -> None:
        if not load.cancelled() and load.exception() is None:
            block = load.result()
            if block is not None:
                self.drop(block)
