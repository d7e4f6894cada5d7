"""What an operator says about the NVMe tier."""

from dataclasses import dataclass
from pathlib import Path

from mooncask.errors import ConfigError
from mooncask.tiers.block import ALIGNMENT
from mooncask.tiers.nvme.record import HEADER_BYTES, SEGMENT_DATA_START

SEGMENT_BYTES_DEFAULT = 256 << 20
SEGMENT_BYTES_SMALLEST_DEFAULT = 32 << 20
SEGMENT_BYTES_MIN = SEGMENT_DATA_START + HEADER_BYTES + ALIGNMENT
"""A segment that holds a block of one unit."""
SEGMENTS_WANTED = 32
SEGMENTS_MIN = 4
SEGMENTS_RESERVED = 2
"""Kept for the reclaimer: it must be able to copy before it frees."""
INDEX_SHARE = 0.02
"""Part of the capacity that stays outside segments, for the index."""


@dataclass(frozen=True, slots=True)
class NvmeConfig:
    """One data folder. Wrong values raise ConfigError at once, by the names of the daemon's configuration.

    `segment_bytes` = 0 chooses: 256 MiB, halved down to 32 MiB while that gives fewer than 32 segments, so that the two
    segments that the reclaimer keeps stay a small part of a small tier. It counts for a new folder only; an existing
    one keeps its own.
    """

    path: Path
    capacity_bytes: int
    segment_bytes: int = 0
    direct: bool = True
    """O_DIRECT; without it the page cache holds every block a second time."""
    io_threads: int = 4

    def __post_init__(self) -> None:
        if self.segment_bytes % ALIGNMENT or self.segment_bytes < 0:
            raise ConfigError("nvme.segment", str(self.segment_bytes), f"a multiple of {ALIGNMENT}, or 0")
        if 0 < self.segment_bytes < SEGMENT_BYTES_MIN:
            raise ConfigError("nvme.segment", str(self.segment_bytes), f"at least {SEGMENT_BYTES_MIN}, or 0")
        if not 1 <= self.io_threads <= 64:
            raise ConfigError("nvme.io_threads", str(self.io_threads), "1 to 64")
        self.with_segments_of(self.segment_bytes or self._chosen_segment_bytes())

    def with_segments_of(self, segment_bytes: int) -> "Layout":
        """The layout that this capacity gives with segments of that size; ConfigError when it is too small."""
        count = int(self.capacity_bytes * (1 - INDEX_SHARE)) // segment_bytes
        if count < SEGMENTS_MIN:
            least = int(SEGMENTS_MIN * segment_bytes / (1 - INDEX_SHARE)) + 1
            allowed = f"at least {least} bytes ({SEGMENTS_MIN} segments of {segment_bytes} bytes and 2 % for the index)"
            raise ConfigError("nvme.capacity", str(self.capacity_bytes), allowed)
        return Layout(segment_bytes, count)

    def layout(self) -> "Layout":
        """The layout that a new folder gets."""
        return self.with_segments_of(self.segment_bytes or self._chosen_segment_bytes())

    def _chosen_segment_bytes(self) -> int:
        chosen = SEGMENT_BYTES_DEFAULT
        while chosen > SEGMENT_BYTES_SMALLEST_DEFAULT and self.capacity_bytes // chosen < SEGMENTS_WANTED:
            chosen //= 2
        return chosen


@dataclass(frozen=True, slots=True)
class Layout:
    """How big segments are and how many there may be."""

    segment_bytes: int
    segments: int

    @property
    def data_bytes(self) -> int:
        """Room for records in one segment."""
        return self.segment_bytes - SEGMENT_DATA_START

    @property
    def block_bytes_max(self) -> int:
        """The largest payload that fits."""
        return self.data_bytes - HEADER_BYTES
