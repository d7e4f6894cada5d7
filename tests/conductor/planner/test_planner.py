"""The planner: the cheapest of all mixes that meet the objective, found by bisection but equal to trying every one."""

from dataclasses import replace
from functools import cache
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.cost import PolynomialPrefill
from mooncask.conductor.planner.curves import Curve, Point, sample_trace
from mooncask.conductor.planner.planner import (
    GIB,
    Metric,
    Objective,
    Plan,
    best_by_policy,
    curve_capacities,
    grid_gib,
    make_plan,
)
from mooncask.conductor.planner.prices import Decode, Dram, Node, Nvme, Prices
from mooncask.conductor.planner.queue import Hardware, Load, make_load, times_to_first_token
from mooncask.conductor.simulator.cluster import Cache, Cluster, Model
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.workloads import Chats
from mooncask.errors import BadArgument

BLOCK_BYTES = GIB // 16
SIZES = (0, 2, 8, 32)
CURVES = (
    Curve("lru", (Point(32, 0.1, 0.2), Point(128, 0.3, 0.6), Point(512, 0.5, 1.0))),
    Curve("fifo", (Point(32, 0.1, 0.1), Point(128, 0.2, 0.5), Point(512, 0.5, 1.0))),
)
PRICES = Prices(Dram(3.0, 16.0), Nvme(0.5, 64.0, 2.0), Node(0.5, "a800-80g", nodes_max=12), Decode(0.5, "a800-80g"))
HARDWARE = Hardware(PolynomialPrefill(1e-4, 1e-9), 80, 131072, 50e9, 2e9)


@cache
def load() -> Load:
    trace = tuple(Chats(per_second=1.0).requests(240, Random(3), Numbers()))
    return make_load(trace, sample_trace(trace, 1.0), HARDWARE, block_tokens=512)


def plan(objective: Objective, prices: Prices = PRICES) -> Plan:
    return make_plan(CURVES, load(), prices, objective, sizes_gib=SIZES, block_bytes=BLOCK_BYTES)


def measure(times: "np.ndarray[tuple[int], np.dtype[np.float64]]", metric: Metric) -> float:
    return float(times.mean()) if metric == "mean" else float(np.quantile(times, 0.9))


def cheapest_of_all(objective: Objective, prices: Prices) -> float | None:
    """Every policy, every pair of sizes, every number of nodes: nothing assumed to be monotone."""
    found = []
    mixes: list[tuple[int, int, np.ndarray[tuple[int], np.dtype[np.float64]]]] = [(0, 0, load().nothing)]
    for curve, dram, nvme in product(CURVES, SIZES[1:], SIZES):
        shares = [curve.kept(size * 16) for size in (dram, dram + nvme)]
        mixes.append((dram, nvme, load().service(*shares)))
    for (dram, nvme, service), nodes in product(mixes, range(1, prices.node.nodes_max + 1)):
        holds = dram <= nodes * prices.dram.gib_per_node_max and nvme <= nodes * prices.nvme.gib_per_node_max
        times = times_to_first_token(load().arrivals, service, nodes)
        if holds and measure(times, objective.metric) <= objective.ttft_seconds:
            found.append(prices.dollars_per_month(dram, nvme, nodes))
    return min(found, default=None)


@settings(max_examples=8, deadline=None)
@given(
    st.floats(1.4, 5),
    st.sampled_from(["mean", "p90"]),
    st.floats(0, 30),
    st.floats(0, 3),
    st.floats(0, 2),
)
def test_no_mix_that_meets_the_objective_is_cheaper_than_the_chosen_one(
    seconds: float, metric: Metric, dram: float, nvme: float, hour: float
) -> None:
    prices = replace(
        PRICES,
        dram=replace(PRICES.dram, dollars_per_gib_month=dram),
        nvme=replace(PRICES.nvme, dollars_per_gib_month=nvme),
        node=replace(PRICES.node, dollars_per_hour=hour, nodes_max=6),
    )
    objective = Objective(seconds, metric)
    chosen = plan(objective, prices).chosen
    best = cheapest_of_all(objective, prices)
    assert (chosen.dollars_per_month if chosen else None) == (pytest.approx(best) if best is not None else None)


def test_the_chosen_mix_keeps_the_objective_it_was_chosen_for() -> None:
    chosen = plan(Objective(2.4, "p90")).chosen
    assert chosen is not None and chosen.ttft_p90 <= 2.4


def test_a_tighter_objective_is_never_cheaper() -> None:
    costs = [plan(Objective(seconds)).chosen for seconds in (4.0, 3.0, 2.4, 2.2, 2.0, 1.9, 1.8)]
    dollars = [found.dollars_per_month for found in costs if found]
    assert len(dollars) == 7 and dollars == sorted(dollars) and dollars[0] < dollars[-1]


def test_an_objective_below_what_idle_nodes_need_is_met_by_none() -> None:
    found = plan(Objective(1e-6))
    assert found.chosen is None and not best_by_policy(found)
    assert not any(candidate.meets for candidate in found.candidates)


def test_memory_that_the_nodes_cannot_hold_is_not_offered() -> None:
    few = replace(PRICES, node=replace(PRICES.node, nodes_max=1))
    assert max(candidate.dram_gib for candidate in plan(Objective(5.0), few).candidates) <= 16


def test_free_memory_is_taken_and_memory_beyond_price_is_not() -> None:
    free = replace(PRICES, dram=Dram(0.0, 64.0), nvme=Nvme(0.0, 64.0))
    dear = replace(PRICES, dram=Dram(1e6, 64.0))
    with_memory, without = plan(Objective(4.0), free).chosen, plan(Objective(4.0), dear).chosen
    assert with_memory is not None and with_memory.dram_gib > 0
    assert without is not None and (without.policy, without.dram_gib) == ("none", 0)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_an_objective_of_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(BadArgument, match="--slo-ttft"):
        Objective(seconds)


def test_the_grid_is_nothing_and_powers_of_two_up_to_the_whole_trace() -> None:
    sizes = grid_gib(1000, GIB // 2)
    assert sizes == (0, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert curve_capacities((0, 1, 2), GIB // 2) == [2, 3, 4]
    assert grid_gib(1, 1) == (0, 1)


# --- the queue -------------------------------------------------------------------------------------------------------


def test_poisson_arrivals_at_one_node_wait_as_pollaczek_and_khinchine_say() -> None:
    chance = np.random.default_rng(5)
    arrivals = np.cumsum(chance.exponential(1.0, 200_000))
    service = chance.lognormal(-1.0, 0.8, len(arrivals))
    waits = times_to_first_token(arrivals, service, 1) - service
    second_moment, busy = float((service**2).mean()), float(service.mean())
    assert waits.mean() == pytest.approx(second_moment / (2 * (1 - busy)), rel=0.05)


def test_without_a_cache_the_times_are_those_of_the_simulator() -> None:
    trace = tuple(Chats(per_second=2.0).requests(240, Random(4), Numbers()))
    model = Model(name="llama3-70b", gpu="a800-80g", costs="analytical")
    cluster = Cluster(prefill_nodes=3, decode_nodes=8, model=model, cache=Cache(dram_tokens=0))
    hardware = replace(HARDWARE, prefill=cluster.prefill_costs())
    ours = make_load(trace, sample_trace(trace, 1.0), hardware, block_tokens=512)
    times = times_to_first_token(ours.arrivals, ours.nothing, 3)
    simulated = simulate(cluster, trace)
    assert times.mean() == pytest.approx(simulated.mean("ttft"), rel=0.05)
    assert np.quantile(times, 0.9) == pytest.approx(simulated.quantile("ttft", 0.9), rel=0.05)
    assert times.mean() > 1.05 * ours.nothing.mean(), "somebody has to wait, or nothing is shown"


def test_more_nodes_and_more_kept_reuses_make_no_time_longer() -> None:
    worst = times_to_first_token(load().arrivals, load().nothing, 2)
    for nodes, kept_dram, kept in [(2, 0.0, 0.0), (2, 0.0, 0.5), (2, 0.5, 0.5), (2, 0.5, 1.0), (3, 0.5, 1.0)]:
        times = times_to_first_token(load().arrivals, load().service(kept_dram, kept), nodes)
        assert (times <= worst + 1e-9).all()
        worst = times


def test_no_case_of_a_request_is_slower_than_the_one_with_less_cache() -> None:
    cases = load()
    assert (cases.dram <= cases.nvme).all() and (cases.nvme <= cases.lost).all() and (cases.lost <= cases.nothing).all()
    assert cases.dram.sum() < cases.nothing.sum()
