"""What every tier promises, whatever it is made of. A new tier is done when it passes; `tier_worlds.py` lists them all."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from tier_worlds import WORLDS, TierWorld, payload_of, record_of

from mooncask.errors import BadRequest, BlockTooLarge, CorruptBlock
from mooncask.tiers.block import ALIGNMENT, BlockRecord, Extent
from mooncask.tiers.tier import Tier

MIB = 1 << 20
SIZES = [1, 4095, 4096, 4097, MIB]


@pytest.fixture
def executor() -> Iterator[Executor]:
    with ThreadPoolExecutor(4, thread_name_prefix="tier-test") as pool:
        yield pool


@pytest.fixture(params=WORLDS)
async def world(request: pytest.FixtureRequest, tmp_path: Path, executor: Executor) -> AsyncIterator[TierWorld]:
    async with WORLDS[request.param](tmp_path, executor) as world:
        yield world


@pytest.fixture
def tier(world: TierWorld) -> Tier:
    return world.tier


async def put(tier: Tier, key: bytes, payload: bytes) -> tuple[Extent, BlockRecord]:
    record = record_of(key, payload)
    extent = tier.reserve(len(payload))
    assert extent is not None
    await tier.commit(extent, record, memoryview(payload))
    return extent, record


async def get(tier: Tier, extent: Extent, record: BlockRecord) -> bytes:
    buffer = bytearray(record.size)
    await tier.read(extent, record, memoryview(buffer))
    return bytes(buffer)


def fill_up(tier: Tier, size: int) -> list[Extent]:
    extents: list[Extent] = []
    while (extent := tier.reserve(size)) is not None:
        extents.append(extent)
        assert sum(e.length for e in extents) <= tier.capacity_bytes
    return extents


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_committed_is_read_back(tier: Tier, size: int) -> None:
    payload = payload_of(size, size)
    extent, record = await put(tier, b"key", payload)
    assert await get(tier, extent, record) == payload


async def test_an_object_without_bytes_has_a_place_and_is_read_back(tier: Tier) -> None:
    record, extent = record_of(b"empty", b""), tier.reserve(1)
    assert extent is not None
    await tier.commit(extent, record, memoryview(b""))
    assert await get(tier, extent, record) == b""
    assert list(tier.keys()) == [(1, b"empty")]


@pytest.mark.parametrize("size", SIZES)
async def test_a_buffer_as_long_as_the_extent_will_do(tier: Tier, size: int) -> None:
    payload = payload_of(size, size)
    extent, record = await put(tier, b"key", payload)
    buffer = bytearray(extent.length)
    await tier.read(extent, record, memoryview(buffer))
    assert buffer[:size] == payload


async def test_reading_changes_nothing(tier: Tier) -> None:
    payload = payload_of(1, 9000)
    extent, record = await put(tier, b"key", payload)
    used = tier.used_bytes
    assert [await get(tier, extent, record) for _ in range(3)] == [payload] * 3
    assert tier.used_bytes == used


async def test_a_buffer_that_is_too_small_is_refused_and_left_alone(tier: Tier) -> None:
    extent, record = await put(tier, b"key", payload_of(1, 5000))
    buffer = bytearray(4999)
    with pytest.raises(BadRequest, match="5000 bytes"):
        await tier.read(extent, record, memoryview(buffer))
    assert buffer == bytes(4999)


@pytest.mark.parametrize("size", SIZES)
async def test_an_extent_is_aligned_holds_the_payload_and_has_one_reference(tier: Tier, size: int) -> None:
    extent = tier.reserve(size)
    assert extent is not None
    assert extent.tier is tier.name
    assert (extent.offset % ALIGNMENT, extent.length % ALIGNMENT) == (0, 0)
    assert extent.length >= size
    assert (extent.size, extent.references) == (size, 1)


async def test_reserving_ends_in_none_and_freeing_makes_room_again(world: TierWorld) -> None:
    extents = fill_up(world.tier, 256 << 10)
    assert len(extents) >= 4
    for extent in extents:
        world.tier.free(extent)
    assert world.tier.used_bytes == 0
    for _ in extents:
        assert await world.room(256 << 10)
        assert world.tier.reserve(256 << 10) is not None


async def test_more_than_the_capacity_gets_no_place(tier: Tier) -> None:
    with suppress(BlockTooLarge):
        assert tier.reserve(tier.capacity_bytes + 1) is None
    assert tier.used_bytes == 0


async def test_extents_do_not_overlap(tier: Tier) -> None:
    spans = sorted((e.offset, e.offset + e.length) for e in fill_up(tier, 100_000))
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


async def test_a_place_that_is_used_again_has_another_generation(world: TierWorld) -> None:
    uses = Counter[tuple[int, int]]()
    for _ in range(3):
        extents = fill_up(world.tier, MIB)
        uses.update((e.offset, e.generation) for e in extents)
        for extent in extents:
            world.tier.free(extent)
        assert await world.room(MIB)
    assert len({offset for offset, _ in uses}) < len(uses), "no place was used twice"
    assert max(uses.values()) == 1


async def test_used_bytes_are_the_lengths_of_what_is_reserved_or_committed(tier: Tier) -> None:
    assert tier.used_bytes == 0
    reserved = tier.reserve(5000)
    committed, _ = await put(tier, b"key", payload_of(1, 70_000))
    assert reserved is not None
    assert tier.used_bytes == reserved.length + committed.length
    tier.free(reserved)
    assert tier.used_bytes == committed.length
    tier.free(committed)
    assert tier.used_bytes == 0


async def test_keys_lists_what_is_committed_and_not_freed(tier: Tier) -> None:
    assert list(tier.keys()) == []
    first, _ = await put(tier, b"first", b"1" * 100)
    await put(tier, b"second", b"2" * 100)
    tier.reserve(100)
    assert sorted(tier.keys()) == [(1, b"first"), (1, b"second")]
    tier.free(first)
    assert list(tier.keys()) == [(1, b"second")]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
async def test_a_flipped_bit_is_found(world: TierWorld, size: int, where: str) -> None:
    extent, record = await put(world.tier, b"key", payload_of(size, size))
    other, other_record = await put(world.tier, b"other", payload_of(2, 100))
    world.flip_bit(extent, {"first": 0, "middle": size // 2, "last": size - 1}[where])
    with pytest.raises(CorruptBlock) as caught:
        await get(world.tier, extent, record)
    assert (caught.value.key, caught.value.tier) == ("key", world.tier.name.name.lower())
    assert await get(world.tier, other, other_record) == payload_of(2, 100)


@pytest.mark.parametrize(
    "difference",
    [{"key": b"lock"}, {"sequence": 1 << 40}, {"namespace": 2}, {"checksum": bytes(16)}],
    ids=lambda difference: next(iter(difference)),
)
async def test_another_block_than_the_records_is_not_served(tier: Tier, difference: dict[str, object]) -> None:
    extent, record = await put(tier, b"key", payload_of(1, 5000))
    with pytest.raises(CorruptBlock):
        await get(tier, extent, msgspec.structs.replace(record, **difference))


async def test_a_block_is_not_readable_before_its_commit(tier: Tier) -> None:
    payload = payload_of(1, 5000)
    extent = tier.reserve(len(payload))
    assert extent is not None
    with pytest.raises(CorruptBlock):
        await get(tier, extent, record_of(b"key", payload))


async def test_a_stale_extent_reads_as_corrupt_and_never_as_the_next_block(tier: Tier) -> None:
    payload = payload_of(1, MIB)
    extent, record = await put(tier, b"key", payload)
    stale = replace(extent, generation=extent.generation - 1)
    with pytest.raises(CorruptBlock):
        await get(tier, stale, record)
    assert await get(tier, extent, record) == payload


async def test_concurrent_commits_and_reads_do_not_mix(tier: Tier) -> None:
    async def one(number: int) -> None:
        payload = payload_of(number, 70_000 + 4096 * number + number)
        extent, record = await put(tier, b"key %d" % number, payload)
        for _ in range(3):
            assert await get(tier, extent, record) == payload
        tier.free(extent)

    await asyncio.gather(*(one(number) for number in range(16)))
    assert tier.used_bytes == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_cancelled_commit_leaves_a_whole_block_or_none(tier: Tier, turns: int) -> None:
    payload = payload_of(1, MIB)
    record, extent = record_of(b"key", payload), tier.reserve(MIB)
    assert extent is not None
    commit = asyncio.create_task(tier.commit(extent, record, memoryview(payload)))
    for _ in range(turns):
        await asyncio.sleep(0)
    commit.cancel()
    await asyncio.wait((commit,))
    try:
        found = await get(tier, extent, record)
    except CorruptBlock:
        assert commit.cancelled()
        assert list(tier.keys()) == []
    else:
        assert found == payload
    tier.free(extent)
    assert tier.used_bytes == 0


async def test_a_cancelled_read_leaves_the_block_readable(tier: Tier) -> None:
    payload = payload_of(1, MIB)
    extent, record = await put(tier, b"key", payload)
    read = asyncio.create_task(tier.read(extent, record, memoryview(bytearray(MIB))))
    await asyncio.sleep(0)
    read.cancel()
    await asyncio.wait((read,))
    assert await get(tier, extent, record) == payload


async def test_the_place_of_a_cancelled_commit_takes_another_block(world: TierWorld) -> None:
    tier = world.tier
    extents = fill_up(tier, MIB)
    payload = payload_of(1, MIB)
    commit = asyncio.create_task(tier.commit(extents[0], record_of(b"key", payload), memoryview(payload)))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.wait((commit,))
    for extent in extents:
        tier.free(extent)
    assert await world.room(MIB)
    second = payload_of(2, MIB)
    extent, record = await put(tier, b"second", second)
    assert await get(tier, extent, record) == second


@pytest.mark.parametrize("kind", [bytes, bytearray], ids=["read-only", "writable"])
async def test_a_payload_may_lie_in_read_only_or_writable_memory(tier: Tier, kind: type[bytes | bytearray]) -> None:
    payload = payload_of(1, 5000)
    record, extent = record_of(b"key", payload), tier.reserve(5000)
    assert extent is not None
    await tier.commit(extent, record, memoryview(kind(payload)))
    assert await get(tier, extent, record) == payload
