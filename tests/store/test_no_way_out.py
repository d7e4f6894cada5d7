"""Situations in which nothing could ever leave, or nothing could be written, and what must happen instead."""

import time
from pathlib import Path

import pytest
from store_driver import KIB, MIB, assert_books_balance, bucket, kv, opened, put, settled, soon, store_config

from mooncask.errors import BadRequest, NoSuchNamespace, NotEvictable
from mooncask.tiers.block import WriteMode
from mooncask.tiers.requests import PutRequest

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
