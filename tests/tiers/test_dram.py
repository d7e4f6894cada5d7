"""What DRAM promises beyond the contract of all tiers: growth, in-place commits, clean pads."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tier_doubles import HeldExecutor
from tier_worlds import payload_of, record_of

from mooncask.errors import CorruptBlock
from mooncask.tiers.arena import POPULATE_STEP_BYTES, Arena, StagingArea
from mooncask.tiers.block import Extent
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.dram import DramTier

MIB = 1 << 20


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
async def tier(pool: ThreadPoolExecutor) -> AsyncIterator[DramTier]:
    tier = DramTier(Arena(4 * MIB), pool)
    tier.start()
    await tier.wait_populated()
    yield tier
    await tier.close()


def populated_arena() -> Arena:
    arena, ended = Arena(4 * MIB), threading.Event()
    arena.start_populating(lambda _: ended.set())
    assert ended.wait(60)
    return arena


def reserve_dirty(tier: DramTier, size: int) -> Extent:
    """An extent that is full of what lay there before."""
    extent = tier.reserve(size)
    assert extent is not None
    tier.arena.array[extent.offset : extent.offset + extent.length] = 0xEE
    return extent


async def test_nothing_can_be_reserved_before_it_is_populated(pool: ThreadPoolExecutor) -> None:
    tier = DramTier(Arena(4 * MIB), pool)
    assert (tier.reserve(1), tier.populated_bytes, tier.state) == (None, 0, "populating")
    tier.start()
    await tier.wait_populated()
    assert (tier.populated_bytes, tier.state) == (4 * MIB, "ok")
    assert tier.reserve(4 * MIB) is not None
    await tier.close()


async def test_room_grows_with_each_populated_step_and_is_announced_on_the_loop(pool: ThreadPoolExecutor) -> None:
    tier = DramTier(Arena(POPULATE_STEP_BYTES + MIB), pool)
    rooms: list[int] = []
    tier.start(lambda: rooms.append(tier.largest_free_bytes) if asyncio.get_running_loop() else None)
    await tier.wait_populated()
    assert rooms[-1] == POPULATE_STEP_BYTES + MIB
    assert rooms == sorted(rooms)
    await tier.close()


async def test_closing_while_it_populates_wakes_who_waits_for_that(pool: ThreadPoolExecutor) -> None:
    tier = DramTier(Arena(8 << 30), pool)
    tier.start()
    waiter = asyncio.create_task(tier.wait_populated())
    await tier.close()
    await waiter
    await tier.close()


async def test_a_commit_of_the_extents_own_memory_copies_nothing() -> None:
    arena = populated_arena()
    copies = HeldExecutor()
    tier = DramTier(arena, copies)
    extent = tier.reserve(MIB)
    assert extent is not None
    payload = payload_of(1, MIB)
    tier.view(extent)[:MIB] = payload
    await tier.commit(extent, record_of(b"key", payload), tier.view(extent)[:MIB])
    assert len(copies) == 0
    assert list(tier.keys()) == [(1, b"key")]
    arena.close()


async def test_a_commit_that_is_cancelled_before_its_copy_begins_never_copies() -> None:
    arena = populated_arena()
    copies = HeldExecutor()
    tier = DramTier(arena, copies)
    extent = tier.reserve(MIB)
    assert extent is not None
    payload = payload_of(1, MIB)
    commit = asyncio.create_task(tier.commit(extent, record_of(b"key", payload), memoryview(payload)))
    await asyncio.sleep(0)
    assert len(copies) == 1
    commit.cancel()
    await asyncio.wait((commit,))
    copies.run_all()
    assert commit.cancelled()
    assert list(tier.keys()) == []
    assert not tier.arena.array.any()
    arena.close()


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, MIB - 1])
async def test_the_pad_behind_a_block_holds_nothing_of_what_lay_there(tier: DramTier, size: int) -> None:
    payload = payload_of(1, size)
    committed, adopted = reserve_dirty(tier, size), reserve_dirty(tier, size)
    await tier.commit(committed, record_of(b"committed", payload), memoryview(payload))
    tier.adopt(adopted, record_of(b"adopted", payload))
    for extent in (committed, adopted):
        assert bytes(tier.view(extent)[size:]) == bytes(extent.length - size)


async def test_an_adopted_block_is_what_was_written_in_place(tier: DramTier) -> None:
    payload = payload_of(1, 5000)
    record, extent = record_of(b"key", payload), tier.reserve(5000)
    assert extent is not None
    tier.view(extent)[:5000] = payload
    assert await tier.checksum(extent, 5000) == record.checksum
    tier.adopt(extent, record)
    buffer = bytearray(5000)
    await tier.read(extent, record, memoryview(buffer))
    assert buffer == payload


async def test_what_is_checked_of_a_writers_memory_is_the_copy_that_he_can_not_change(tier: DramTier) -> None:
    staging = StagingArea(MIB)
    payload = payload_of(1, 5000)
    staging.view(0, 5000)[:] = payload
    extent = tier.reserve(5000)
    assert extent is not None
    await tier.fill(extent, staging.view(0, 5000))
    staging.view(0, 5000)[:] = bytes(5000)
    assert await tier.checksum(extent, 5000) == payload_checksum(memoryview(payload))
    assert list(tier.keys()) == []
    staging.close()


@pytest.mark.parametrize("size", [5000, MIB])
async def test_verify_checks_in_place(tier: DramTier, size: int) -> None:
    payload = payload_of(1, size)
    record, extent = record_of(b"key", payload), tier.reserve(size)
    assert extent is not None
    await tier.commit(extent, record, memoryview(payload))
    await tier.verify(extent, record)
    tier.view(extent)[size - 1] ^= 4
    with pytest.raises(CorruptBlock, match=r"block key: checksum .* in the dram tier"):
        await tier.verify(extent, record)


async def test_a_reader_of_the_arenas_descriptor_sees_the_block_at_its_offset(tier: DramTier) -> None:
    payload = payload_of(1, 5000)
    tier.reserve(100)
    extent = tier.reserve(5000)
    assert extent is not None
    await tier.commit(extent, record_of(b"key", payload), memoryview(payload))
    descriptor = tier.arena.read_only_descriptor()
    try:
        assert os.pread(descriptor, 5000, extent.offset) == payload
    finally:
        os.close(descriptor)


async def test_views_stay_readable_when_the_tier_is_closed(pool: ThreadPoolExecutor) -> None:
    tier = DramTier(Arena(MIB), pool)
    tier.start()
    await tier.wait_populated()
    extent = tier.reserve(5)
    assert extent is not None
    view = tier.view(extent)
    view[:5] = b"bytes"
    await tier.close()
    assert bytes(view[:5]) == b"bytes"


async def test_wrong_uses_are_errors_in_the_program(tier: DramTier) -> None:
    payload = payload_of(1, 5000)
    extent = tier.reserve(5000)
    assert extent is not None
    with pytest.raises(AssertionError, match="bytes offered"):
        await tier.commit(extent, record_of(b"key", payload), memoryview(payload)[:4999])
    await tier.commit(extent, record_of(b"key", payload), memoryview(payload))
    with pytest.raises(AssertionError, match="committed already"):
        tier.adopt(extent, record_of(b"key", payload))
    tier.free(extent)
    with pytest.raises(AssertionError, match="freed"):
        tier.free(extent)
    with pytest.raises(AssertionError, match="freed"):
        await tier.commit(extent, record_of(b"key", payload), memoryview(payload))


async def test_freeing_what_is_being_filled_is_an_error_in_the_program() -> None:
    arena = populated_arena()
    copies = HeldExecutor()
    tier = DramTier(arena, copies)
    extent = tier.reserve(MIB)
    assert extent is not None
    fill = asyncio.create_task(tier.fill(extent, memoryview(payload_of(1, MIB))))
    await asyncio.sleep(0)
    tier.free(extent)
    copies.run_all()
    with pytest.raises(AssertionError, match="while it was being filled"):
        await fill
    arena.close()


async def test_two_tiers_number_their_extents_differently(pool: ThreadPoolExecutor) -> None:
    generations = set()
    for _ in range(3):
        tier = DramTier(Arena(MIB), pool)
        tier.start()
        await tier.wait_populated()
        extent = tier.reserve(1)
        assert extent is not None
        generations.add(extent.generation)
        await tier.close()
    assert len(generations) == 3
    assert all(generation < 1 << 63 for generation in generations)
