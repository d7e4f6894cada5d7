"""Pins and times to live: they reach the disk with their block, and pins hold no more memory than they must."""

import time
from pathlib import Path

import pytest
from store_driver import KIB, assert_books_balance, get, kv, opened, put, settled, soon, store_config

from mooncask.errors import TierDegraded
from mooncask.tiers.block import TierName, WriteMode

BLOCK = 256 * KIB


@pytest.mark.parametrize("mode", [WriteMode.WRITE_THROUGH, WriteMode.WRITE_BACK])
async def test_what_is_set_before_the_block_is_on_disk_is_there_after_a_restart(
    tmp_path: Path, mode: WriteMode
) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store, mode=mode)
        await put(store, namespace, b"k", b"x" * 1000)
        await store.pin(namespace, b"k")
        await store.set_ttl(namespace, b"k", 3600)
        await store.durable(namespace, b"k", soon())
    async with opened(store_config(tmp_path)) as store:
        info = store.info(await kv(store), b"k")
        assert info is not None and info.pins == 1 and 3000 < info.ttl_seconds <= 3600


async def test_pinned_blocks_that_are_on_disk_too_do_not_keep_writers_out_of_dram(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path, promote_after=1)) as store:
        namespace = await kv(store)
        keys = [b"%02d" % number for number in range(40)]
        for key in keys:
            await put(store, namespace, key, key * (BLOCK // 2), durable=True)
        pinned = [key for key in keys if (info := store.info(namespace, key)) and info.tiers == (TierName.NVME,)]
        for key in pinned:
            await store.pin(namespace, key)
        for key in pinned:
            assert await get(store, namespace, key) == key * (BLOCK // 2), "loaded, and kept in DRAM"
        assert await put(store, namespace, b"new", b"y" * BLOCK, seconds=1)
        await settled(store)
        assert_books_balance(store)
        assert store._parts.catalogue.pinned_dram_bytes == 0
        for key in pinned:
            await store.unpin(namespace, key)
        assert store._parts.catalogue.pinned_bytes == 0


async def test_a_pinned_block_counts_against_dram_until_it_is_on_disk(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store, mode=WriteMode.WRITE_BACK)
        await put(store, namespace, b"k", b"x" * BLOCK)
        await store.pin(namespace, b"k")
        assert store._parts.catalogue.pinned_dram_bytes == BLOCK
        await store.durable(namespace, b"k", soon())
        assert store._parts.catalogue.pinned_dram_bytes == 0
        await store.evict(namespace, [b"k"])
        assert store._parts.catalogue.pinned_dram_bytes == store._parts.catalogue.pinned_bytes == 0


async def test_a_pin_that_the_disk_refuses_is_no_pin(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", b"x" * 1000, durable=True)
        assert store.nvme is not None
        store.nvme._group.degraded = "no more"
        with pytest.raises(TierDegraded):
            await store.pin(namespace, b"k")
        store.nvme._group.degraded = ""
        info = store.info(namespace, b"k")
        assert info is not None and info.pins == 0


async def test_an_expired_block_is_nowhere_to_be_seen_before_it_is_swept(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", b"x" * 1000, durable=True)
        slot = namespace.index[b"k"]
        store._parts.catalogue.set_ttl(slot, time.time() - 0.001)
        assert store.info(namespace, b"k") is None
        assert store.checksum(namespace, b"k") is None
        assert not store.has(namespace, b"k")
        assert await get(store, namespace, b"k") is None
        assert store.list_blocks(namespace) == []


async def test_expired_blocks_are_swept_in_small_steps_and_only_those_whose_time_still_holds() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        now = time.time()
        for number in range(300):
            await put(store, namespace, b"%03d" % number, b"x")
            await store.set_ttl(namespace, b"%03d" % number, 60)
        await store.set_ttl(namespace, b"000", None)
        await store.set_ttl(namespace, b"001", 6000)
        for _ in range(5000):
            await store.set_ttl(namespace, b"002", 6000)
        assert len(store._parts.catalogue._ends) < 2 * 300 + 2000, "renewals leave nothing behind"
        sweep = store._housekeeping.sweep
        assert sweep(now + 30) == 0
        assert [sweep(now + 70) for _ in range(4)] == [128, 128, 41, 0]
        assert sorted(namespace.index) == [b"000", b"001", b"002"]
        assert sweep(now + 7000) == 2 and namespace.ttl_blocks == 0
