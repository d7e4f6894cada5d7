"""Every tier as the contract suite and the model test see it: the tier, and a way to its bytes behind its back.

To add a tier, write one context manager like those below and list it in WORLDS.
"""

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nvme_doubles import config as nvme_config
from nvme_doubles import flip_behind
from tier_doubles import CountingTier, FaultyTier, WrappedTier

from mooncask.tiers.arena import Arena
from mooncask.tiers.block import BlockRecord, Extent
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.dram import DramTier
from mooncask.tiers.hbm import HbmTier
from mooncask.tiers.nvme import NvmeTier
from mooncask.tiers.nvme.record import HEADER_BYTES
from mooncask.tiers.tier import Tier

CAPACITY_BYTES = 8 << 20
"""What a world's tier is given; a disk tier may need more for the same use."""

Places = dict[tuple[int, bytes], Extent]


async def _at_once(size: int) -> bool:
    return True


@dataclass(slots=True)
class TierWorld:
    """A tier under test. `flip_bit(extent, position)` changes one bit of a payload without the tier noticing."""

    tier: Tier
    flip_bit: Callable[[Extent, int], None]
    room: Callable[[int], Coroutine[Any, Any, bool]] = _at_once
    """Waits until what was freed can be reserved again."""
    reopen: Callable[[], Coroutine[Any, Any, None]] | None = None
    """Closes the tier, opens it again on the same bytes and enters what it found in `places`. None: it forgets on close."""
    places: Places = field(default_factory=dict)
    """Where committed blocks lie, for a test that needs to know: a tier that moves blocks looks and writes here."""


World = Callable[[Path, Executor], AbstractAsyncContextManager[TierWorld]]

_sequences = itertools.count(1)


def payload_of(seed: int, size: int) -> bytes:
    """`size` bytes that look random and are the same each time."""
    return hashlib.shake_128(seed.to_bytes(8, "little")).digest(size)


def record_of(key: bytes, payload: bytes, namespace: int = 1) -> BlockRecord:
    """What a store would know of `payload`: a fresh sequence each time."""
    return BlockRecord(namespace, key, len(payload), payload_checksum(memoryview(payload)), next(_sequences))


@asynccontextmanager
async def dram_world(folder: Path, executor: Executor) -> AsyncIterator[TierWorld]:
    tier = DramTier(Arena(CAPACITY_BYTES), executor)
    tier.start()
    await tier.wait_populated()

    def flip_bit(extent: Extent, position: int) -> None:
        tier.arena.array[extent.offset + position] ^= 1

    try:
        yield TierWorld(tier, flip_bit)
    finally:
        await tier.close()


@asynccontextmanager
async def _hbm_world(device: str, executor: Executor) -> AsyncIterator[TierWorld]:
    tier = HbmTier.open(device, CAPACITY_BYTES, executor)

    def flip_bit(extent: Extent, position: int) -> None:
        tier.memory.tensor[extent.offset + position] ^= 1

    try:
        yield TierWorld(tier, flip_bit)
    finally:
        await tier.close()


def hbm_cpu_world(folder: Path, executor: Executor) -> AbstractAsyncContextManager[TierWorld]:
    pytest.importorskip("torch", reason="the HBM tier needs torch, even for its tests on the CPU")
    return _hbm_world("cpu", executor)


def hbm_cuda_world(folder: Path, executor: Executor) -> AbstractAsyncContextManager[TierWorld]:
    torch = pytest.importorskip("torch", reason="the HBM tier needs torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU that torch can use: HBM is tested on the CPU only")
    return _hbm_world("cuda:0", executor)


@asynccontextmanager
async def nvme_world(folder: Path, executor: Executor) -> AsyncIterator[TierWorld]:
    """Six segments that hold one block of 1 MiB each, so that the reclaimer has something to do after a few blocks."""
    settings = nvme_config(folder / "nvme", 7 << 20, (1 << 20) + (64 << 10))
    places: Places = {}

    def is_live(record: BlockRecord) -> Extent | None:
        return places.get((record.namespace, record.key))

    def moved(record: BlockRecord, old: Extent, new: Extent) -> bool:
        if (record.namespace, record.key) not in places:
            return False
        places[record.namespace, record.key] = new
        return True

    async def reopen() -> None:
        await world.tier.close()
        places.clear()
        world.tier = tier = await NvmeTier.open(settings, is_live, moved)
        world.room = tier.room
        places.update({(block.record.namespace, block.record.key): block.extent for block in tier.recovered})

    def flip_bit(extent: Extent, position: int) -> None:
        flip_behind(settings, extent, HEADER_BYTES + position)

    first = await NvmeTier.open(settings, is_live, moved)
    world = TierWorld(first, flip_bit, first.room, reopen, places)
    try:
        yield world
    finally:
        await world.tier.close()


def wrapped(wrapper: Callable[[Tier], WrappedTier]) -> World:
    """The DRAM world with its tier in a wrapper."""

    @asynccontextmanager
    async def world(folder: Path, executor: Executor) -> AsyncIterator[TierWorld]:
        async with dram_world(folder, executor) as inner:
            yield TierWorld(wrapper(inner.tier), inner.flip_bit)

    return world


WORLDS: dict[str, World] = {
    "dram": dram_world,
    "hbm-cpu": hbm_cpu_world,
    "hbm-cuda": hbm_cuda_world,
    "nvme": nvme_world,
    "counting-dram": wrapped(CountingTier),
    "faulty-dram": wrapped(FaultyTier),
}
