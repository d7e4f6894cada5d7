"""The doubles that other tests rely on do what they say."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tier_doubles import CountingTier, FaultKind, FaultyTier
from tier_worlds import dram_world, payload_of, record_of

from mooncask.errors import CorruptBlock, TierDegraded
from mooncask.tiers.tier import Tier

PAYLOAD = payload_of(1, 5000)


@pytest.fixture
async def inner(tmp_path: Path) -> AsyncIterator[Tier]:
    with ThreadPoolExecutor(1) as pool:
        async with dram_world(tmp_path, pool) as world:
            yield world.tier


async def test_a_counting_tier_counts_calls_and_bytes(inner: Tier) -> None:
    tier = CountingTier(inner)
    record, extent = record_of(b"key", PAYLOAD), tier.reserve(5000)
    assert extent is not None
    await tier.commit(extent, record, memoryview(PAYLOAD))
    for _ in range(2):
        await tier.read(extent, record, memoryview(bytearray(5000)))
    tier.free(extent)
    assert tier.calls == {"reserve": 1, "commit": 1, "read": 2, "free": 1}
    assert tier.moved == {"commit": 5000, "read": 10_000}


async def test_a_faulty_tier_fails_in_the_planned_call_and_in_no_other(inner: Tier) -> None:
    tier = FaultyTier(inner)
    tier.fail("reserve", FaultKind.FULL, call=2)
    extents = [tier.reserve(5000) for _ in range(3)]
    assert extents[1] is None
    first, third = extents[0], extents[2]
    assert first is not None
    assert third is not None
    tier.fail("commit", FaultKind.WRITE_REFUSED)
    record = record_of(b"key", PAYLOAD)
    with pytest.raises(TierDegraded):
        await tier.commit(first, record, memoryview(PAYLOAD))
    await tier.commit(third, record, memoryview(PAYLOAD))
    tier.fail("read", FaultKind.READ_FLIPPED)
    buffer = bytearray(5000)
    with pytest.raises(CorruptBlock):
        await tier.read(third, record, memoryview(buffer))
    assert buffer != PAYLOAD
    await tier.read(third, record, memoryview(buffer))
    assert buffer == PAYLOAD


async def test_a_stalled_call_waits_for_resume(inner: Tier) -> None:
    tier = FaultyTier(inner)
    tier.fail("commit", FaultKind.STALLED)
    extent = tier.reserve(5000)
    assert extent is not None
    commit = asyncio.create_task(tier.commit(extent, record_of(b"key", PAYLOAD), memoryview(PAYLOAD)))
    await tier.stalled.wait()
    assert list(tier.keys()) == []
    tier.resume.set()
    await commit
    assert list(tier.keys()) == [(1, b"key")]


async def test_a_cancelled_call_does_nothing(inner: Tier) -> None:
    tier = FaultyTier(inner)
    tier.fail("commit", FaultKind.CANCELLED)
    extent = tier.reserve(5000)
    assert extent is not None
    with pytest.raises(asyncio.CancelledError):
        await tier.commit(extent, record_of(b"key", PAYLOAD), memoryview(PAYLOAD))
    assert list(tier.keys()) == []
