"""The index is lost: everything comes back from the segments but what never counted."""

import asyncio
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from nvme_doubles import (
    MIB,
    NAMESPACE,
    FaultyFiles,
    OpenStore,
    SmallStore,
    config,
    flip_behind,
    payload_of,
    position,
    record_of,
    until,
    write_behind,
)

from mooncask.tiers.nvme import NvmeConfig
from mooncask.tiers.nvme.record import HEADER_BYTES, Place, pack_block


def remove(index: Path) -> None:
    shutil.rmtree(index)


def forget_current(index: Path) -> None:
    (index / "CURRENT").unlink()


def scramble_manifest(index: Path) -> None:
    [manifest] = index.glob("MANIFEST-*")
    manifest.write_bytes(b"\x55" * manifest.stat().st_size)


def lose_tables(index: Path) -> None:
    for table in index.glob("*.sst"):
        table.unlink()


@pytest.mark.parametrize("damage", [remove, forget_current, scramble_manifest, lose_tables])
async def test_an_index_that_is_lost_or_damaged_is_rebuilt(
    open_store: OpenStore, small: NvmeConfig, damage: Callable[[Path], None]
) -> None:
    store = await open_store()
    records = {b"k%d" % i: await store.put(b"k%d" % i, 10_000 * i, seed=i) for i in range(1, 9)}
    await store.delete(b"k3")
    await store.close()
    damage(small.path / "index")
    store = await open_store()
    assert store.tier.rebuilt is not None
    del records[b"k3"]
    assert {key: kept.record for (_, key), kept in store.blocks.items()} == records
    for i in (1, 2, 4, 8):
        assert await store.get(b"k%d" % i) == bytes(payload_of(i, 10_000 * i)[: 10_000 * i])
    assert store.tier.highest_sequence >= max(record.sequence for record in records.values())
    await store.close()
    assert (await open_store()).tier.rebuilt is None


async def test_the_newest_whole_copy_of_a_key_wins(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    await store.put(b"k", 5000, seed=1)
    await store.put(b"k", 6000, seed=2)
    await store.put(b"torn", 5000, seed=3)
    await store.put(b"torn", 6000, seed=4)
    flip_behind(small, store.blocks[NAMESPACE, b"torn"].extent, HEADER_BYTES + 5999)
    await store.close()
    remove(small.path / "index")
    store = await open_store()
    assert store.tier.rebuilt is not None
    assert store.tier.rebuilt.damaged == 1
    assert await store.get(b"k") == bytes(payload_of(2, 6000)[:6000])
    assert await store.get(b"torn") == bytes(payload_of(3, 5000)[:5000])


async def test_holes_are_skipped_and_what_lies_behind_them_is_found(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    await store.put(b"a", 50_000, seed=1)
    gap = await store.reserve(70_000)
    await store.put(b"b", 50_000, seed=2)
    store.tier.free(gap)
    await store.put(b"torn", 90_000, seed=3)
    await store.put(b"c", 50_000, seed=4)
    write_behind(small, store.blocks[NAMESPACE, b"torn"].extent, 0, bytes(HEADER_BYTES))
    await store.close()
    remove(small.path / "index")
    store = await open_store()
    assert sorted(key for _, key in store.blocks) == [b"a", b"b", b"c"]


async def test_a_payload_that_looks_like_a_record_is_not_taken_for_one(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    await store.put(b"carrier", 200_000, seed=2)
    carrier = store.blocks[NAMESPACE, b"carrier"].extent
    _, offset = position(small, carrier)
    ghost = record_of(b"ghost", payload_of(1, 4096), 4096, 5)
    for place in (Place(0, offset, carrier.generation), Place(0, offset + HEADER_BYTES, carrier.generation + 1)):
        page = memoryview(bytearray(HEADER_BYTES))
        pack_block(page, store.tier._files.store, place, ghost)
        write_behind(
            small, carrier, 0, bytes(HEADER_BYTES)
        )  # its own header is lost: the walk goes through its payload
        write_behind(small, carrier, HEADER_BYTES, bytes(page) + bytes(payload_of(1, 4096)))
        await store.close()
        remove(small.path / "index")
        store = await open_store()
        assert store.blocks == {}
        assert store.tier.rebuilt is not None
        assert store.tier.rebuilt.blocks == store.tier.rebuilt.damaged == 0


async def test_records_of_an_earlier_generation_do_not_count(open_store: OpenStore, small: NvmeConfig) -> None:
    store: SmallStore = await open_store()
    for i in range(7):
        await store.put(b"old%d" % i, MIB, seed=i)
    await store.put(b"new", MIB, seed=7)
    for i in range(7):
        store.evict(b"old%d" % i)
    await until(lambda: store.tier.reclaimed_segments == 1)
    await store.close()
    assert b"old3" in (small.path / "segments" / "00000000.seg").read_bytes()
    remove(small.path / "index")
    store = await open_store()
    assert {key for _, key in store.blocks} == {b"new"}


async def test_a_write_that_was_cancelled_before_it_was_durable_is_not_found(
    open_store: OpenStore, small: NvmeConfig, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"k", 5000, seed=1)
    await until(lambda: sum(segment.ready for segment in store.tier._table) == 2)  # the spare syncs no more
    started, go_on = threading.Event(), threading.Event()

    def hold(*_: object) -> None:
        faulty_files.rules.pop("fdatasync", None)
        started.set()
        assert go_on.wait(20)

    faulty_files.rules["fdatasync"] = hold
    put = asyncio.create_task(store.put(b"k", 6000, seed=2))
    await asyncio.to_thread(started.wait, 20)  # its bytes are on the disk, whole
    put.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await put
    await store.close()
    remove(small.path / "index")
    store = await open_store()
    assert await store.get(b"k") == bytes(payload_of(1, 5000)[:5000])


async def test_dropped_namespaces_stay_dropped(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    for number in (7, 8):
        await store.tier.save_namespace(number, b"%d" % number)
        await store.put(b"k", 5000, seed=number, namespace=number)
    await store.tier.drop_namespace(7)
    await store.close()
    remove(small.path / "index")
    store = await open_store()
    assert store.tier.saved_namespaces() == {8: b"8"}
    assert list(store.blocks) == [(8, b"k")]
    assert store.tier.highest_namespace == 8


async def test_a_damaged_namespaces_file_is_made_anew_from_the_index(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    await store.tier.save_namespace(8, b"eight")
    await store.close()
    path = small.path / "NAMESPACES"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    store = await open_store()
    assert store.tier.saved_namespaces() == {8: b"eight"}
    await store.close()
    remove(small.path / "index")
    assert (await open_store()).tier.saved_namespaces() == {8: b"eight"}


async def test_an_index_of_another_store_is_not_believed(
    open_store: OpenStore, small: NvmeConfig, tmp_path: Path
) -> None:
    other = await SmallStore().open(config(tmp_path / "other"))
    await other.put(b"foreign", 5000, seed=1)
    await other.close()
    store = await open_store()
    await store.put(b"own", 5000, seed=2)
    await store.close()
    remove(small.path / "index")
    shutil.copytree(tmp_path / "other" / "index", small.path / "index")
    store = await open_store()
    assert list(store.blocks) == [(NAMESPACE, b"own")]


async def test_entries_that_point_to_a_segment_that_is_gone_are_dropped(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    await store.put(b"k", 5000, seed=1)
    path, _ = position(small, store.blocks[NAMESPACE, b"k"].extent)
    await store.close()
    path.unlink()
    store = await open_store()
    assert store.blocks == {}
    await store.put(b"k", 5000, seed=2)
