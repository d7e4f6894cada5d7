"""What a simulation says of each request and of the whole: the one table of definitions for every figure.

| word | meaning |
|---|---|
| TTFT | arrival to first token, in seconds |
| TBT | of each request, of the gaps between its tokens: the mean of the longest tenth, and the P90; a figure names which |
| goodput | requests completed within both SLOs / all offered |
| hit rate | blocks of the longest prefix found at arrival (fetched ones included) / all blocks |
| prefill seconds | GPU time of the prefill, without waiting |

A request of one token has no gaps: its TBT is 0. Replay is open-loop by timestamp; rejected requests do not return.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mooncask.conductor.scheduling.facts import Slo

COMPLETED = "completed"


@dataclass(slots=True)
class Outcome:
    """One request's fate. Times in seconds from the trace's start; `ended` stays "" until it ended."""

    arrival: float
    input_tokens: int
    output_tokens: int
    blocks: int
    ended: str = ""
    """COMPLETED or the reason of its rejection."""
    hit_blocks: int = 0
    prefix_tokens: int = 0
    fetched_tokens: int = 0
    prefill_node: int = -1
    decode_node: int = -1
    ttft_expected: float = 0.0
    ttft: float = 0.0
    prefill_seconds: float = 0.0
    tbt_longest_tenth: float = 0.0
    tbt_p90: float = 0.0
    tbt_mean: float = 0.0
    finished_at: float = 0.0
    priority: int = 0

    def record_gaps(self, gaps: npt.NDArray[np.float64]) -> None:
        if not gaps.size:
            return
        ordered = np.sort(gaps)
        self.tbt_mean = float(ordered.mean())
        self.tbt_longest_tenth = float(ordered[-max(1, ordered.size // 10) :].mean())
        self.tbt_p90 = sorted_quantile(ordered, 0.9)

    def tbt(self, metric: str) -> float:
        return self.tbt_p90 if metric == "p90" else self.tbt_longest_tenth

    def within(self, slo: Slo, metric: str) -> bool:
        return self.ended == COMPLETED and self.ttft <= slo.ttft_seconds and self.tbt(metric) <= slo.tbt_seconds


def sorted_quantile(ordered: npt.NDArray[np.float64], share: float) -> float:
    """As numpy's quantile, of values already sorted: there it would take a fifth of a simulation's time."""
    position = share * (ordered.size - 1)
    below = int(position)
    above = min(below + 1, ordered.size - 1)
    return float(ordered[below] + (position - below) * (ordered[above] - ordered[below]))


@dataclass(frozen=True, slots=True)
class LoadSample:
    """Loads as predicted latency / SLO at one time: of the prefill pool (worst queue) and the decode pool (worst step)."""

    time: float
    prefill: float
    decode: float


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """How many nodes hold the first block of the keys at each rank, in the order of the ranks asked for."""

    time: float
    replicas: tuple[int, ...]


REPLICA_RANKS = (10, 100, 1000, 10000)
"""Keys whose replicas are sampled, by their rank in number of accesses (FAST'25 figure 11)."""


@dataclass(slots=True)
class Simulation:
    """All that came out of one run."""

    notation: str
    slo: Slo
    tbt_metric: str
    outcomes: list[Outcome]
    load: list[LoadSample] = field(default_factory=list)
    replicas: list[ReplicaSample] = field(default_factory=list)
    simulated_seconds: float = 0.0
    replica_ranks: tuple[int, ...] = REPLICA_RANKS

    @property
    def completed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.ended == COMPLETED]

    @property
    def goodput(self) -> float:
        return self.goodput_at(self.slo)

    def goodput_at(self, slo: Slo) -> float:
        """Share of all offered requests that would be within other SLOs."""
        return sum(o.within(slo, self.tbt_metric) for o in self.outcomes) / max(1, len(self.outcomes))

    def rejected(self) -> dict[str, int]:
        """Rejected requests by reason."""
        counts: dict[str, int] = {}
        for outcome in self.outcomes:
            if outcome.ended != COMPLETED:
                counts[outcome.ended] = counts.get(outcome.ended, 0) + 1
        return dict(sorted(counts.items()))

    def rejected_by_class(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for outcome in self.outcomes:
            counts.setdefault(str(outcome.priority), 0)
            counts[str(outcome.priority)] += outcome.ended != COMPLETED
        return dict(sorted(counts.items()))

    @property
    def hit_rate(self) -> float:
        return sum(o.hit_blocks for o in self.outcomes) / max(1, sum(o.blocks for o in self.outcomes))

    def mean(self, name: str) -> float:
        """Mean of one field of the completed requests; 0 without any."""
        values = [float(getattr(o, name)) for o in self.completed]
        return sum(values) / len(values) if values else 0.0

    def quantile(self, name: str, share: float) -> float:
        values = [float(getattr(o, name)) for o in self.completed]
        return float(np.quantile(values, share)) if values else 0.0

    def summary(self) -> dict[str, object]:
        """Plain numbers for JSON."""
        return {
            "cluster": self.notation,
            "requests": len(self.outcomes),
            "completed": len(self.completed),
            "rejected": self.rejected(),
            "rejected_by_priority": self.rejected_by_class(),
            "goodput": self.goodput,
            "hit_rate": self.hit_rate,
            "ttft_seconds": self._spread("ttft"),
            "tbt_longest_tenth_seconds": self._spread("tbt_longest_tenth"),
            "tbt_p90_seconds": self._spread("tbt_p90"),
            "tbt_mean_seconds": self._spread("tbt_mean"),
            "prefill_seconds_per_request": self.mean("prefill_seconds"),
            "fetched_tokens": sum(o.fetched_tokens for o in self.outcomes),
            "simulated_seconds": self.simulated_seconds,
            "load": [[s.time, s.prefill, s.decode] for s in self.load],
            "replicas": {"ranks": self.replica_ranks, "samples": [[s.time, *s.replicas] for s in self.replicas]},
            "slo": {"ttft_seconds": self.slo.ttft_seconds, "tbt_seconds": self.slo.tbt_seconds, "tbt": self.tbt_metric},
        }

    def _spread(self, name: str) -> dict[str, float]:
        return {
            "mean": self.mean(name),
            "p50": self.quantile(name, 0.5),
            "p90": self.quantile(name, 0.9),
            "p99": self.quantile(name, 0.99),
        }
