"""Who leaves DRAM and NVMe, in which order, and what is never lost by it."""

import asyncio
from pathlib import Path

import pytest
from store_driver import (
    KIB,
    MIB,
    assert_books_balance,
    bucket,
    get,
    kv,
    opened,
    put,
    resident,
    settled,
    soon,
    store_config,
)

from mooncask.errors import Busy, NotEvictable, PinLimitExceeded
from mooncask.tiers.block import TierName, WriteMode
from mooncask.tiers.requests import PutRequest
from mooncask.tiers.store import Store

BLOCK = 256 * KIB
FITS = 16
"""Blocks of BLOCK bytes in the arena of these tests (4 MiB)."""


def payload(number: int) -> bytes:
    return number.to_bytes(4, "big") * (BLOCK // 4)


async def test_a_memory_namespace_forgets_its_least_recently_used_block() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        assert resident(store, namespace, b"00") is not None
        await put(store, namespace, b"more", payload(99))
        assert store.info(namespace, b"01") is None, "the oldest that was not read since"
        assert resident(store, namespace, b"00") == payload(0)
        assert_books_balance(store)


async def test_blocks_of_low_priority_leave_first_and_those_of_high_priority_last() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(FITS):  # the low ones are the newest
            priority = 200 if number < 4 else 128 if number < 12 else 10
            await put(store, namespace, b"%02d" % number, payload(number), priority=priority)
        for number in range(12):
            await put(store, namespace, b"new%d" % number, payload(number))
        here = [number for number in range(FITS) if store.info(namespace, b"%02d" % number) is not None]
        assert here == [0, 1, 2, 3]
        assert_books_balance(store)


async def test_a_block_is_as_important_on_nvme_as_in_dram(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path / "nvme")) as store:
        namespace = await kv(store)
        await put(store, namespace, b"low", payload(1), durable=True, priority=10)
        await put(store, namespace, b"any", payload(2), durable=True)
        await settled(store)
        policies = store._parts.policies
        low, other = namespace.index[b"low"], namespace.index[b"any"]
        assert policies.nvme.hint_of(low).priority < policies.nvme.hint_of(other).priority == 128


@pytest.mark.parametrize("policy", ["lru", "fifo", "lfu", "s3fifo", "2q", "arc", "sieve"])
async def test_under_every_policy_pressure_makes_room_and_loses_nothing_that_is_on_the_disk(
    policy: str, tmp_path: Path
) -> None:
    async with opened(store_config(tmp_path / "nvme", dram_policy=policy, nvme_policy=policy)) as store:
        namespace = await kv(store)
        for number in range(3 * FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
            await get(store, namespace, b"%02d" % (number // 2))
        await settled(store)
        for number in range(3 * FITS):
            assert await get(store, namespace, b"%02d" % number) == payload(number)
        assert_books_balance(store)


async def test_a_chain_is_forgotten_from_its_end() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        chain = [b"%02d" % number for number in range(FITS)]
        for number, key in enumerate(chain):
            await put(store, namespace, key, payload(number), parent=chain[number - 1] if number else b"")
        for number in range(5):
            await put(store, namespace, b"new%d" % number, payload(number))
            prefix = len(store.match(namespace, chain))
            kept = sum(store.info(namespace, key) is not None for key in chain)
            assert prefix == kept, "what is left of the chain is its usable prefix"
        assert kept < FITS
        assert_books_balance(store)


async def test_leased_and_pinned_blocks_never_leave() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        [held] = store.hold(namespace, [b"03"])
        await store.pin(namespace, b"00")
        for number in range(2 * FITS):
            await put(store, namespace, b"new%02d" % number, payload(number))
        assert resident(store, namespace, b"00") == payload(0) and resident(store, namespace, b"03") == payload(3)
        assert held is not None
        store.drop(held)
        await store.unpin(namespace, b"00")
        for number in range(2 * FITS):
            await put(store, namespace, b"again%02d" % number, payload(number))
        assert store.info(namespace, b"00") is None
        assert_books_balance(store)


async def test_pins_beyond_the_share_of_the_tier_are_refused() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        for number in range(11):
            await store.pin(namespace, b"%02d" % number)
        with pytest.raises(PinLimitExceeded, match="dram"):
            await store.pin(namespace, b"11")
        await store.pin(namespace, b"00")  # a second pin of the same block holds no more bytes


async def test_an_object_namespace_forgets_nothing_and_says_so() -> None:
    async with opened(store_config(None)) as store:
        namespace = await bucket(store, mode=WriteMode.MEMORY)
        for number in range(FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        with pytest.raises(Busy, match="no block may leave"):
            await store.reserve(namespace, [PutRequest(b"more", BLOCK)], soon(0.05))
        assert all(resident(store, namespace, b"%02d" % number) == payload(number) for number in range(FITS))


async def test_hot_blocks_get_a_copy_in_hbm_and_lose_it_first() -> None:
    config = store_config(None, hbm_bytes=4 * BLOCK, hbm_device="cpu")
    async with opened(config) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        for number in range(8):
            await put(store, namespace, b"%d" % number, payload(number))
        for number in (0, 0, 1, 1, 2):
            resident(store, namespace, b"%d" % number)
        store._parts.recency.flush()
        while store._parts._background:
            await asyncio.wait(set(store._parts._background))  # one that has just ended is still in there
        info = store.info(namespace, b"0")
        assert info is not None and info.tiers == (TierName.HBM, TierName.DRAM)
        cold = store.info(namespace, b"2")
        assert cold is not None and cold.tiers == (TierName.DRAM,)
        assert store.match(namespace, [b"0"]).tiers == bytes([TierName.HBM])
        await store.evict(namespace, [b"0", b"1"])
        assert store.hbm is not None and store.hbm.used_bytes == 0
        assert_books_balance(store)


async def test_uses_that_are_told_of_while_it_closes_promote_nothing_any_more() -> None:
    store = await Store.open(store_config(None, hbm_bytes=4 * BLOCK, hbm_device="cpu"))
    await store.dram.wait_populated()
    namespace = await kv(store, mode=WriteMode.MEMORY)
    await put(store, namespace, b"0", payload(0))
    for _ in range(3):
        resident(store, namespace, b"0")
    await store.close()
    store._parts.recency.flush()
    assert not store._parts._background


# --- with NVMe below ---


async def test_write_through_evicts_from_dram_without_losing_anything(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        for number in range(3 * FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        await settled(store)
        assert store.counters["evicted_dram_copies"] > 0
        for number in range(3 * FITS):
            assert await get(store, namespace, b"%02d" % number) == payload(number)
        assert_books_balance(store)


async def test_write_back_writes_below_before_it_forgets_above(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store, mode=WriteMode.WRITE_BACK)
        for number in range(FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        assert store.counters["nvme_written_bytes"] == 0
        for number in range(FITS, 3 * FITS):
            await put(store, namespace, b"%02d" % number, payload(number))
        assert store.counters["demoted"] >= FITS
        for number in range(3 * FITS):
            assert await get(store, namespace, b"%02d" % number) == payload(number)
        assert_books_balance(store)


async def test_a_block_read_once_from_nvme_leaves_dram_with_its_reader_and_read_twice_it_stays(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        await put(store, namespace, b"k", payload(1), durable=True)
        store._parts.copies.drop_dram(namespace.index[b"k"])
        assert await get(store, namespace, b"k") == payload(1)
        assert resident(store, namespace, b"k") is None
        assert await get(store, namespace, b"k") == payload(1)
        assert resident(store, namespace, b"k") == payload(1)
        assert_books_balance(store)


async def test_nvme_evicts_leaf_first_when_it_is_full(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await kv(store)
        chains = [[b"%02d-%02d" % (chain, number) for number in range(10)] for chain in range(30)]
        for chain in chains:
            for number, key in enumerate(chain):
                await put(
                    store, namespace, key, payload(number), parent=chain[number - 1] if number else b"", seconds=20
                )
            await settled(store)
        prefixes = [len(store.match(namespace, chain)) for chain in chains]
        assert prefixes == [sum(store.info(namespace, key) is not None for key in chain) for chain in chains]
        assert prefixes[0] == 0 and prefixes[-1] == 10 and FITS < sum(prefixes) < 300
        for number in range(10):
            assert await get(store, namespace, chains[-1][number]) == payload(number)
        assert_books_balance(store)


async def test_a_chain_longer_than_the_store_keeps_its_beginning() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        chain = [b"%02d" % number for number in range(FITS + 2)]
        for number, key in enumerate(chain[:FITS]):
            await put(store, namespace, key, payload(number), parent=chain[number - 1] if number else b"")
        request = PutRequest(chain[FITS], BLOCK, chain[FITS - 1])
        with pytest.raises(Busy, match="no block may leave"):
            await store.reserve(namespace, [request], soon(0.05))
        assert len(store.match(namespace, chain)) == FITS


async def test_blocks_of_one_chain_may_be_committed_in_any_order() -> None:
    async with opened(store_config(None)) as store:
        namespace = await kv(store, mode=WriteMode.MEMORY)
        chain = [b"%02d" % number for number in range(FITS)]
        for number in reversed(range(FITS)):
            await put(store, namespace, chain[number], payload(number), parent=chain[number - 1] if number else b"")
        for number in range(4):
            await put(store, namespace, b"new%d" % number, payload(number))
        assert len(store.match(namespace, chain)) == sum(store.info(namespace, key) is not None for key in chain) > 0


async def test_a_full_nvme_refuses_objects_instead_of_forgetting_them(tmp_path: Path) -> None:
    async with opened(store_config(tmp_path)) as store:
        namespace = await bucket(store)
        stored = 0
        with pytest.raises(NotEvictable):
            for stored in range(400):
                await put(store, namespace, b"%03d" % stored, payload(stored), durable=True)
        for number in range(stored):
            assert await get(store, namespace, b"%03d" % number) == payload(number)
        assert stored * BLOCK > 32 * MIB
