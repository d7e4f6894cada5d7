"""An older version of an object stays on disk until the newer one is there; it must never be seen again."""

import time
from pathlib import Path

import pytest
from store_driver import bucket, get, opened, put, settled, store_config

from mooncask.tiers.block import WriteMode
from mooncask.tiers.store import Store

OLD, NEW = b"old" * 1000, b"new" * 1000


async def replaced(store: Store, then: WriteMode) -> None:
    """The older version is durable; the newer one, put under `then`, is in DRAM only."""
    namespace = await bucket(store)
    await put(store, namespace, b"k", OLD, durable=True)
    namespace = await bucket(store, mode=then)
    await put(store, namespace, b"k", NEW)


async def after_restart(folder: Path) -> bytes | None:
    async with opened(store_config(folder)) as store:
        namespace = store.namespace("bucket")
        assert namespace is not None
        return await get(store, namespace, b"k")


@pytest.mark.parametrize("mode", [WriteMode.WRITE_BACK, WriteMode.MEMORY])
async def test_deleting_an_object_deletes_the_older_version_on_disk_too(tmp_path: Path, mode: WriteMode) -> None:
    async with opened(store_config(tmp_path)) as store:
        await replaced(store, mode)
        namespace = store.namespace("bucket")
        assert namespace is not None
        assert await store.evict(namespace, [b"k"]) == 1
        assert store._parts.write_down is not None and not store._parts.write_down._superseded
    assert await after_restart(tmp_path) is None


async def test_when_the_newer_version_expires_the_older_one_does_not_come_back(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        await replaced(store, WriteMode.WRITE_BACK)
        namespace = store.namespace("bucket")
        assert namespace is not None
        await store.set_ttl(namespace, b"k", 60)
        assert store._housekeeping.sweep(time.time() + 61) == 1
    assert await after_restart(tmp_path) is None


async def test_a_version_that_stays_in_memory_takes_the_older_one_off_the_disk(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        await replaced(store, WriteMode.MEMORY)
        await settled(store)
    assert await after_restart(tmp_path) is None


async def test_a_newer_version_that_was_put_back_under_another_mode_outlives_the_tombstone(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        await replaced(store, WriteMode.MEMORY)
        namespace = await bucket(store, mode=WriteMode.WRITE_BACK)
        await store.durable(namespace, b"k", time.monotonic() + 5)
    assert await after_restart(tmp_path) == NEW


async def test_what_write_through_could_not_write_is_written_at_a_clean_end(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await bucket(store)
        store._parts.rules.nvme_takes_writes = False  # as while the disk is away
        await put(store, namespace, b"k", NEW)
    assert await after_restart(tmp_path) == NEW
