"""Miss-ratio curves from a sample of a trace: what share of block accesses a cache of each size would hit.

Spatial sampling after SHARDS (Waldspurger and others, FAST'15): a block is in the sample when the hash of its id is below
the rate, so that all its accesses are or none is; a cache of C blocks is then a small one of rate x C. Two things differ
here, since a prompt is a chain of blocks:

- Single blocks are sampled, not whole conversations. The sampled blocks of a request keep their order, so "longest
  resident prefix" keeps its meaning but for gaps that lie between two sampled blocks. Whole conversations would be longer
  than the small cache, and their few heavy ones would make the estimate jump (docs/PLANNER.md has both errors).
- Only the share of *reuses that the cache keeps* is estimated. How many there are at all (the hits of an unlimited cache)
  is counted exactly in the pass that samples. Blocks of very many requests (system prompts) are left out of the sample and
  taken as always resident: whether one of them falls into the sample would move the result by points.

A policy that looks at depth or parent (foresight) sees those of the sampled chain. Not here: the exact numbers (`replay/`).
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mooncask.conductor.replay.policies import ReplayOptions, check_policy_name, replay_named
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

SAMPLED_BLOCKS = 8192
"""Different blocks in the sample when no rate is given: the SHARDS paper's bound for errors below a point."""
SHARED_SHARE, SHARED_LEAST = 0.02, 100
"""A block is shared when it is in more than this share of the requests, and in at least so many."""

_HASH_BITS = 64
_MASK = (1 << _HASH_BITS) - 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled trace with what was counted exactly beside it.

    `accesses` and `reuses` are of the whole trace: all block accesses, and the hits of an unlimited cache on blocks that are
    not shared; `sampled_reuses` are those in the sample. `shared_hits` are its hits on shared blocks. `prefixes` has, for each request of the whole trace, the blocks
    an unlimited cache would hit, and `shared_prefixes` those of them that are shared.
    """

    requests: tuple[Request, ...]
    rate: float
    accesses: int
    different: int
    shared: int
    shared_hits: int
    reuses: int
    sampled_reuses: int
    prefixes: tuple[int, ...]
    shared_prefixes: tuple[int, ...]

    @property
    def sampled_accesses(self) -> int:
        """Block accesses that a policy has to be asked about: the work of one point of a curve."""
        return sum(len(request.hash_ids) for request in self.requests)


@dataclass(frozen=True, slots=True)
class Point:
    """`kept` is the share of the reuses beyond shared blocks that a cache of that size hits."""

    capacity_blocks: int
    hit_rate: float
    kept: float


@dataclass(frozen=True, slots=True)
class Curve:
    """A policy's points by rising capacity."""

    policy: str
    points: tuple[Point, ...]

    def kept(self, capacity_blocks: float) -> float:
        """Share of reuses kept at any capacity: linear between points, 0 at nothing, flat after the last.

        The larger of two caches never gets less, even where a policy's own curve dips: a planner may leave memory unused.
        """
        sizes = [0, *(point.capacity_blocks for point in self.points)]
        heights = [0.0]
        for point in self.points:
            heights.append(max(heights[-1], point.kept))
        right = bisect_right(sizes, capacity_blocks)
        if right == len(sizes):
            return heights[-1]
        share = (capacity_blocks - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return heights[right - 1] + share * (heights[right] - heights[right - 1])


def sample_trace(trace: Sequence[Request], rate: float | None = None, *, seed: int = 0) -> Sample:
    """Sample the blocks of a trace; `rate` 1 keeps all, None chooses about `SAMPLED_BLOCKS` different ones.

    Raises BadArgument for a rate outside (0, 1].
    """
    if rate is not None and not 0 < rate <= 1:
        raise BadArgument("--rate", str(rate), "above 0 and at most 1")
    counts = Counter(key for request in trace for key in request.hash_ids)
    chosen = min(1.0, SAMPLED_BLOCKS / max(1, len(counts))) if rate is None else rate
    if chosen == 1:
        return _collect(trace, 1.0, frozenset(counts), frozenset())
    least = max(SHARED_LEAST, SHARED_SHARE * len(trace))
    shared = frozenset(key for key, count in counts.items() if count > least)
    limit = int(chosen * (1 << _HASH_BITS))
    sampled = frozenset(key for key in counts if key not in shared and _mix(key, seed) < limit)
    return replace(_collect(trace, chosen, sampled, shared), different=len(counts))


def miss_ratio_curve(sample: Sample, policy: str, capacities: Sequence[int]) -> Curve:
    """The curve of a policy of `mooncask replay` at those capacities, in blocks of the whole trace.

    Raises BadArgument for an unknown policy or a capacity below 1.
    """
    check_policy_name(policy)
    return Curve(policy, tuple(_point(sample, policy, capacity) for capacity in sorted(capacities)))


def _point(sample: Sample, policy: str, capacity: int) -> Point:
    if capacity < 1:
        raise BadArgument("capacity", str(capacity), "at least 1 block")
    small = max(1, round(sample.rate * (capacity - sample.shared)))
    hits = replay_named(policy, sample.requests, small, ReplayOptions()).hits
    kept = min(1.0, hits / sample.sampled_reuses) if sample.sampled_reuses else 0.0
    total = sample.shared_hits + kept * sample.reuses
    return Point(capacity, total / sample.accesses if sample.accesses else 0.0, kept)


def _collect(trace: Sequence[Request], rate: float, sampled: frozenset[int], shared: frozenset[int]) -> Sample:
    prefixes = _resident_prefixes(trace)
    shared_prefixes = tuple(
        sum(key in shared for key in request.hash_ids[:prefix]) for request, prefix in zip(trace, prefixes, strict=True)
    )
    kept = (replace(request, hash_ids=tuple(k for k in request.hash_ids if k in sampled)) for request in trace)
    requests = tuple(request for request in kept if request.hash_ids)
    accesses = sum(len(request.hash_ids) for request in trace)
    shared_hits = sum(shared_prefixes)
    return Sample(
        requests,
        rate,
        accesses,
        len(sampled),
        len(shared),
        shared_hits,
        sum(prefixes) - shared_hits,
        sum(_resident_prefixes(requests)),
        prefixes,
        shared_prefixes,
    )


def _resident_prefixes(trace: Sequence[Request]) -> tuple[int, ...]:
    """Blocks of each request that an unlimited cache hits."""
    seen: set[int] = set()
    found = []
    for request in trace:
        prefix = 0
        for key in request.hash_ids:
            if key not in seen:
                break
            prefix += 1
        found.append(prefix)
        seen.update(request.hash_ids)
    return tuple(found)


def _mix(key: int, seed: int) -> int:
    """64 well mixed bits of a block id (the finaliser of splitmix64)."""
    value = (key + (seed + 1) * 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
