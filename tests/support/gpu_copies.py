"""The bandwidth part of the GPU check: copies between the host and the device as the HBM tier makes them, beside plain pinned ones.

The store's arena is shared memory and not pinned, so its copies go through the driver's own staging; how much that costs is
what this measures. The plain copy is torch's, from one pinned tensor.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from mmap import mmap
from statistics import median

import torch

from mooncask.tiers.device_memory import DeviceMemory


@dataclass(frozen=True, slots=True)
class CopySizes:
    block_bytes: int
    blocks: int
    rounds: int


@dataclass(frozen=True, slots=True)
class CopyFindings:
    """GB/s, 10^9 bytes, by the median round. On the CPU they say nothing."""

    block_bytes: int
    pinned_in: float
    pinned_out: float
    tier_in: float
    tier_out: float

    @property
    def in_share(self) -> float:
        return self.tier_in / self.pinned_in

    @property
    def out_share(self) -> float:
        return self.tier_out / self.pinned_out


def check_copies(device: str, sizes: CopySizes) -> CopyFindings:
    """Raises AssertionError when a byte is not what was written."""
    total = sizes.block_bytes * sizes.blocks
    shared = mmap(-1, total)  # as the arena: shared and anonymous
    back = mmap(-1, total)
    memory = DeviceMemory(device, total)
    try:
        shared[:] = bytes(range(256)) * (total // 256)
        source, target = memoryview(shared), memoryview(back)
        offsets = range(0, total, sizes.block_bytes)

        def write() -> None:
            for at in offsets:
                memory.write(at, source[at : at + sizes.block_bytes], sizes.block_bytes)

        def read() -> None:
            for at in offsets:
                memory.read(at, target[at : at + sizes.block_bytes])

        tier_in, tier_out = rate(write, total, sizes.rounds), rate(read, total, sizes.rounds)
        assert target == source, "what came back is not what was written"
        pinned_in, pinned_out = pinned_rates(device, total, sizes.rounds)
        source.release()
        target.release()
    finally:
        memory.close()
    return CopyFindings(sizes.block_bytes, pinned_in, pinned_out, tier_in, tier_out)


def pinned_rates(device: str, total: int, rounds: int) -> tuple[float, float]:
    """To the device and from it, GB/s."""
    host = torch.ones(total, dtype=torch.uint8, pin_memory=device != "cpu")
    there = torch.empty(total, dtype=torch.uint8, device=device)

    def copied(to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)
        if device != "cpu":
            torch.cuda.synchronize(device)

    return (
        rate(lambda: copied(there, host), total, rounds),
        rate(lambda: copied(host, there), total, rounds),
    )


def rate(copy: Callable[[], None], size: int, rounds: int) -> float:
    """GB/s by the median of `rounds`."""
    copy()  # pages and streams are touched once before anything counts
    seconds = []
    for _ in range(rounds):
        started = time.perf_counter()
        copy()
        seconds.append(time.perf_counter() - started)
    return size / median(seconds) / 1e9
