"""Bytes changed beneath the tier: noticed on every read and by the check, never handed out."""

import os

import pytest
from nvme_doubles import (
    MIB,
    NAMESPACE,
    FaultyFiles,
    OpenStore,
    SmallStore,
    flip_behind,
    position,
    read_behind,
    write_behind,
)

from mooncask.errors import CorruptBlock
from mooncask.tiers.nvme import NvmeConfig
from mooncask.tiers.nvme.record import HEADER_BYTES

SIZE = 50_000


async def two_blocks(open_store: OpenStore) -> SmallStore:
    store: SmallStore = await open_store()
    await store.put(b"a", SIZE, seed=1)
    await store.put(b"b", SIZE, seed=2)
    return store


async def found_corrupt(store: SmallStore, key: bytes) -> str:
    """The reason, which a read and the check must agree on."""
    with pytest.raises(CorruptBlock) as caught:
        await store.get(key)
    problems = await store.tier.check()
    assert [(problem.key, problem.what) for problem in problems] == [(key, caught.value.why)]
    return caught.value.why


@pytest.mark.parametrize("at", [0, 20, 40, 60, 100, 127, 130, 4000])
async def test_a_flipped_bit_in_a_header_is_noticed(open_store: OpenStore, small: NvmeConfig, at: int) -> None:
    store = await two_blocks(open_store)
    flip_behind(small, store.blocks[NAMESPACE, b"a"].extent, at)
    assert await found_corrupt(store, b"a") in ("wrong header checksum", "no record header")
    assert len(await store.get(b"b")) == SIZE


@pytest.mark.parametrize("at", [0, SIZE // 2, SIZE - 1])
async def test_a_flipped_bit_in_a_payload_is_noticed(open_store: OpenStore, small: NvmeConfig, at: int) -> None:
    store = await two_blocks(open_store)
    flip_behind(small, store.blocks[NAMESPACE, b"a"].extent, HEADER_BYTES + at)
    assert await found_corrupt(store, b"a") == "wrong payload checksum"
    assert len(await store.get(b"b")) == SIZE


async def test_two_blocks_that_the_disk_swapped_are_both_noticed(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await two_blocks(open_store)
    first, second = (store.blocks[NAMESPACE, key].extent for key in (b"a", b"b"))
    bytes_a, bytes_b = (read_behind(small, extent, 0, extent.length) for extent in (first, second))
    write_behind(small, first, 0, bytes_b)
    write_behind(small, second, 0, bytes_a)
    for key in (b"a", b"b"):
        with pytest.raises(CorruptBlock, match="misdirected"):
            await store.get(key)
    assert len(await store.tier.check()) == 2


async def test_a_write_that_the_disk_lost_is_noticed(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await two_blocks(open_store)
    before = read_behind(small, store.blocks[NAMESPACE, b"a"].extent, 0, SIZE)
    extent = store.blocks[NAMESPACE, b"a"].extent
    write_behind(small, extent, 0, bytes(SIZE))
    assert await found_corrupt(store, b"a") == "no record header"
    write_behind(small, extent, 0, before)
    assert len(await store.get(b"a")) == SIZE


async def test_a_truncated_segment_file_is_unreadable_not_garbage(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await two_blocks(open_store)
    path, offset = position(small, store.blocks[NAMESPACE, b"b"].extent)
    os.truncate(path, offset + 8192)
    assert (await found_corrupt(store, b"b")).startswith("unreadable")
    assert len(await store.get(b"a")) == SIZE


async def test_an_older_copy_of_the_same_key_at_the_right_place_is_noticed(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await two_blocks(open_store)
    record = store.blocks[NAMESPACE, b"a"].record
    await store.put(b"a", SIZE, seed=1)  # equal bytes, later sequence
    extent = store.blocks[NAMESPACE, b"a"].extent
    with pytest.raises(CorruptBlock, match="sequence"):
        await store.tier.read(extent, record, memoryview(bytearray(SIZE)))


async def test_an_unreadable_sector_is_a_corrupt_block_that_says_so(
    open_store: OpenStore, faulty_files: FaultyFiles
) -> None:
    store = await open_store(faulty_files)
    await store.put(b"a", SIZE, seed=1)
    faulty_files.fail("preadv", 5)
    with pytest.raises(CorruptBlock, match="unreadable: EIO"):
        await store.get(b"a")
    faulty_files.heal()
    assert len(await store.get(b"a")) == SIZE


async def test_a_quarantined_block_is_free_to_be_written_again_and_stays_away(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await two_blocks(open_store)
    flip_behind(small, store.blocks[NAMESPACE, b"a"].extent, HEADER_BYTES)
    await found_corrupt(store, b"a")
    await store.delete(b"a")
    assert await store.tier.check() == []
    await store.put(b"a", SIZE, seed=3)
    await store.close()
    store = await open_store()
    assert len(await store.get(b"a")) == SIZE


async def test_both_copies_of_a_segments_header_lost_cost_nothing_as_long_as_the_index_is_there(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await two_blocks(open_store)
    path, _ = position(small, store.blocks[NAMESPACE, b"a"].extent)
    with path.open("r+b") as file:
        file.write(bytes(2 * HEADER_BYTES))
    assert [problem.what for problem in await store.tier.check()] == ["neither copy of its header is whole"]
    await store.close()
    store = await open_store()
    assert len(await store.get(b"a")) == SIZE
    assert await store.tier.check() == []  # written anew from the index


async def test_the_check_tells_how_far_it_is(open_store: OpenStore) -> None:
    store = await open_store()
    for i in range(300):
        await store.put(b"k%d" % i, 100, seed=i)
    seen: list[tuple[int, int]] = []
    assert await store.tier.check(lambda blocks, size_bytes: seen.append((blocks, size_bytes))) == []
    assert seen[-1] == (300, 300 * 8192)
    assert len(seen) > 1


async def test_damage_is_carried_along_by_the_reclaimer_and_still_noticed(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    await store.put(b"bad", SIZE, seed=1)
    await store.put(b"good", SIZE, seed=2)
    flip_behind(small, store.blocks[NAMESPACE, b"bad"].extent, HEADER_BYTES + 7)
    for i in range(60):
        await store.put(b"fill%d" % (i % 27), MIB, seed=i)
    assert store.moves >= 2
    with pytest.raises(CorruptBlock, match="wrong payload checksum"):
        await store.get(b"bad")
    assert len(await store.get(b"good")) == SIZE
