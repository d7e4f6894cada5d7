"""Times to first token of a trace on a pool of equal prefill nodes: each request's service, and its wait in one queue.

The wait is found by passing the trace's own arrivals through a first-come-first-served queue with c servers (the
recursion of Kiefer and Wolfowitz), not by M/G/1: real arrivals come in waves and bursts, for which Poisson formulas are far
too hopeful, and a percentile would need an approximation of its own. It costs O(log c) a request. With Poisson arrivals and
one node it agrees with Pollaczek and Khinchine's formula (a test shows it).

A reuse survives as a whole or not at all. Which ones do is drawn by a number that each request keeps, so that a larger
cache hits all that a smaller one hits: more memory or more nodes never make a time longer, for any request.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
from random import Random

import numpy as np
from numpy.typing import NDArray

from mooncask.conductor.models.cost import PrefillModel
from mooncask.conductor.models.pipeline import LayerWise
from mooncask.conductor.planner.curves import Sample
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a prefill depends on beside the cache. Speeds are bytes/s at which one node gets KV from each tier."""

    prefill: PrefillModel
    layers: int
    kv_bytes_per_token: int
    dram_bytes_per_second: float
    nvme_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Load:
    """A trace as a queue sees it: arrivals and each request's seconds of prefill in four cases, by where its reuse lies.

    `nothing` has no cache at all, `lost` only the shared blocks, `nvme` and `dram` all of it from there.In no request is one of them longer than the one before it.
    """

    arrivals: Seconds
    nothing: Seconds
    lost: Seconds
    nvme: Seconds
    dram: Seconds
    draws: Seconds

    def service(self, kept_dram: float, kept: float) -> Seconds:
        """Seconds of each prefill when the DRAM keeps that share of reuses, and both tiers together `kept`.

        `kept_dram` at most `kept`. For a cluster without cache take `nothing`.
        """
        return np.where(self.draws < kept_dram, self.dram, np.where(self.draws < kept, self.nvme, self.lost))


def make_load(
    trace: Sequence[Request],
    sample: Sample,
    hardware: Hardware,
    *,
    block_tokens: int,
    speed: float = 1.0,
    seed: int = 0,
) -> Load:
    """The load of a trace replayed `speed` times as fast; `sample` is of that trace. Raises BadArgument for no speed."""
    if not 0 < speed < float("inf"):
        raise BadArgument("--speed", str(speed), "above 0")
    cases = np.array(
        [
            _cases(request.input_length, prefix * block_tokens, shared * block_tokens, hardware)
            for request, prefix, shared in zip(trace, sample.prefixes, sample.shared_prefixes, strict=True)
        ],
        dtype=np.float64,
    )
    chance = Random(seed)
    draws = np.array([chance.random() for _ in trace])
    arrivals = np.array([request.seconds / speed for request in trace])
    return Load(arrivals, cases[:, 0], cases[:, 1], cases[:, 2], cases[:, 3], draws)


def times_to_first_token(arrivals: Seconds, service: Seconds, nodes: int) -> Seconds:
    """Wait and service of each request, first come first served on `nodes` nodes."""
    free = [0.0] * nodes
    done = []
    for arrival, seconds in zip(arrivals.tolist(), service.tolist(), strict=True):
        end = max(arrival, free[0]) + seconds
        heapreplace(free, end)
        done.append(end)
    return np.array(done) - arrivals


def _cases(tokens: int, reused: int, shared: int, hardware: Hardware) -> tuple[float, float, float, float]:
    """Seconds with nothing, only shared blocks, all from NVMe, all from DRAM; loading never costs more than recomputing."""
    nothing = hardware.prefill.seconds(tokens, 0)
    lost = min(nothing, _with_prefix(tokens, shared, hardware, hardware.dram_bytes_per_second))
    slowest = min(hardware.nvme_bytes_per_second, hardware.dram_bytes_per_second)
    nvme = min(lost, _with_prefix(tokens, reused, hardware, slowest))
    dram = min(nvme, _with_prefix(tokens, reused, hardware, hardware.dram_bytes_per_second))
    return nothing, lost, nvme, dram


def _with_prefix(tokens: int, cached: int, hardware: Hardware, bytes_per_second: float) -> float:
    """Prefill with a loaded prefix; the last token is always computed, since its logits are wanted."""
    prefix = min(cached, tokens - 1)
    load = prefix * hardware.kv_bytes_per_token / bytes_per_second
    return LayerWise(hardware.layers).execution_seconds(load, hardware.prefill.seconds(tokens, prefix))
