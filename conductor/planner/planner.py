"""The cheapest mix of DRAM, NVMe and prefill nodes that meets an objective for the time to first token. No I/O.

All nodes share one pool of KV, as the Conductor places requests. DRAM is the upper tier: it keeps what a cache of its size
would keep, and both together what one of their sum would. For every policy and every pair of sizes on a grid of powers of
two the least number of nodes is found by bisection, which is right because times never rise with nodes (`queue.py`).
Decode nodes are planned behind it (`decode.py`): the time to first token does not depend on them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from mooncask.conductor.planner.curves import Curve
from mooncask.conductor.planner.prices import Prices
from mooncask.conductor.planner.queue import Load, Seconds, times_to_first_token
from mooncask.errors import BadArgument

GIB = 1 << 30
STEPS = 8
"""Sizes of the grid below the one that holds the whole trace, each half of the next."""

Metric = Literal["mean", "p90"]
NO_CACHE = "none"


@dataclass(frozen=True, slots=True)
class Objective:
    """The mean or the 90th percentile of the time to first token is to be at most `ttft_seconds`."""

    ttft_seconds: float
    metric: Metric = "p90"

    def __post_init__(self) -> None:
        if not 0 < self.ttft_seconds < math.inf:
            raise BadArgument("--slo-ttft", str(self.ttft_seconds), "above 0 seconds")
        if self.metric not in ("mean", "p90"):
            raise BadArgument("--slo-metric", repr(self.metric), "one of mean, p90")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mix with the least nodes that meet the objective; where none do (`meets` false), with as many as there are.

    `busy` is the share of node time spent in prefill, `kept` that of the trace's reuses beyond shared blocks that hit.
    """

    policy: str
    dram_gib: int
    nvme_gib: int
    nodes: int
    kept: float
    ttft_mean: float
    ttft_p90: float
    busy: float
    dollars_per_month: float
    meets: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """All candidates, those that meet the objective first, then by price; `chosen` is the first, if it meets it."""

    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate | None:
        return self.candidates[0] if self.candidates and self.candidates[0].meets else None


def grid_gib(different_blocks: int, block_bytes: int) -> tuple[int, ...]:
    """Nothing, and powers of two GiB up to the first that holds every block of the trace; at least one of 1 GiB."""
    top = max(0, math.ceil(math.log2(max(1.0, different_blocks * block_bytes / GIB))))
    return (0, *(1 << power for power in range(max(0, top - STEPS), top + 1)))


def curve_capacities(sizes_gib: Sequence[int], block_bytes: int) -> list[int]:
    """Capacities in blocks at which a curve is needed: the sizes and half way between each two."""
    sizes = sorted(size for size in sizes_gib if size)
    halves = [(a + b) / 2 for a, b in pairwise(sizes)]
    return sorted({max(1, int(size * GIB // block_bytes)) for size in [*sizes, *halves]})


def make_plan(
    curves: Sequence[Curve],
    load: Load,
    prices: Prices,
    objective: Objective,
    *,
    sizes_gib: Sequence[int],
    block_bytes: int,
) -> Plan:
    """Try all mixes. Those that need more nodes for their memory alone than there are, are left out."""
    uncached = _try(NO_CACHE, 0, 0, 0.0, load.nothing, load, prices, objective, prices.node.nodes_max)
    tried = [uncached]
    for curve in curves:
        kept = {gib: curve.kept(gib * GIB / block_bytes) for gib in _sums(sizes_gib)}
        for dram, nvme in _pairs(sizes_gib):
            least = _nodes_for_memory(dram, nvme, prices)
            if least <= prices.node.nodes_max:
                service = load.service(kept[dram], kept[dram + nvme])
                most = max(int(least), uncached.nodes)  # a cache makes no request slower
                tried.append(_try(curve.policy, dram, nvme, kept[dram + nvme], service, load, prices, objective, most))
    return Plan(tuple(sorted(tried, key=lambda found: (not found.meets, found.dollars_per_month, found.ttft_p90))))


def best_by_policy(plan: Plan) -> Mapping[str, Candidate]:
    """The cheapest candidate of each policy that meets the objective, cheapest first."""
    best: dict[str, Candidate] = {}
    for candidate in plan.candidates:
        if candidate.meets:
            best.setdefault(candidate.policy, candidate)
    return best


def _pairs(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """DRAM and NVMe sizes: some DRAM always, since NVMe is read through it."""
    return ((dram, nvme) for dram in sizes if dram for nvme in sizes)


def _sums(sizes: Sequence[int]) -> set[int]:
    return {total for dram, nvme in _pairs(sizes) for total in (dram, dram + nvme)}


def _nodes_for_memory(dram_gib: int, nvme_gib: int, prices: Prices) -> float:
    """The least nodes that hold so much; infinite where a node holds none."""
    needed = 1.0
    for size, most in ((dram_gib, prices.dram.gib_per_node_max), (nvme_gib, prices.nvme.gib_per_node_max)):
        if size:
            needed = max(needed, math.ceil(size / most) if most else math.inf)
    return needed


def _try(
    policy: str,
    dram_gib: int,
    nvme_gib: int,
    kept: float,
    service: Seconds,
    load: Load,
    prices: Prices,
    objective: Objective,
    most: int,
) -> Candidate:
    least = int(_nodes_for_memory(dram_gib, nvme_gib, prices))
    nodes, times = _least_nodes(service, load, least, most, objective)
    span = max(float(load.arrivals[-1] - load.arrivals[0]), float(times[-1]), 1e-9)
    return Candidate(
        policy,
        dram_gib,
        nvme_gib,
        nodes,
        kept,
        float(times.mean()),
        float(np.quantile(times, 0.9)),
        min(1.0, float(service.sum()) / (nodes * span)),
        prices.dollars_per_month(dram_gib, nvme_gib, nodes),
        _measure(times, objective) <= objective.ttft_seconds,
    )


def _least_nodes(service: Seconds, load: Load, least: int, most: int, objective: Objective) -> tuple[int, Seconds]:
    """The fewest nodes of `least` to `most` that meet the objective, and the times with them; `most` if none do."""
    low, high = least, most
    times = times_to_first_token(load.arrivals, service, high)
    if _measure(times, objective) > objective.ttft_seconds:
        return high, times
    while low < high:
        middle = (low + high) // 2
        tried = times_to_first_token(load.arrivals, service, middle)
        if _measure(tried, objective) <= objective.ttft_seconds:
            high, times = middle, tried
        else:
            low = middle + 1
    return high, times


def _measure(times: Seconds, objective: Objective) -> float:
    return float(times.mean()) if objective.metric == "mean" else float(np.quantile(times, 0.9))
