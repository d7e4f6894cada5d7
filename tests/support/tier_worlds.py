"""Every tier as the contract suite and the model test see it: the tier, and a way to its bytes behind its back.

To add a tier, write one context manager like those below and list it in WORLDS.
"""

import hashlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tier_doubles import CountingTier, FaultyTier, WrappedTier

from mooncask.tiers.arena import Arena
from mooncask.tiers.block import BlockRecord, Extent
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.dram import DramTier
from mooncask.tiers.hbm import HbmTier
from mooncask.tiers.tier import Tier

CAPACITY_BYTES = 8 << 20
"""What a world's tier is given; a disk tier may need more for the same use."""

Places = dict[tuple[int, bytes], Extent]


@dataclass(slots=True)
class TierWorld:
    """A tier under test. `flip_bit(extent, position)` changes one bit of a payload without the tier noticing."""

    tier: Tier
    flip_bit: Callable[[Extent, int], None]
    reopen: Callable[[], Coroutine[Any, Any, Places]] | None = None
    """Closes the tier and opens it again on the same bytes, as `tier`; gives what it found. None: it forgets on close."""


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
    "counting-dram": wrapped(CountingTier),
    "faulty-dram": wrapped(FaultyTier),
}
