"""Opens stores for tests and speaks to them in bytes: put this, what is stored, who is in the way."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from mooncask.tiers.block import Extent, Hint, WriteMode
from mooncask.tiers.namespace import Namespace, NamespaceSpec
from mooncask.tiers.nvme import NvmeConfig
from mooncask.tiers.requests import PutRequest, StoreConfig
from mooncask.tiers.store import Store

KIB = 1 << 10
MIB = 1 << 20


def store_config(folder: Path | None, dram_bytes: int = 4 * MIB, **changes: object) -> StoreConfig:
    """A small store; with a folder it has an NVMe tier of 64 MiB."""
    nvme = None if folder is None else NvmeConfig(path=folder, capacity_bytes=64 * MIB, segment_bytes=4 * MIB)
    settings: dict[str, object] = {"scrub_bytes_per_second": 0.0, **changes}
    return StoreConfig(dram_bytes=dram_bytes, nvme=nvme, **settings)  # type: ignore[arg-type]  # checked at run time


@asynccontextmanager
async def opened(config: StoreConfig, flush_seconds: float = 5.0) -> AsyncIterator[Store]:
    store = await Store.open(config)
    try:
        await store.dram.wait_populated()
        yield store
    finally:
        await store.close(flush_seconds)


async def kv(store: Store, name: str = "kv-test", mode: WriteMode = WriteMode.WRITE_THROUGH) -> Namespace:
    return await store.open_namespace(NamespaceSpec(name, mode=mode, fingerprint=b"f"))


async def bucket(store: Store, name: str = "bucket", mode: WriteMode = WriteMode.WRITE_THROUGH) -> Namespace:
    return await store.open_namespace(NamespaceSpec(name, kind="object", mode=mode))


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


async def put(
    store: Store,
    namespace: Namespace,
    key: bytes,
    payload: bytes,
    parent: bytes = b"",
    durable: bool = False,
    seconds: float = 5.0,
    priority: int = 128,
) -> bool:
    """Whether the block was published (else: the store had it)."""
    request = PutRequest(key, len(payload), parent, hint=Hint(priority=priority))
    [reservation] = await store.reserve(namespace, [request], soon(seconds))
    if reservation is None:
        return False
    store.view(reservation.extent)[: len(payload)] = payload
    published = await store.commit(reservation)
    if durable:
        await store.durable(namespace, key, soon())
    return published


def content(store: Store, extent: Extent) -> bytes:
    return bytes(store.view(extent)[: extent.size])


def resident(store: Store, namespace: Namespace, key: bytes) -> bytes | None:
    """The block's bytes if it is in DRAM now."""
    [extent] = store.hold(namespace, [key])
    if extent is None:
        return None
    try:
        return content(store, extent)
    finally:
        store.drop(extent)


async def get(store: Store, namespace: Namespace, key: bytes) -> bytes | None:
    """The block's bytes from wherever they are."""
    extent = await store.fetch(namespace, key, soon())
    if extent is None:
        return None
    try:
        return content(store, extent)
    finally:
        store.drop(extent)


async def settled(store: Store) -> None:
    """All writes that were begun have ended."""
    if store._parts.write_down is not None:
        await store._parts.write_down.drained(soon(20))
    await asyncio.sleep(0)


def assert_books_balance(store: Store) -> None:
    """What the parts count agrees with what the catalogue holds; call it when no request is under way."""
    catalogue, copies = store._parts.catalogue, store._parts.copies
    extents = list(catalogue.dram.values())
    assert store.dram.used_bytes == sum(extent.length for extent in extents)
    assert all(extent.references == 1 for extent in extents)
    assert copies.leased_bytes == 0 and store._parts.room.reserved_bytes == 0
    assert not copies._orphans and not copies._transient
    spans = sorted((extent.offset, extent.offset + extent.length) for extent in extents)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(spans))
    for namespace in store.namespaces():
        assert namespace.stored_bytes == sum(catalogue.size[slot] for slot in namespace.index.values())
    resident_slots = set(catalogue.dram)
    assert all(slot in store._parts.policies.dram for slot in resident_slots)
    assert len(store._parts.policies.dram) == len(resident_slots)
