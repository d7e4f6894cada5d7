"""Plays a plan of prefill and decode nodes against loads: SLO misses, idle capacity and switches, in node-slots.

All plans have the same nodes all the time: equal node-hours. What a pool can't serve in a slot waits into the next one and
counts as missed in each slot it is late; after `patience_slots` of its capacity the rest is given up.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mooncask.conductor.scheduling.tide import Loads, RollingPlanner, TideCosts, reactive
from mooncask.conductor.simulator.tide_week import SLOTS_A_DAY, SLOTS_A_WEEK, fortnight

Choose = Callable[[Loads, int], int]
"""Prefill nodes of the coming slot from the loads so far and the present number."""


@dataclass(frozen=True, slots=True)
class TideResult:
    misses: float
    """Node-slots of work that was late."""
    idle: float
    switches: int
    plan: tuple[int, ...]


def play(
    loads: Loads, past: Loads, start: int, costs: TideCosts, choose: Choose, patience_slots: float = 0.5
) -> TideResult:
    """Slot after slot: choose from the past only, then serve."""
    backlog, misses, idle, switches = np.zeros(2), 0.0, 0.0, 0
    now, chosen = start, []
    everything = np.concatenate([past, loads])
    for slot in range(len(loads)):
        then = choose(everything[: len(past) + slot], now)
        capacity = _capacity(now, then, costs)
        work = loads[slot] + backlog
        late = np.maximum(work - capacity, 0)
        misses += float(late.sum())
        idle += float(np.maximum(capacity - work, 0).sum())
        backlog = np.minimum(late, patience_slots * capacity)
        switches += abs(then - now)
        now = then
        chosen.append(then)
    return TideResult(misses, idle, switches, tuple(chosen))


def _capacity(now: int, then: int, costs: TideCosts) -> Loads:
    """Nodes that serve on each side, those that changed sides only after their warm-up."""
    full = np.array([then, costs.nodes - then], dtype=np.float64)
    if then != now:
        full[0 if then > now else 1] -= abs(then - now) * costs.warm_up_slots
    return full


@dataclass(frozen=True, slots=True)
class TideComparison:
    seed: int
    static: TideResult
    reactive: TideResult
    planned: TideResult


def compare(seed: int, nodes: int = 16) -> TideComparison:
    """The second week of a fortnight: best static split in hindsight, reactive rule, and the rolling planner."""
    costs = TideCosts(nodes)
    loads = np.array([(slot.prefill, slot.decode) for slot in fortnight(seed, nodes)])
    past, week = loads[:SLOTS_A_WEEK], loads[SLOTS_A_WEEK:]
    statics = [play(week, past, split, costs, lambda _, now: now) for split in range(1, nodes)]
    planner = RollingPlanner(costs, SLOTS_A_DAY)
    start = nodes // 2
    return TideComparison(
        seed,
        min(statics, key=lambda result: result.misses),
        play(week, past, start, costs, lambda seen, now: reactive(seen, now, nodes)),
        play(week, past, start, costs, planner.next_slot),
    )
