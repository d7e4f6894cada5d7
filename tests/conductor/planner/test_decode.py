"""Decode nodes for an objective between tokens: the least that keep it, by the gaps that the simulator's nodes give."""

from functools import cache
from itertools import islice
from random import Random

import numpy as np
import pytest

from mooncask.conductor.models.analytical import find_gpu, find_model, kv_capacity_tokens
from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.models.fitted import FITTED_DECODE
from mooncask.conductor.planner.decode import (
    DecodeHardware,
    DecodePlan,
    Prefilled,
    TbtMetric,
    TbtObjective,
    decode,
    plan_decode,
)
from mooncask.conductor.simulator.cluster import Cache, Cluster
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.workloads import Chats
from mooncask.errors import BadArgument

HARDWARE = DecodeHardware(FITTED_DECODE, kv_capacity_tokens(find_model("llama3-70b"), find_gpu("a800-80g"), 8))


@cache
def chats() -> tuple[Request, ...]:
    return tuple(islice(Chats(per_second=5.0).requests(120, Random(2), Numbers()), 700))


@cache
def prefilled() -> Prefilled:
    arrivals = np.array([request.seconds for request in chats()])
    return Prefilled(arrivals + 1.0, arrivals + 1.0)


def plan(seconds: float, metric: TbtMetric = "longest-tenth", nodes_max: int = 12) -> DecodePlan:
    objective = TbtObjective(seconds, metric)
    return plan_decode(chats(), prefilled(), HARDWARE, objective, nodes_max=nodes_max, dollars_per_node_month=100.0)


@cache
def p90(nodes: int, metric: TbtMetric = "longest-tenth") -> float:
    return float(np.quantile(decode(chats(), prefilled(), HARDWARE, nodes, metric).tbts, 0.9))


def test_more_nodes_make_shorter_gaps() -> None:
    found = [p90(nodes) for nodes in range(1, 9)]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("metric", ["longest-tenth", "p90"])
@pytest.mark.parametrize("seconds", [0.06, 0.09, 0.2])
def test_no_fewer_nodes_keep_the_objective(seconds: float, metric: TbtMetric) -> None:
    found = plan(seconds, metric)
    assert found.nodes == next(nodes for nodes in range(1, 13) if p90(nodes, metric) <= seconds)
    assert found.meets
    assert found.tbt == p90(found.nodes, metric)
    assert found.dollars_per_month == 100.0 * found.nodes


def test_an_objective_that_nothing_keeps_is_said_so() -> None:
    found = plan(0.001, nodes_max=3)
    assert (found.nodes, found.meets) == (3, False)


def test_a_request_alone_has_the_gaps_of_its_own_steps() -> None:
    step = LinearStep(0.02, 0.001, 1e-6)
    request = Request(0, 1000, 4, (1, 2))
    times = Prefilled(np.array([1.0]), np.array([1.0]))
    found = decode([request], times, DecodeHardware(step, 10_000), 2, "longest-tenth")
    assert found.tbts.tolist() == pytest.approx([step.seconds(1, 1002)])


def test_it_agrees_with_the_simulator() -> None:
    """The same requests behind the same prefills: the simulator's times of the first token are used here."""
    cluster = Cluster(prefill_nodes=4, decode_nodes=3, cache=Cache(unlimited=True))
    run = simulate(cluster, chats())
    first = np.array([outcome.arrival + outcome.ttft for outcome in run.outcomes])
    found = decode(chats(), Prefilled(first, first), HARDWARE, 3, "longest-tenth")
    simulated = [outcome.tbt_longest_tenth for outcome in run.outcomes if outcome.output_tokens > 1]
    assert float(np.quantile(found.tbts, 0.9)) == pytest.approx(float(np.quantile(simulated, 0.9)), rel=0.05)


def test_a_trace_without_outputs_can_not_be_planned_for() -> None:
    silent = [Request(0, 100, 0, (1,))]
    with pytest.raises(BadArgument, match="no output lengths"):
        plan_decode(
            silent,
            Prefilled(np.array([0.0]), np.array([0.0])),
            HARDWARE,
            TbtObjective(0.1),
            nodes_max=2,
            dollars_per_node_month=1.0,
        )


def test_a_request_that_no_node_can_hold_is_refused() -> None:
    small = DecodeHardware(FITTED_DECODE, 1000)
    objective = TbtObjective(0.1)
    with pytest.raises(BadArgument, match="1000 tokens"):
        plan_decode(chats(), prefilled(), small, objective, nodes_max=2, dollars_per_node_month=1.0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_an_objective_of_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(BadArgument, match="--slo-tbt"):
        TbtObjective(seconds)
