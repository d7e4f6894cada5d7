"""How much one run of the bench does: sizes, rounds and memory. Pure."""

from dataclasses import dataclass
from pathlib import Path

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """Rounds for one block size; a round is a batch. `set_batches` batches are walked in turn, so caches don't help."""

    block_bytes: int
    set_batches: int
    view_rounds: int
    copy_rounds: int
    disk_rounds: int
    http_rounds: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. The working set of every block size is at most half of the arena; `many_blocks` are 4 KiB each."""

    blocks: tuple[BlockPlan, ...]
    batch: int
    dram_bytes: int
    nvme_bytes: int
    segment_bytes: int
    many_blocks: int
    stream_bytes: int
    match_rounds: int
    io_threads: int = 4
    judged: bool = True
    """Whether figures of this plan are held against the targets."""

    def __post_init__(self) -> None:
        for block in self.blocks:
            assert block.block_bytes * self.batch * block.set_batches <= self.dram_bytes // 2, block


FULL = Plan(
    blocks=(
        BlockPlan(256 * KIB, set_batches=64, view_rounds=2000, copy_rounds=300, disk_rounds=40, http_rounds=10),
        BlockPlan(2 * MIB, set_batches=8, view_rounds=2000, copy_rounds=100, disk_rounds=16, http_rounds=6),
        BlockPlan(16 * MIB, set_batches=2, view_rounds=1000, copy_rounds=16, disk_rounds=5, http_rounds=4),
    ),
    batch=32,
    dram_bytes=5 * GIB // 2,
    nvme_bytes=8 * GIB,
    segment_bytes=256 * MIB,
    many_blocks=100_000,
    stream_bytes=10**9,
    match_rounds=1000,
)

QUICK = Plan(
    blocks=(BlockPlan(64 * KIB, set_batches=4, view_rounds=50, copy_rounds=10, disk_rounds=4, http_rounds=2),),
    batch=8,
    dram_bytes=64 * MIB,
    nvme_bytes=128 * MIB,
    segment_bytes=16 * MIB,
    many_blocks=500,
    stream_bytes=16 * MIB,
    match_rounds=50,
    judged=False,
)
"""Small enough for a test; its figures say nothing."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where a run works: `folder` is its own and is removed afterwards; `data` holds what goes to NVMe."""

    folder: Path
    data: Path
    direct: bool
    """Whether `data`'s file system takes O_DIRECT."""
