"""What Prometheus scrapes of the Conductor: counts kept as requests end, and the present state gathered when it asks.

Label values are bounded: classes and tenants are those of the configuration, reasons the few of REASONS, models and workers
those that are registered.
"""

import bisect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mooncask.client.worker_api import Role
from mooncask.conductor.scheduling.facts import Reason
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.pages.metric_texts import COUNTERS, GAUGES, HISTOGRAMS, PREFIX
from mooncask.conductor.serving.pages.rows import Calibration, PoolRow, calibration, pool_rows

REASONS = {
    Reason.TTFT.value: "ttft",
    Reason.TBT.value: "tbt",
    Reason.TBT_AFTER_PREFILL.value: "tbt_after_prefill",
    Reason.VRAM.value: "no_room",
}
FULL = "full"
"""The reason of all others: a bound on what runs or waits was reached."""
TTFT_BOUNDS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
STEP_BOUNDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

Usage = Callable[[], dict[str, dict[str, tuple[int, int]]]]


@dataclass(slots=True)
class Buckets:
    """A histogram with fixed upper bounds and one more bucket for all above."""

    bounds: Sequence[float]
    counts: list[int] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus has them: by upper bound, each with all below it."""
        sums, names = 0, [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        found = []
        for name, count in zip(names, self.counts, strict=True):
            sums += count
            found.append((name, float(sums)))
        return found


class ConductorMetrics:
    """Of one Conductor; a registry of its own. Belongs to the event loop's thread."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, dispatcher: LiveDispatcher, quota_used: Usage, quota_refusals: Counter[str]) -> None:
        self._dispatcher, self._quota_used, self._quota_refusals = dispatcher, quota_used, quota_refusals
        self.requests: Counter[tuple[str, ...]] = Counter()
        """By model, class and outcome."""
        self.rejections: Counter[tuple[str, ...]] = Counter()
        """By model, class and reason."""
        self.sums: Counter[tuple[str, str]] = Counter()
        """By name of the metric and model."""
        self.ttft: dict[tuple[str, ...], Buckets] = {}
        self.steps: dict[str, Buckets] = {}
        self._process = ProcessCollector(registry=None)

    def ended(self, decision: Decision) -> None:
        """Once a request."""
        model, of_class = decision.model, decision.service_class
        self.requests[model, of_class, decision.ended] += 1
        if decision.rejected:
            self.rejections[model, of_class, REASONS.get(decision.rejected, FULL)] += 1
        self.sums["retries", model] += decision.attempts - 1
        self.sums["prompt_tokens", model] += decision.prompt_tokens
        self.sums["matched_tokens", model] += decision.matched_tokens
        self.sums["cached_tokens", model] += min(decision.cached_tokens, decision.matched_tokens)
        self.sums["output_tokens", model] += decision.output_tokens
        if decision.ttft:
            self.ttft.setdefault((model, of_class), Buckets(TTFT_BOUNDS)).observe(decision.ttft)

    def reported(self, worker: Worker) -> None:
        """At every report of a worker."""
        if worker.report.steps:
            buckets = self.steps.setdefault(worker.registration.model, Buckets(STEP_BOUNDS))
            for step in worker.report.steps:
                buckets.observe(step.seconds)

    def sum_of(self, name: str) -> int:
        """Of one of the token counters, or of retries, over all models."""
        return sum(count for (known, _), count in self.sums.items() if known == name)

    def text(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Gathered([*self._counted(), *self._present(), *self._process.collect()]))
        return generate_latest(registry)

    # --- families ---

    def _counted(self) -> Iterator[Metric]:
        yield _counters("requests", ("model", "class", "outcome"), self.requests)
        yield _counters("rejections", ("model", "class", "reason"), self.rejections)
        yield _counters("quota_refusals", ("tenant",), {(tenant,): n for tenant, n in self._quota_refusals.items()})
        for name in ("retries", "prompt_tokens", "matched_tokens", "cached_tokens", "output_tokens"):
            yield _counters(name, ("model",), {(m,): n for (known, m), n in self.sums.items() if known == name})
        pausing = self._dispatcher.pausing
        yield _counters("decode_pauses", (), {(): pausing.pauses})
        yield _counters("decode_pause_seconds", (), {(): pausing.paused_seconds})
        yield _counters("unanswered_lookups", (), {(): self._dispatcher.unanswered})
        yield _histograms("ttft_seconds", ("model", "class"), self.ttft)
        yield _histograms("step_seconds", ("model",), {(model,): buckets for model, buckets in self.steps.items()})

    def _present(self) -> Iterator[Metric]:
        yield _gauges("running_requests", (), {(): self._dispatcher.running})
        yield _gauges("waiting_requests", (), {(): self._dispatcher.waiting})
        yield from _pool_gauges(pool_rows(self._dispatcher))
        yield from _calibration_gauges(calibration(self._dispatcher))
        told = {(tenant, what): pair for tenant, one in self._quota_used().items() for what, pair in one.items()}
        yield _gauges("quota_used_tokens", ("tenant", "window"), {labels: used for labels, (used, _) in told.items()})
        yield _gauges("quota_limit_tokens", ("tenant", "window"), {labels: most for labels, (_, most) in told.items()})


class _Gathered(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics

    def describe(self) -> list[Metric]:
        return []


def _pool_gauges(pools: list[PoolRow]) -> Iterator[Metric]:
    workers: Counter[tuple[str, ...]] = Counter()
    queues, slots = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
    for pool in pools:
        for worker in pool.workers:
            workers[pool.model, worker.role] += 1
            if worker.role == Role.PREFILL:
                queues[pool.model, worker.name] = worker.queue_seconds
            else:
                slots[pool.model, worker.name, "free"] = worker.free_slots
                slots[pool.model, worker.name, "used"] = max(0, worker.slots - worker.free_slots)
    yield _gauges("workers", ("model", "role"), workers)
    yield _gauges("prefill_queue_seconds", ("model", "worker"), queues)
    yield _gauges("decode_slots", ("model", "worker", "state"), slots)


def _calibration_gauges(told: Calibration) -> Iterator[Metric]:
    yield _gauges("ttft_prediction_error_ratio", (), {(): told.ttft.error})
    yield _gauges("ttft_prediction_bias_ratio", (), {(): told.ttft.bias})
    yield _gauges("inline_ttft_prediction_error_ratio", (), {(): told.inline.error})
    yield _gauges("inline_ttft_prediction_bias_ratio", (), {(): told.inline.bias})
    yield _gauges("step_prediction_error_ratio", (), {(): told.step.error})
    rates: Values = {(one.model, one.worker, one.tier): one.bytes_per_second for one in told.fetch}
    yield _gauges("fetch_bytes_per_second", ("model", "worker", "tier"), rates)
    yield _gauges("prefill_slowdown_ratio", (), {(): told.pause.slowdown})


Values = Mapping[tuple[str, ...], float]


def _counters(name: str, labels: Sequence[str], values: Values) -> Metric:
    family = CounterMetricFamily(PREFIX + name, COUNTERS[name], labels=labels)
    for labelled, value in values.items():
        family.add_metric(labelled, value)
    return family


def _gauges(name: str, labels: Sequence[str], values: Values) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, GAUGES[name], labels=labels)
    for labelled, value in values.items():
        family.add_metric(labelled, value)
    return family


def _histograms(name: str, labels: Sequence[str], values: Mapping[tuple[str, ...], Buckets]) -> Metric:
    family = HistogramMetricFamily(PREFIX + name, HISTOGRAMS[name], labels=labels)
    for labelled, buckets in values.items():
        family.add_metric(labelled, buckets.cumulative(), buckets.total)
    return family
