"""How long something took, in buckets: counts only, cheap enough for every request. How it is shown is the daemon's."""

from bisect import bisect_left
from collections.abc import Sequence

SECONDS = (
    25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
"""From a match of a few keys to a reserve that waits for its deadline."""


class Histogram:
    """Counts by upper bound; the last count is of what took longer than all of them."""

    __slots__ = ("bounds", "counts", "sum_seconds")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum_seconds = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.sum_seconds += seconds

    @property
    def count(self) -> int:
        return sum(self.counts)


class Timings:
    """How long the disk takes, one block at a time, as those who wait for it see it."""

    def __init__(self) -> None:
        self.nvme_read = Histogram()
        """Payload read and checked."""
        self.nvme_write = Histogram()
        """From the write's turn until it is durable; group commits share a part of it."""
