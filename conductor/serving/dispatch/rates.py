"""How fast workers bring KV from where it lies, learned from what they tell of their loads. Pure.

A worker begins with what the pool's others have, and the pool with what is configured. Bounded: five tiers a worker, and a
worker that is gone is forgotten.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mooncask.client.worker_api import Loaded

TIERS = ("hbm", "dram", "nvme", "peer", "cold")
"""Fastest first."""
PEER = "peer"
ELSEWHERE = (PEER, "cold")
"""Not on the worker's node."""
START_BYTES = 16 << 20
"""What stands at the beginning counts as much as a measurement over so many bytes."""
RATE_MIN, RATE_MAX = 1e3, 1e15
"""Whatever a broken clock says."""
SECONDS_MAX = 3600.0
SIZE_MAX = 1 << 50
"""Nothing that a worker measures is more; whoever says so has a broken clock, or is broken otherwise."""
MEMORY_BYTES = 1 << 30
"""Of more than that the older bytes fade."""


@dataclass(slots=True)
class _Sum:
    size_bytes: float = 0.0
    seconds: float = 0.0

    def add(self, size_bytes: float, seconds: float) -> None:
        self.size_bytes, self.seconds = self.size_bytes + size_bytes, self.seconds + seconds
        if self.size_bytes > MEMORY_BYTES:
            share = MEMORY_BYTES / self.size_bytes
            self.size_bytes, self.seconds = MEMORY_BYTES, self.seconds * share

    def rate(self, start: float) -> float:
        rate = (self.size_bytes + START_BYTES) / (self.seconds + START_BYTES / start)
        return min(RATE_MAX, max(RATE_MIN, rate))


@dataclass(frozen=True, slots=True)
class Rate:
    """Of one worker and tier: bytes a second, from so many bytes measured."""

    worker: str
    tier: str
    bytes_per_second: float
    measured_bytes: float


@dataclass(slots=True)
class FetchRates:
    """`start`: bytes a second before anything was measured. Not safe for concurrent use."""

    start: float
    _pool: dict[str, _Sum] = field(default_factory=dict)
    _workers: dict[tuple[str, str], _Sum] = field(default_factory=dict)
    """By worker and tier."""

    def observe(self, worker: str, loaded: Sequence[Loaded], seconds: float) -> float:
        """One load. Of several tiers the slowest gets the time that the others' rates leave over. Returns the seconds of what
        came from another place than the worker's node; what no worker can mean is ignored."""
        sizes = {one.tier: one.size_bytes for one in loaded if one.tier in TIERS and 0 < one.size_bytes <= SIZE_MAX}
        if not sizes or not 0 < seconds <= SECONDS_MAX:
            return 0.0
        *others, slowest = sorted(sizes, key=TIERS.index)
        known = {tier: min(self.seconds(worker, sizes[tier], tier), 0.9 * seconds / len(others)) for tier in others}
        known[slowest] = seconds - sum(known.values())
        for one in (self._pool.setdefault(slowest, _Sum()), self._workers.setdefault((worker, slowest), _Sum())):
            one.add(sizes[slowest], known[slowest])
        return sum(took for tier, took in known.items() if tier in ELSEWHERE)

    def seconds(self, worker: str, size_bytes: float, tier: str = PEER) -> float:
        """What that worker takes to bring so many bytes from there."""
        return max(0.0, size_bytes) / self.of(worker, tier)

    def of(self, worker: str, tier: str = PEER) -> float:
        """Bytes a second."""
        return self._workers.get((worker, tier), _Sum()).rate(self.pool(tier))

    def pool(self, tier: str = PEER) -> float:
        """Of all workers together."""
        return self._pool.get(tier, _Sum()).rate(self.start)

    def forget(self, worker: str) -> None:
        """It is gone; what it has taught the pool stays."""
        for name in [name for name in self._workers if name[0] == worker]:
            del self._workers[name]

    def rows(self, workers: Iterable[str]) -> list[Rate]:
        """What is reckoned with for these workers: other nodes, and every tier that somebody has loaded from."""
        tiers = [tier for tier in TIERS if tier == PEER or tier in self._pool]
        found = ((worker, tier, self._workers.get((worker, tier), _Sum())) for worker in workers for tier in tiers)
        return [Rate(worker, tier, self.of(worker, tier), one.size_bytes) for worker, tier, one in found]
