"""A disk that fails: nothing that failed is acknowledged, nothing acknowledged is lost, the rest goes on."""

import asyncio
import errno
import shutil

import pytest
from nvme_doubles import MIB, NAMESPACE, FaultyFiles, OpenStore, payload_of, until

from mooncask.errors import FolderNotWritable, TierDegraded
from mooncask.tiers.nvme import NvmeConfig, group_commit, reopening, segment_files
from mooncask.tiers.nvme.segment import State


async def test_a_failed_fdatasync_is_not_acknowledged_and_its_segment_is_never_written_again(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    first = store.blocks[NAMESPACE, b"before"].extent
    faulty_files.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(TierDegraded, match="fdatasync"):
        await store.put(b"lost", 5000, seed=2)
    assert store.tier.state == "ok"
    await store.put(b"after", 5000, seed=3)
    segment = 8 * MIB
    assert store.blocks[NAMESPACE, b"after"].extent.offset // segment != first.offset // segment
    assert len(await store.get(b"before")) == 5000
    await store.close()
    store = await open_store()
    assert sorted(key for _, key in store.blocks) == [b"after", b"before"]


async def test_all_writes_that_shared_the_failed_fdatasync_fail(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    faulty_files.fail("fdatasync", errno.EIO, times=1)
    outcomes = await asyncio.gather(*(store.put(b"k%d" % i, 50_000, seed=i) for i in range(8)), return_exceptions=True)
    failed = [outcome for outcome in outcomes if isinstance(outcome, TierDegraded)]
    assert failed
    assert len(store.blocks) == 1 + 8 - len(failed)
    assert store.tier.used_bytes == sum(kept.extent.length for kept in store.blocks.values())


async def test_a_disk_that_can_never_sync_makes_the_tier_read_only(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    pool = [await store.reserve(MIB * 7) for _ in range(3)]  # three segments at least
    for extent in pool:
        store.tier.free(extent)
    faulty_files.fail("fdatasync", errno.EIO)
    for i in range(group_commit.FENCES_MAX):
        if store.tier.state == "ok":
            with pytest.raises(TierDegraded):
                await store.put(b"k%d" % i, 5000, seed=i)
    assert store.tier.state.startswith("degraded: ")
    assert store.tier.reserve(5000) is None
    assert not await store.tier.room(5000)
    assert len(await store.get(b"before")) == 5000
    faulty_files.heal()


async def test_an_io_error_while_writing_fails_that_block_alone(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    faulty_files.fail("pwritev", errno.EIO, times=1)
    with pytest.raises(TierDegraded, match="can't be written"):
        await store.put(b"lost", 5000, seed=2)
    await store.put(b"after", 5000, seed=3)
    assert store.tier.state == "ok"
    assert sorted(key for _, key in list(store.tier.keys())) == [b"after", b"before"]


async def test_short_writes_are_continued(open_store: OpenStore, faulty_files: FaultyFiles) -> None:
    store = await open_store(faulty_files)
    faulty_files.short_write_bytes = 12_288
    await store.put(b"k", 100_000, seed=1)
    faulty_files.short_write_bytes = 0
    assert await store.get(b"k") == bytes(payload_of(1, 100_000)[:100_000])
    assert faulty_files.calls["pwritev"] > 8


async def test_a_write_that_takes_nothing_more_is_no_space(open_store: OpenStore, faulty_files: FaultyFiles) -> None:
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    faulty_files.short_write_bytes = 100  # less than a block of the device
    with pytest.raises(TierDegraded, match="can't be written"):
        await store.put(b"k", 100_000, seed=1)
    faulty_files.short_write_bytes = 0
    await store.put(b"k", 100_000, seed=1)


async def test_no_space_for_another_segment_leaves_the_tier_the_size_it_has(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    for i in range(7):
        await store.put(b"k%d" % i, MIB, seed=i)
    faulty_files.fail("allocate", errno.ENOSPC)
    usable = store.tier.usable_bytes
    written = 7
    for i in range(7, 60):
        try:
            await store.put(b"k%d" % i, MIB, seed=i)
            written += 1
        except TierDegraded:  # the one that met the full disk
            continue
        except AssertionError:  # "the tier is full"
            break
    assert written < 30
    assert store.tier.state == "ok"
    assert store.tier.usable_bytes < usable
    assert len(await store.get(b"k0")) == MIB
    assert len(list(store.tier._files._folder.glob("*.seg"))) == len([s for s in store.tier._table if not s.absent])


async def test_a_full_disk_under_the_index_makes_the_tier_read_only_until_it_can_be_opened_again(
    open_store: OpenStore, faulty_files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "FIRST_SECONDS", 0.01)
    store = await open_store(faulty_files)
    await store.put(b"before", 5000, seed=1)
    faulty_files.index_fault = "IO error: No space left on device"
    with pytest.raises(TierDegraded, match="index"):
        await store.put(b"lost", 5000, seed=2)
    assert store.tier.state.startswith("degraded: ")
    with pytest.raises(TierDegraded):
        await store.tier.delete([(NAMESPACE, b"before", store.sequence)])
    assert store.tier.reserve(1) is None
    assert len(await store.get(b"before")) == 5000
    faulty_files.heal()
    await until(lambda: store.tier.state == "ok")
    await store.put(b"after", 5000, seed=3)
    await store.close()
    store = await open_store()
    assert (NAMESPACE, b"lost") not in store.blocks
    assert (NAMESPACE, b"after") in store.blocks


async def test_evictions_while_the_index_is_away_are_made_up_for(
    open_store: OpenStore, faulty_files: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "FIRST_SECONDS", 0.01)
    store = await open_store(faulty_files)
    await store.put(b"a", 5000, seed=1)
    await store.put(b"b", 5000, seed=1)
    faulty_files.index_fault = "IO error: disk"
    with pytest.raises(TierDegraded):
        await store.put(b"lost", 5000, seed=2)
    store.evict(b"a")
    faulty_files.heal()
    await until(lambda: store.tier.state == "ok")
    await store.close()
    store = await open_store()
    assert list(store.blocks) == [(NAMESPACE, b"b")]


async def test_a_tier_that_is_read_only_can_be_closed(open_store: OpenStore, faulty_files: FaultyFiles) -> None:
    store = await open_store(faulty_files)
    await store.put(b"a", 5000, seed=1)
    faulty_files.index_fault = "IO error: disk"
    with pytest.raises(TierDegraded):
        await store.put(b"lost", 5000, seed=2)
    faulty_files.fail("open_index", errno.EIO)
    await store.close()
    store = await open_store()
    assert (NAMESPACE, b"a") in store.blocks


async def test_a_disk_that_fails_at_the_start_is_reported_as_the_folders_fault(
    small: NvmeConfig, open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    await (await open_store()).close()
    faulty_files.fail("open_index", errno.EIO)
    with pytest.raises(FolderNotWritable, match=r"nvme\.path"):
        await open_store(faulty_files)
    faulty_files.heal()
    await open_store(faulty_files)


async def test_a_namespace_that_cannot_be_saved_is_not_promised(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    faulty_files.fail("publish", errno.ENOSPC, times=1)
    with pytest.raises(TierDegraded, match="NAMESPACES"):
        await store.tier.save_namespace(1, b"one")
    await store.tier.save_namespace(2, b"two")
    await store.close()
    store = await open_store()
    assert 2 in store.tier.saved_namespaces()


async def test_a_write_that_failed_is_not_found_by_a_rebuild_either(
    open_store: OpenStore, small: NvmeConfig, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"k", 5000, seed=1)
    faulty_files.fail("fdatasync", errno.EIO, times=1)
    with pytest.raises(TierDegraded):
        await store.put(b"k", 6000, seed=2)
    assert [s.state for s in store.tier._table if s.fault] == [State.FENCED]
    await store.close()
    await (await open_store()).close()  # blanks it, now that the disk is well
    shutil.rmtree(small.path / "index")
    store = await open_store()
    assert await store.get(b"k") == bytes(payload_of(1, 5000)[:5000])


async def test_more_segments_than_descriptors_are_served(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_files, "DESCRIPTORS_MAX", 2)
    store = await open_store()
    for i in range(28):
        await store.put(b"k%d" % i, MIB, seed=i)
    await asyncio.gather(*(store.get(b"k%d" % i) for i in range(28)))
    assert len(store.tier._files._open) <= 2
