"""Tide planning on 20 generated weeks: misses against the best static split in hindsight and a reactive rule."""

import statistics

from mooncask.conductor.papers.report import Curve, Figure, Inputs, Line, Plot
from mooncask.conductor.simulator.tide import TideComparison, compare

SEEDS = range(20)


def tide(inputs: Inputs) -> Figure:
    """Not from the papers, which name the tide and leave it."""
    results = [compare(seed) for seed in SEEDS]
    against_static = [r.planned.misses / r.static.misses for r in results]
    against_reactive = [r.planned.misses / r.reactive.misses for r in results]
    lines = [
        Line("median misses, planned / best static split", statistics.median(against_static), 0.5, "target: at most"),
        Line("worst seed", max(against_static)),
        Line("median misses, planned / reactive rule", statistics.median(against_reactive)),
        Line("seeds where planned beats reactive", sum(ratio < 1 for ratio in against_reactive)),
        *(Line(f"median {what}", statistics.median(values)) for what, values in _totals(results).items()),
    ]
    curves = [
        Curve(name, list(SEEDS), [getattr(r, name).misses for r in results])
        for name in ("static", "reactive", "planned")
    ]
    plot = Plot("tide", "seed", "node-slots of late work in a week", curves)
    setting = "16 nodes, a week of 336 slots, 20 seeds, equal node-hours, learned from the week before"
    verdict = (
        "Late work is counted in node-slots: what the busy pool could not serve in its slot. The published column is this "
        "project's target. The generated loads shift between the pools over the day, which is what a static split can't follow."
    )
    return Figure("tide", "planning the split ahead of the tide", setting, lines, [plot], verdict)


def _totals(results: list[TideComparison]) -> dict[str, list[float]]:
    plans = {"static": [r.static for r in results], "reactive": [r.reactive for r in results]}
    plans["planned"] = [r.planned for r in results]
    totals = {f"misses, {name}": [p.misses for p in played] for name, played in plans.items()}
    totals |= {f"idle, {name}": [p.idle for p in played] for name, played in plans.items()}
    return totals | {f"switches, {name}": [float(p.switches) for p in played] for name, played in plans.items()}
