"""Situations in which nothing could ever leave, or nothing could be written, and what must happen instead."""

import asyncio
import time
from pathlib import Path

import pytest
from store_driver import KIB, MIB, assert_books_balance, bucket, kv, opened, put, settled, soon, store_config

from mooncask.errors import BadRequest, NoSuchNamespace, NotEvictable
from mooncask.tiers.block import TierName, WriteMode
from mooncask.tiers.pressure import ScanPause
from mooncask.tiers.requests import PutRequest
from mooncask.tiers.room import EVICTIONS_A_TURN

BLOCK = 256 * KIB


async def test_a_block_can_not_be_its_own_parent() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        with pytest.raises(BadRequest, match="own parent"):
            await put(store, namespace, b"k", b"x", parent=b"k")


@pytest.mark.parametrize("length", [2, 3, 5])
async def test_a_ring_of_parents_leaves_like_any_chain(length: int) -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for ring in range(40 // length):
            for number in range(length):
                parent = b"%d-%d" % (ring, (number + 1) % length)
                await put(store, namespace, b"%d-%d" % (ring, number), b"x" * BLOCK, parent=parent, seconds=1)
        assert_books_balance(store)


async def test_what_is_committed_after_its_namespace_was_dropped_is_refused() -> None:
    async with opened(store_config(None)) as store:
        namespace, other = await bucket(store, mode=WriteMode.MEMORY), await kv(store, mode=WriteMode.MEMORY)
        [reservation] = await store.reserve(namespace, [PutRequest(b"k", 1000)], soon())
        assert reservation is not None
        await store.drop_namespace(namespace)
        with pytest.raises(NoSuchNamespace):
            await store.commit(reservation)
        for number in range(20):  # eviction comes by everything that is in DRAM
            await put(store, other, b"%02d" % number, b"x" * BLOCK, seconds=1)
        assert_books_balance(store)


async def test_write_back_goes_on_when_nvme_is_full_of_what_may_not_leave_it(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        objects, cache = await bucket(store), await kv(store, mode=WriteMode.WRITE_BACK)
        with pytest.raises(NotEvictable):
            for number in range(80):
                await put(store, objects, b"%02d" % number, b"o" * MIB, durable=True)
        await store.evict(objects, [b"%02d" % (len(objects.index) - 1)])
        given_up = store.counters["nvme_writes_given_up"]
        started = time.monotonic()
        for number in range(60):
            await put(store, cache, b"%02d" % number, b"x" * BLOCK, seconds=5)
        assert store.counters["lost_dirty"] > 0, "a cache forgets what it can't keep, and says so"
        tries = store.counters["nvme_writes_given_up"] - given_up
        assert tries < 40 * (1 + time.monotonic() - started), "and it does not try without end"
        await settled(store)
        assert_books_balance(store)


async def test_a_load_passes_a_reserve_that_waits_for_leases_to_end(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        for number in range(30):
            await put(store, namespace, b"%02d" % number, b"x" * BLOCK, durable=True)
        keys = sorted(namespace.index)
        resident = [key for key in keys if (info := store.info(namespace, key)) and TierName.DRAM in info.tiers]
        below = next(key for key in keys if key not in resident)
        leases = store.hold(namespace, resident[:10])
        waiting = asyncio.create_task(store.reserve(namespace, [PutRequest(b"new", MIB)], soon()))
        await asyncio.sleep(0)
        assert store.status().waiting_for_room == 1
        loaded = await store.fetch(namespace, below, soon())
        assert loaded is not None and not waiting.done()
        store.drop(loaded)
        for lease in filter(None, leases):
            store.drop(lease)
        [reservation] = await waiting
        assert reservation is not None
        store.abort(reservation)
        assert_books_balance(store)


async def test_room_for_a_large_block_is_made_a_little_at_a_time() -> None:
    """Thousands of small blocks have to leave; others get their turns meanwhile, and a deadline counts."""
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(1024):
            await put(store, namespace, b"%04d" % number, b"x" * 4096)
        reserving = asyncio.create_task(store.reserve(namespace, [PutRequest(b"large", 2 * MIB)], soon()))
        most, before = 0, namespace.blocks
        while not reserving.done():
            await asyncio.sleep(0)
            most, before = max(most, before - namespace.blocks), namespace.blocks
        assert 0 < most <= 2 * EVICTIONS_A_TURN
        [reservation] = await reserving
        assert reservation is not None
        store.abort(reservation)


def test_a_long_look_that_found_nothing_is_not_repeated_at_once() -> None:
    pause = ScanPause()
    assert pause.left_seconds() == 0
    pause.found_nothing(time.monotonic())
    assert pause.left_seconds() == 0, "a short look may be repeated whenever something has changed"
    pause.found_nothing(time.monotonic() - 0.1)
    assert 0.8 < pause.left_seconds() < 1.5
