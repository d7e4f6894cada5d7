"""Tide planning: the program against all plans, the forecast, causality, and the comparison the planner must win."""

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.scheduling.tide import (
    RollingPlanner,
    TideCosts,
    forecast,
    plan,
    reactive,
    slot_costs,
    switching_costs,
)
from mooncask.conductor.simulator.tide import compare, play
from mooncask.conductor.simulator.tide_week import SLOTS_A_DAY, SLOTS_A_WEEK, fortnight

COSTS = TideCosts(nodes=4, warm_up_slots=0.3, switch=0.1)
loads_of_four = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=4).map(np.array)


@given(loads_of_four, st.one_of(st.none(), st.integers(0, 4)))
@settings(deadline=None, max_examples=50)
def test_the_plan_is_as_cheap_as_the_cheapest_of_all_plans(load: np.ndarray, start: int | None) -> None:
    own, switch = slot_costs(load, COSTS), switching_costs(load, COSTS)

    def price(chosen: tuple[int, ...]) -> float:
        first = 0.0 if start is None else switch[0, start, chosen[0]]
        moves = sum(switch[i, chosen[i - 1], chosen[i]] for i in range(1, len(chosen)))
        return float(first + moves + sum(own[i, c] for i, c in enumerate(chosen)))

    best = min(price(chosen) for chosen in itertools.product(range(5), repeat=len(load)))
    assert price(tuple(plan(load, start, COSTS))) == pytest.approx(best)


def test_nobody_moves_for_less_than_a_move_costs() -> None:
    load = np.array([[2.0, 2.0], [2.1, 1.9], [2.0, 2.0]])
    assert plan(load, 2, TideCosts(nodes=4, switch=5.0)) == [2, 2, 2]


def test_the_plan_moves_before_the_tide_when_warming_up_hurts() -> None:
    load = np.array([[1.0, 1.0]] * 2 + [[7.0, 1.0]] * 3)
    chosen = plan(load, 4, TideCosts(nodes=8, warm_up_slots=0.9, idle=0.0))
    assert chosen[1] >= 7


def test_a_day_that_repeats_is_forecast_from_the_day_before() -> None:
    day = np.array([[1.0 + i % 8, 8.0 - i % 8] for i in range(8)])  # its jump at midnight is smoothed
    past = np.concatenate([day, day, day])
    said = forecast(past, slots_a_day=8, ahead=8)
    assert np.corrcoef(said[:, 0], day[:, 0])[0, 1] > 0.8


def test_growth_from_day_to_day_is_carried_on() -> None:
    flat = np.ones((48, 2))
    said = forecast(np.concatenate([flat, flat, flat * 1.1]), slots_a_day=48, ahead=48)
    assert said.mean() > 1.05


def test_the_first_slots_have_a_forecast_too() -> None:
    assert forecast(np.empty((0, 2)), 48, 3).shape == (3, 2)


def test_no_choice_depends_on_a_load_that_comes_later() -> None:
    loads = np.array([(s.prefill, s.decode) for s in fortnight(3)])
    past, week = loads[:SLOTS_A_WEEK], loads[SLOTS_A_WEEK:][: SLOTS_A_DAY * 2]
    changed = week.copy()
    changed[60:] = 0.1
    costs = TideCosts(16)
    plans = [play(w, past, 8, costs, RollingPlanner(costs, SLOTS_A_DAY).next_slot).plan[:60] for w in (week, changed)]
    assert plans[0] == plans[1]


def test_the_reactive_rule_moves_one_node_towards_the_busier_pool() -> None:
    assert reactive(np.array([[8.0, 2.0]]), 8, 16) == 9
    assert reactive(np.array([[2.0, 8.0]]), 8, 16) == 7
    assert reactive(np.array([[5.0, 5.0]]), 8, 16) == 8


def test_the_generated_fortnight_is_the_same_for_a_seed_and_other_for_another() -> None:
    assert fortnight(1) == fortnight(1) != fortnight(2)


def test_the_planner_halves_the_misses_of_the_best_static_split() -> None:
    results = [compare(seed) for seed in range(3)]
    assert statistics.median(r.planned.misses / r.static.misses for r in results) < 0.5


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_planner_halves_the_misses_in_the_median_of_20_seeds() -> None:
    results = [compare(seed) for seed in range(20)]
    assert statistics.median(r.planned.misses / r.static.misses for r in results) < 0.5
