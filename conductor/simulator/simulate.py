"""Run a cluster over a trace: requests in, outcomes and samples out. Deterministic by the cluster's seed."""

from collections import Counter
from collections.abc import Callable, Sequence

from mooncask.conductor.simulator.balance import COLD_CHECK_SECONDS
from mooncask.conductor.simulator.cache import NodeCache
from mooncask.conductor.simulator.cluster import Cluster, check_fits
from mooncask.conductor.simulator.coupled import CoupledCluster
from mooncask.conductor.simulator.disaggregated import DisaggregatedCluster
from mooncask.conductor.simulator.events import EventQueue
from mooncask.conductor.simulator.outcome import REPLICA_RANKS, Outcome, ReplicaSample, Simulation
from mooncask.conductor.traces.request import Request

SAMPLE_SECONDS = 10.0
REPLICA_SAMPLE_SECONDS = 30.0

Progress = Callable[[int], None]
"""Told how many more requests have arrived."""


def simulate(
    cluster: Cluster,
    requests: Sequence[Request],
    *,
    speed: float = 1.0,
    output_tokens: int | None = None,
    progress: Progress | None = None,
) -> Simulation:
    """Replay `requests` by timestamp, `speed` times as fast; `output_tokens` replaces every output length.

    Raises BadArgument for an empty trace or one with a request that no node can hold.
    """
    check_fits(cluster, requests)
    events = EventQueue()
    outcomes = [_outcome(request, speed, output_tokens) for request in requests]
    build = CoupledCluster if cluster.coupled_nodes else DisaggregatedCluster
    running = build(cluster, events, outcomes)
    result = Simulation(cluster.notation, cluster.slo_seconds, cluster.slo.tbt_metric, outcomes)
    _feed(running, events, requests, outcomes, progress or (lambda count: None))
    _sample(running, events, requests, result, outcomes[-1].arrival)
    events.run()
    result.simulated_seconds = events.now
    _check_conservation(outcomes)
    return result


def _outcome(request: Request, speed: float, output_tokens: int | None) -> Outcome:
    output = request.output_length if output_tokens is None else output_tokens
    return Outcome(request.timestamp_ms / 1e3 / speed, request.input_length, output, len(request.hash_ids))


def _feed(
    running: CoupledCluster | DisaggregatedCluster,
    events: EventQueue,
    requests: Sequence[Request],
    outcomes: Sequence[Outcome],
    progress: Progress,
) -> None:
    """Each arrival schedules the next: the cluster can't look into the future, and the heap stays small."""

    def arrive(number: int) -> None:
        running.arrive(number, requests[number])
        progress(1)
        if number + 1 < len(requests):
            events.at(outcomes[number + 1].arrival, lambda: arrive(number + 1))

    events.at(outcomes[0].arrival, lambda: arrive(0))


def _sample(
    running: CoupledCluster | DisaggregatedCluster,
    events: EventQueue,
    requests: Sequence[Request],
    result: Simulation,
    until: float,
) -> None:
    caches = running.caches if isinstance(running, DisaggregatedCluster) else [node.cache for node in running.nodes]
    keys = ranked_keys(requests)

    def load() -> None:
        result.load.append(running.sample_load())
        if events.now + SAMPLE_SECONDS <= until:
            events.at(events.now + SAMPLE_SECONDS, load)

    def replicas() -> None:
        result.replicas.append(ReplicaSample(events.now, count_replicas(caches, keys)))
        if events.now + REPLICA_SAMPLE_SECONDS <= until:
            events.at(events.now + REPLICA_SAMPLE_SECONDS, replicas)

    def swap_cold() -> None:
        if isinstance(running, DisaggregatedCluster):
            running.balancer.swap_cold()
        if events.now + COLD_CHECK_SECONDS <= until:
            events.at(events.now + COLD_CHECK_SECONDS, swap_cold)

    events.at(0.0, load)
    events.at(0.0, replicas)
    if running.description.cache.swap_cold:
        events.at(0.0, swap_cold)


def ranked_keys(requests: Sequence[Request]) -> list[int | None]:
    """The keys at REPLICA_RANKS by number of accesses in the whole trace: for reporting, no policy sees them."""
    counts = Counter(key for request in requests for key in request.hash_ids).most_common(REPLICA_RANKS[-1])
    return [counts[rank - 1][0] if rank <= len(counts) else None for rank in REPLICA_RANKS]


def count_replicas(caches: Sequence[NodeCache], keys: Sequence[int | None]) -> tuple[int, ...]:
    return tuple(sum(key in cache for cache in caches) if key is not None else 0 for key in keys)


def _check_conservation(outcomes: Sequence[Outcome]) -> None:
    lost = sum(not outcome.ended for outcome in outcomes)
    assert not lost, f"{lost} requests never ended"
