"""Tide planning: how many nodes prefill and how many decode in each time slot of the day. Pure.

A plan is the number of prefill nodes a slot; the others decode. A node that changes sides warms up first (weights are
there, but its queue drains and its cache is cold) and serves neither side meanwhile; each change also has a fixed price.
`plan` finds the cheapest plan for a forecast by dynamic programming; `RollingPlanner` learns the forecast from past days
and plans again at every slot.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Loads = npt.NDArray[np.float64]
"""Shape (slots, 2): prefill and decode work of each slot in nodes that it would keep exactly busy."""


@dataclass(frozen=True, slots=True)
class TideCosts:
    """What a plan is judged by. Misses and idle are counted in node-slots.

    `headroom` is the share of a node that the planner leaves free: latency rises before a pool is exactly busy.
    """

    nodes: int
    warm_up_slots: float = 0.1
    miss: float = 1.0
    idle: float = 0.01
    switch: float = 0.02
    headroom: float = 0.05
    forecast_error: float = 0.12
    """Relative standard deviation of load around its forecast."""


ERROR_POINTS = (-1.6, -0.8, 0.0, 0.8, 1.6)
ERROR_WEIGHTS = (0.11, 0.24, 0.30, 0.24, 0.11)
"""A bell curve in five points."""


def slot_costs(load: Loads, costs: TideCosts) -> Loads:
    """Expected cost of each slot (rows) with each number of prefill nodes from 0 to all (columns), without switching."""
    prefill = np.arange(costs.nodes + 1, dtype=np.float64)
    total = np.zeros((len(load), costs.nodes + 1))
    for point, weight in zip(ERROR_POINTS, ERROR_WEIGHTS, strict=True):
        factor = (1 + point * costs.forecast_error) / (1 - costs.headroom)
        for side, nodes in ((0, prefill), (1, costs.nodes - prefill)):
            over = load[:, side : side + 1] * factor - nodes
            total += weight * (costs.miss * np.maximum(over, 0) + costs.idle * np.maximum(-over, 0))
    return total


def switching_costs(load: Loads, costs: TideCosts) -> Loads:
    """Shape (slots, from, to): price of changing sides, and the misses while the changed nodes warm up."""
    prefill = np.arange(costs.nodes + 1)
    moved = np.abs(prefill[:, None] - prefill[None, :])
    lost_side = (prefill[None, :] < prefill[:, None]).astype(int)
    short = np.minimum(prefill[:, None], prefill[None, :])
    short_decode = costs.nodes - np.maximum(prefill[:, None], prefill[None, :])
    over = np.maximum(load[:, 0, None, None] - short, 0) - np.maximum(
        load[:, 0, None, None] - prefill[None, None, :], 0
    )
    decode = np.maximum(load[:, 1, None, None] - short_decode, 0)
    decode = decode - np.maximum(load[:, 1, None, None] - (costs.nodes - prefill)[None, None, :], 0)
    warming = np.where(lost_side[None], decode, over)
    return np.asarray(costs.switch * moved[None] + costs.miss * costs.warm_up_slots * warming)


def plan(load: Loads, start: int | None, costs: TideCosts) -> list[int]:
    """Prefill nodes of each slot, cheapest in sum; `start` is how many there are before the first slot (None: free choice).

    O(slots * nodes^2).
    """
    own, switch = slot_costs(load, costs), switching_costs(load, costs)
    best = own[0] + (0.0 if start is None else switch[0, start])
    came_from = np.zeros((len(load), costs.nodes + 1), dtype=int)
    for slot in range(1, len(load)):
        options = best[:, None] + switch[slot]
        came_from[slot] = options.argmin(axis=0)
        best = options.min(axis=0) + own[slot]
    chosen = [int(best.argmin())]
    for slot in range(len(load) - 1, 0, -1):
        chosen.append(int(came_from[slot, chosen[-1]]))
    return chosen[::-1]


def forecast(past: Loads, slots_a_day: int, ahead: int) -> Loads:
    """The next `ahead` slots: seasonal mean by time of day and kind of day, times the trend.

    A slot's mean is over the same weekday a week ago where that is known and else over all past days, weekdays and
    weekends apart as far as they have been seen. The trend is the mean of the last day against what its season says.
    """
    now = len(past)
    seasonal = np.array([_seasonal(past, slots_a_day, now + i, now) for i in range(ahead)])
    return seasonal * _trend(past, slots_a_day, now)


def _seasonal(past: Loads, slots_a_day: int, slot: int, now: int) -> Loads:
    """Mean of the same slot of earlier weeks, smoothed with its neighbours; of earlier days while there is no week."""
    for period in (7 * slots_a_day, slots_a_day):
        first = slot - period * -(-(slot - now + 1) // period)
        same = [past[i - 1 : i + 2].mean(axis=0) for i in range(first, 0, -period)]
        if same:
            return np.asarray(np.mean(same, axis=0))
    return np.asarray(past[-slots_a_day:].mean(axis=0) if now else np.ones(2))


def _trend(past: Loads, slots_a_day: int, now: int) -> Loads:
    """Load of the last day / what the season said of it, for each pool; 1 while there is nothing to compare with."""
    begin = now - slots_a_day
    if begin < slots_a_day:
        return np.ones(2)
    said = np.array([_seasonal(past, slots_a_day, begin + i, begin) for i in range(slots_a_day)])
    ratio = past[begin:].sum(axis=0) / np.maximum(said.sum(axis=0), 1e-9)
    return np.asarray(np.clip(ratio, 0.8, 1.25))


class RollingPlanner:
    """Plans again at each slot from what has been seen. Not safe for concurrent use; O(horizon * nodes^2) a slot.

    The forecast of the next slots is corrected by how far off the last one was, an error that fades with
    `persistence` a slot: bursts last for hours.
    """

    def __init__(self, costs: TideCosts, slots_a_day: int, horizon_slots: int = 12, persistence: float = 0.8) -> None:
        self._costs, self._slots_a_day, self._horizon = costs, slots_a_day, horizon_slots
        self._persistence = persistence

    def next_slot(self, past: Loads, now: int | None) -> int:
        """Prefill nodes of the coming slot, given all loads so far and the present number."""
        expected = forecast(past, self._slots_a_day, self._horizon)
        if len(past) > self._slots_a_day:
            said = forecast(past[:-1], self._slots_a_day, 1)[0]
            off = np.clip(past[-1] / np.maximum(said, 1e-9), 0.5, 2.0)
            fading = self._persistence ** np.arange(1, self._horizon + 1)
            expected = expected * off ** fading[:, None]
        return plan(expected, now, self._costs)[0]


def reactive(past: Loads, now: int, nodes: int, band: float = 0.15) -> int:
    """The rule to beat: one node changes sides when one pool's last utilisation exceeds the other's by more than `band`."""
    if not len(past):
        return now
    prefill, decode = past[-1]
    busy, other = prefill / max(now, 1e-9), decode / max(nodes - now, 1e-9)
    if busy > other + band and now < nodes - 1:
        return now + 1
    if other > busy + band and now > 1:
        return now - 1
    return now
