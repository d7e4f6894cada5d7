"""The NVMe tier in good weather: blocks, restarts, deletes, evictions, namespaces, time to live."""

import asyncio
import mmap
from pathlib import Path

import pytest
from nvme_doubles import MIB, NAMESPACE, FaultyFiles, OpenStore, SmallStore, payload_of, read_behind, record_of

from mooncask.errors import BadRequest, BlockTooLarge, ConfigError, CorruptBlock
from mooncask.tiers.block import aligned
from mooncask.tiers.nvme import NvmeConfig
from mooncask.tiers.nvme.record import HEADER_BYTES, record_length

SIZES = [1, 4095, 4096, 4097, 100_000, 3 * MIB]


@pytest.mark.parametrize("size", [0, *SIZES])
async def test_a_committed_block_is_read_back_byte_for_byte(open_store: OpenStore, size: int) -> None:
    store = await open_store()
    await store.put(b"k", size, seed=size)
    assert await store.get(b"k") == bytes(payload_of(size, size)[:size])


async def test_a_record_is_one_header_page_and_the_padded_payload_right_behind_it(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    await store.put(b"k", 5000, seed=1)
    extent = store.blocks[NAMESPACE, b"k"].extent
    assert extent.length == record_length(5000) == HEADER_BYTES + 8192
    assert read_behind(small, extent, HEADER_BYTES, 8192) == bytes(payload_of(1, 5000))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [0, 1, 512])
async def test_payloads_need_be_neither_aligned_nor_padded(open_store: OpenStore, size: int, shift: int) -> None:
    store = await open_store()
    memory = memoryview(mmap.mmap(-1, aligned(size + shift) + 4096))
    memory[:] = b"\xee" * len(memory)
    memory[shift : shift + size] = payload_of(5, size)[:size]
    payload = memory[shift : shift + size]
    record = record_of(b"k", payload, size, store.next_sequence())
    extent = await store.reserve(size)
    await store.tier.commit(extent, record, payload)
    into = memoryview(mmap.mmap(-1, aligned(size + shift) + 4096))[shift : shift + size]
    await store.tier.read(extent, record, into)
    assert into == payload


async def test_a_target_longer_than_the_block_is_left_alone_behind_its_padding(open_store: OpenStore) -> None:
    store = await open_store()
    record = await store.put(b"k", 5000, seed=1)
    into = memoryview(mmap.mmap(-1, 16384))
    into[:] = b"\xaa" * 16384
    await store.tier.read(store.blocks[NAMESPACE, b"k"].extent, record, into)
    assert into[:5000] == payload_of(1, 5000)[:5000]
    assert into[8192:] == b"\xaa" * 8192


async def test_committed_blocks_survive_a_restart_with_everything_known_of_them(open_store: OpenStore) -> None:
    store = await open_store()
    records = [await store.put(b"k%d" % i, 10_000 + i, seed=i) for i in range(20)]
    used = store.tier.used_bytes
    await store.close()
    store = await open_store()
    assert sorted(kept.record.key for kept in store.blocks.values()) == sorted(record.key for record in records)
    assert [store.blocks[NAMESPACE, record.key].record for record in records] == records
    assert store.tier.used_bytes == used
    for i in range(20):
        assert await store.get(b"k%d" % i) == bytes(payload_of(i, 10_000 + i)[: 10_000 + i])


async def test_deleted_blocks_stay_deleted_after_a_restart(open_store: OpenStore) -> None:
    store = await open_store()
    for i in range(4):
        await store.put(b"k%d" % i, 5000, seed=i)
    await store.delete(b"k1")
    await store.close()
    store = await open_store()
    assert sorted(store.tier.keys()) == [(NAMESPACE, b"k0"), (NAMESPACE, b"k2"), (NAMESPACE, b"k3")]


async def test_an_evicted_block_is_listed_no_more_and_gone_after_a_clean_restart(open_store: OpenStore) -> None:
    store = await open_store()
    await store.put(b"a", 5000, seed=1)
    await store.put(b"b", 5000, seed=2)
    used = store.tier.used_bytes
    store.evict(b"a")
    assert list(store.tier.keys()) == [(NAMESPACE, b"b")]
    assert store.tier.used_bytes == used - record_length(5000)
    await store.close()
    store = await open_store()
    assert list(store.blocks) == [(NAMESPACE, b"b")]


async def test_freeing_a_committed_extent_forgets_its_block_for_good(open_store: OpenStore) -> None:
    store = await open_store()
    await store.put(b"a", 5000, seed=1)
    await store.put(b"b", 5000, seed=2)
    store.tier.free(store.blocks.pop((NAMESPACE, b"a")).extent)
    assert list(store.tier.keys()) == [(NAMESPACE, b"b")]
    await store.close()
    store = await open_store()
    assert list(store.blocks) == [(NAMESPACE, b"b")]


async def test_a_replaced_block_is_the_new_one_whatever_order_the_old_extent_is_freed_in(open_store: OpenStore) -> None:
    store = await open_store()
    await store.put(b"k", 5000, seed=1)
    await store.put(b"k", 6000, seed=2)
    assert await store.get(b"k") == bytes(payload_of(2, 6000)[:6000])
    await store.close()
    store = await open_store()
    assert await store.get(b"k") == bytes(payload_of(2, 6000)[:6000])
    assert store.tier.used_bytes == record_length(6000)


async def test_a_delete_overtakes_the_write_it_deletes(open_store: OpenStore) -> None:
    store = await open_store()
    payload = payload_of(1, MIB)
    record = record_of(b"k", payload, MIB, store.next_sequence())
    extent = await store.reserve(MIB)
    write = asyncio.create_task(store.tier.commit(extent, record, payload))
    await asyncio.sleep(0)
    await store.tier.delete([(NAMESPACE, b"k", record.sequence)])
    await write
    assert list(store.tier.keys()) == []
    store.tier.free(extent)
    assert store.tier.used_bytes == 0
    await store.close()
    store = await open_store()
    assert not store.blocks


async def test_a_delete_spares_a_newer_copy(open_store: OpenStore) -> None:
    store = await open_store()
    old = await store.put(b"k", 5000, seed=1)
    await store.put(b"k", 6000, seed=2)
    await store.tier.delete([(NAMESPACE, b"k", old.sequence)])
    await store.close()
    store = await open_store()
    assert await store.get(b"k") == bytes(payload_of(2, 6000)[:6000])


async def test_a_reservation_that_is_given_back_leaves_nothing(open_store: OpenStore) -> None:
    store = await open_store()
    extent = await store.reserve(5000)
    assert store.tier.used_bytes == record_length(5000)
    store.tier.free(extent)
    assert store.tier.used_bytes == 0
    assert list(store.tier.keys()) == []


async def test_many_commits_share_syncs(open_store: OpenStore, faulty_files: FaultyFiles) -> None:
    store = await open_store(faulty_files)
    await store.put(b"first", 5000, seed=1)
    before = faulty_files.calls["fdatasync"]
    await asyncio.gather(*(store.put(b"k%d" % i, 50_000, seed=i) for i in range(32)))
    assert faulty_files.calls["fdatasync"] - before < 16
    assert len(list(store.tier.keys())) == 33


async def test_a_cancelled_commit_leaves_an_extent_to_free_and_no_block(open_store: OpenStore) -> None:
    for turns in range(12):
        store = await open_store()
        payload = payload_of(1, MIB)
        record = record_of(b"k", payload, MIB, store.next_sequence())
        extent = await store.reserve(MIB)
        write = asyncio.create_task(store.tier.commit(extent, record, payload))
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        write.cancel()
        [outcome] = await asyncio.gather(write, return_exceptions=True)
        assert outcome is None or isinstance(outcome, asyncio.CancelledError)
        store.tier.free(extent)
        assert store.tier.used_bytes == 0
        assert list(store.tier.keys()) == []
        await store.close()
        store = await open_store()
        assert not store.blocks
        await store.close()


async def test_time_to_live_and_pins_survive_a_restart_and_a_move(open_store: OpenStore) -> None:
    store = await open_store()
    record = await store.put(b"k", 5000, seed=1)
    await store.tier.put_meta(record, 1234.5, 2)
    await store.close()
    store = await open_store()
    [block] = store.tier.recovered
    assert (block.ttl_deadline, block.pins) == (1234.5, 2)


async def test_meta_of_a_copy_that_is_gone_is_not_put_on_the_next_one(open_store: OpenStore) -> None:
    store = await open_store()
    old = await store.put(b"k", 5000, seed=1)
    await store.put(b"k", 6000, seed=2)
    await store.tier.put_meta(old, 99.0, 1)
    [block] = store.tier.recovered
    assert (block.ttl_deadline, block.pins) == (0.0, 0)


async def test_namespaces_come_back_and_a_dropped_one_takes_its_blocks_along(open_store: OpenStore) -> None:
    store = await open_store()
    await store.tier.save_namespace(7, b"seven")
    await store.tier.save_namespace(8, b"eight")
    await store.tier.save_namespace(8, b"eight again")
    await store.put(b"a", 5000, seed=1, namespace=7)
    await store.put(b"a", 5000, seed=2, namespace=8)
    await store.tier.drop_namespace(7)
    assert store.tier.saved_namespaces() == {8: b"eight again"}
    store.tier.free(store.blocks.pop((7, b"a")).extent)
    await store.close()
    store = await open_store()
    assert store.tier.saved_namespaces() == {8: b"eight again"}
    assert list(store.blocks) == [(8, b"a")]
    assert store.tier.highest_namespace == 8


async def test_no_sequence_ever_used_is_above_the_next_start(open_store: OpenStore) -> None:
    store = await open_store()
    store.sequence += 5 << 20  # blocks that were never written to this tier
    record = await store.put(b"k", 5000, seed=1)
    await store.close()
    store = await open_store()
    assert store.tier.highest_sequence >= record.sequence


async def test_a_block_that_fits_into_no_segment_is_refused_by_size(open_store: OpenStore) -> None:
    store = await open_store()
    with pytest.raises(BlockTooLarge) as caught:
        store.tier.reserve(8 * MIB)
    assert caught.value.size_bytes_max == store.tier.block_bytes_max
    await store.put(b"k", store.tier.block_bytes_max, seed=1)


async def test_a_key_longer_than_a_header_holds_is_refused(open_store: OpenStore) -> None:
    store = await open_store()
    with pytest.raises(BadRequest, match="1024"):
        await store.put(b"k" * 1025, 10, seed=1)
    assert store.tier.used_bytes == 0
    await store.put(b"k" * 1024, 10, seed=1)


async def test_reading_what_is_not_there_is_corrupt_and_says_what_is(open_store: OpenStore) -> None:
    store = await open_store()
    record = await store.put(b"k", 5000, seed=1)
    extent = store.blocks[NAMESPACE, b"k"].extent
    other = record_of(b"j", payload_of(1, 5000), 5000, record.sequence)
    with pytest.raises(CorruptBlock, match="block k in its place"):
        await store.tier.read(extent, other, memoryview(bytearray(5000)))


def test_a_capacity_for_fewer_than_four_segments_is_refused_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least"):
        NvmeConfig(tmp_path, 30 * MIB, 8 * MIB)
    assert NvmeConfig(tmp_path, 33 * MIB, 8 * MIB).layout().segments == 4


def test_segments_of_a_small_tier_are_small(tmp_path: Path) -> None:
    assert NvmeConfig(tmp_path, 100 << 30).layout().segment_bytes == 256 * MIB
    assert NvmeConfig(tmp_path, 2 << 30).layout().segment_bytes == 64 * MIB


async def test_memory_for_headers_is_reused(open_store: OpenStore) -> None:
    store: SmallStore = await open_store()
    for i in range(100):
        await store.put(b"k%d" % i, 100, seed=i)
    assert len(store.tier._log.pages._free) == 32
