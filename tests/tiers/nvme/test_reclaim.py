"""Reclaiming: room comes back, what lives moves whole, what is read stays put, what is deleted stays deleted."""

import asyncio
import random
import shutil
import threading

from nvme_doubles import MIB, NAMESPACE, FaultyFiles, OpenStore, SmallStore, payload_of, until

from mooncask.errors import TierDegraded
from mooncask.tiers.block import BlockRecord, Extent
from mooncask.tiers.nvme import NvmeConfig, NvmeTier
from mooncask.tiers.nvme.group_commit import Entry
from mooncask.tiers.nvme.index_entry import SegmentState, Set, Use, segment_key
from mooncask.tiers.nvme.record import record_length


async def fill(store: SmallStore, count: int, size: int = MIB, prefix: bytes = b"k") -> None:
    for i in range(count):
        await store.put(prefix + b"%d" % i, size, seed=i)


async def test_space_of_deleted_blocks_is_written_again_many_times_over(open_store: OpenStore) -> None:
    store = await open_store()
    chooser = random.Random(1)
    for i in range(250):
        await store.put(b"k%d" % chooser.randrange(30), chooser.randrange(1, MIB), seed=i)
    assert store.tier.reclaimed_segments > 5
    assert store.moves > 0
    assert await store.tier.check() == []
    await store.close()
    store = await open_store()
    assert await store.tier.check() == []
    assert store.tier.used_bytes == sum(kept.extent.length for kept in store.blocks.values())


async def test_moved_blocks_keep_their_bytes_sequence_time_to_live_and_pins(open_store: OpenStore) -> None:
    store = await open_store()
    records = [await store.put(b"old%d" % i, 50_000 + i, seed=i) for i in range(10)]
    for record in records:
        await store.tier.put_meta(record, 77.0, 3)
    chooser = random.Random(2)
    for i in range(120):
        await store.put(b"k%d" % chooser.randrange(28), MIB, seed=i)
    assert store.moves > 10
    await store.close()
    store = await open_store()
    recovered = {block.record.key: block for block in store.tier.recovered}
    for i, record in enumerate(records):
        block = recovered[record.key]
        assert (block.record, block.ttl_deadline, block.pins) == (record, 77.0, 3)
        assert await store.get(record.key) == bytes(payload_of(i, 50_000 + i)[: 50_000 + i])


async def test_a_full_tier_says_no_and_has_room_again_after_evictions(open_store: OpenStore) -> None:
    store: SmallStore = await open_store()
    written = 0
    while written < 100:
        try:
            await store.put(b"k%d" % written, MIB, seed=written)
        except AssertionError:
            break
        written += 1
    assert store.tier.reserve(MIB) is None
    assert written * record_length(MIB) > 0.8 * store.tier.usable_bytes
    for i in range(written // 2):
        store.evict(b"k%d" % i)
    assert await store.tier.room(MIB)
    await store.put(b"new", MIB, seed=1)
    for i in range(written // 2, written):
        assert len(await store.get(b"k%d" % i)) == MIB


async def test_a_segment_that_is_reclaimed_just_after_it_was_sealed_is_free_in_the_index(open_store: OpenStore) -> None:
    """Both are said in one batch then, and the later word is that it is free: after a crash its header would belie the index."""
    store = await open_store()
    await fill(store, 12)
    group = store.tier._group
    victim = next(segment for segment in group._table if segment.settled)
    victim.unsaved = True
    free = SegmentState(group._table.next_generation(), Use.FREE, 0)
    await group.settle(Entry("reclaim", [Set(segment_key(victim.number), free.pack())]))
    assert group.index.segments()[victim.number] == free


async def test_a_segment_is_not_overwritten_while_one_of_its_blocks_is_being_read(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store: SmallStore = await open_store(faulty_files)
    await fill(store, 7)
    kept = store.blocks[NAMESPACE, b"k3"]
    started, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        faulty_files.rules.pop("preadv", None)
        started.set()
        assert go_on.wait(20)

    into = payload_of(0, MIB)
    faulty_files.rules["preadv"] = hold
    reading = asyncio.create_task(store.tier.read(kept.extent, kept.record, into))
    await asyncio.to_thread(started.wait, 20)
    for i in range(7):
        await store.delete(b"k%d" % i)
    for i in range(60):
        await store.put(b"n%d" % (i % 5), MIB, seed=100 + i)
    assert store.tier.reclaimed_segments > 3
    go_on.set()
    await reading
    assert into == payload_of(3, MIB)


async def test_deleted_blocks_stay_deleted_in_a_rebuild_however_much_was_reclaimed_in_between(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    chooser = random.Random(3)
    keys = [b"k%d" % i for i in range(28)]
    for i in range(200):
        key = chooser.choice(keys)
        if (NAMESPACE, key) in store.blocks and chooser.random() < 0.4:
            await store.delete(key)
        else:
            await store.put(key, chooser.randrange(MIB), seed=i)
        if i % 50 == 49:
            expected = {key: kept.record for key, kept in store.blocks.items()}
            await store.close()
            shutil.rmtree(small.path / "index")
            store = await open_store()
            assert {key: kept.record for key, kept in store.blocks.items()} == expected
            assert await store.tier.check() == []
    assert store.tier.rebuilt is not None


async def test_tombstones_go_when_nothing_older_is_left(open_store: OpenStore) -> None:
    store: SmallStore = await open_store()
    await fill(store, 7)
    for i in range(7):
        await store.delete(b"k%d" % i)
    for i in range(150):
        await store.put(b"n%d" % (i % 12), MIB, seed=i)
    await until(lambda: sum(segment.tombstones for segment in store.tier._table) == 0)


async def test_a_block_that_dies_while_it_is_moved_stays_dead(small: NvmeConfig) -> None:
    store = SmallStore()
    dying = b"dying"

    def moved(record: BlockRecord, old: Extent, new: Extent) -> bool:
        if record.key == dying and (NAMESPACE, dying) in store.blocks:
            kept = store.blocks.pop((NAMESPACE, dying))
            store.tier.forget(kept.extent, kept.record)
        return store.moved(record, old, new)

    store.closed = False
    store.tier = await NvmeTier.open(small, store.is_live, moved)
    await store.put(dying, 50_000, seed=1)
    await store.put(b"other", 50_000, seed=1)
    chooser = random.Random(5)
    for i in range(150):
        await store.put(b"k%d" % chooser.randrange(28), MIB, seed=i)
    assert (NAMESPACE, dying) not in store.blocks
    assert (NAMESPACE, dying) not in list(store.tier.keys())
    await until(lambda: store.tier.used_bytes == sum(kept.extent.length for kept in store.blocks.values()))
    await store.close()
    store = await SmallStore().open(small)
    assert (NAMESPACE, dying) not in store.blocks
    assert (NAMESPACE, b"other") in store.blocks
    await store.close()


async def test_a_store_that_frees_the_old_place_itself_loses_nothing(small: NvmeConfig) -> None:
    store = SmallStore()

    def moved(record: BlockRecord, old: Extent, new: Extent) -> bool:
        took = store.moved(record, old, new)
        if took:
            store.tier.free(old)
        return took

    store.closed = False
    store.tier = await NvmeTier.open(small, store.is_live, moved)
    chooser = random.Random(6)
    for i in range(120):
        await store.put(b"k%d" % chooser.randrange(28), MIB, seed=i)
    assert store.moves > 5
    await until(lambda: store.tier.used_bytes == sum(kept.extent.length for kept in store.blocks.values()))
    expected = set(store.blocks)
    await store.close()
    store = await SmallStore().open(small)
    assert set(store.blocks) == expected
    assert await store.tier.check() == []
    await store.close()


async def test_a_block_the_store_does_not_name_yet_is_not_thrown_away(open_store: OpenStore) -> None:
    """Between a commit's return and the store's note of it the reclaimer must not take the block for dead."""
    store: SmallStore = await open_store()
    await store.put(b"unnamed", 50_000, seed=1)
    hidden = store.blocks.pop((NAMESPACE, b"unnamed"))
    chooser = random.Random(7)
    for i in range(120):
        await store.put(b"k%d" % chooser.randrange(26), MIB, seed=i)
    assert store.tier.reclaimed_segments > 0
    store.blocks[NAMESPACE, b"unnamed"] = hidden
    assert await store.get(b"unnamed") == bytes(payload_of(1, 50_000)[:50_000])


async def test_a_failed_sync_while_copying_leaves_every_block_where_it_was(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store: SmallStore = await open_store(faulty_files)
    chooser = random.Random(8)
    failed = 0
    for i in range(120):
        if i in (60, 80):
            faulty_files.fail("fdatasync", 5, times=1)
        try:
            await store.put(b"k%d" % chooser.randrange(10), MIB, seed=i)
        except TierDegraded:
            failed += 1
    assert failed <= 2
    assert store.tier.state == "ok"
    assert await store.tier.check() == []
    expected = set(store.blocks)
    await store.close()
    store = await open_store()
    assert set(store.blocks) == expected
    assert await store.tier.check() == []
