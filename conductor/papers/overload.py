"""Overload: ARX table 3 (rejections by admission policy) and figures 9 and 10 (early rejection oscillates)."""

import numpy as np

from mooncask.conductor.papers.report import Curve, Figure, Inputs, Line, Plot
from mooncask.conductor.simulator.cluster import Cluster, Objectives, Scheduling
from mooncask.conductor.simulator.outcome import Simulation
from mooncask.conductor.simulator.simulate import simulate

POLICIES = ("baseline", "early", "predicted")
PUBLISHED = (4183, 3771, 3589)
SLO = Objectives(ttft_seconds=30.0, tbt_seconds=0.1)
DECODE_SECONDS = 45.0
"""t_d, which is not published: 343 tokens at the SLO's 0.1 s are 34 s; requests in the batch are the longer ones."""


def table_3(inputs: Inputs) -> Figure:
    base = _run(inputs, "baseline", recheck=True)
    runs = {"baseline": base} | {
        f"{name}, {'with' if recheck else 'without'} a check after the prefill": _run(inputs, name, recheck)
        for recheck in (False, True)
        for name in POLICIES[1:]
    }
    lines = []
    for label, run in runs.items():
        rejected = len(run.outcomes) - len(run.completed)
        change = rejected / (len(base.outcomes) - len(base.completed)) - 1
        published = PUBLISHED[POLICIES.index(label.split(",")[0])]
        lines.append(Line(f"rejected, {label}", rejected, published, f"{change:+.1%} of baseline"))
        lines.append(Line(f"goodput, {label}", run.goodput))
    verdict = (
        "As the paper's section 7 describes the policies (early ones decide at arrival only) the ordering holds, and both "
        "differences are larger than published (-9.8 % and -14.2 %). The fewer rejections are not free: they are requests "
        "that then decode above the TBT SLO, so goodput by both SLOs falls. When the decode node may still reject after the "
        "prefill, all three reject alike, because on this trace decoding is the bottleneck and a wasted prefill costs nobody."
    )
    setting = "conversation trace instead of ARX's, twice as fast, [8P+8D], TTFT 30 s, TBT 100 ms, threshold 1"
    return Figure("arx-table3", "rejections under overload", setting, lines, (), verdict)


def _run(inputs: Inputs, admission: str, recheck: bool) -> Simulation:
    scheduling = Scheduling(admission=admission, decode_recheck=recheck, decode_seconds=DECODE_SECONDS)
    cluster = Cluster(prefill_nodes=8, decode_nodes=8, slo=SLO, scheduling=scheduling)
    return simulate(cluster, inputs.conversation(), speed=2.0)


def oscillation(inputs: Inputs) -> Figure:
    """20 machines, 20 minutes: load of both pools over time under early and under predicted rejection."""
    first = [r for r in inputs.conversation() if r.timestamp_ms < 60 * 60 * 1000]
    slo = Objectives(ttft_seconds=10.0, tbt_seconds=0.06)
    lines, plots, swings = [], [], {}
    for name in ("early", "predicted"):
        scheduling = Scheduling(admission=name, decode_recheck=False, decode_seconds=25.0)
        cluster = Cluster(prefill_nodes=6, decode_nodes=14, slo=slo, scheduling=scheduling)
        run = simulate(cluster, first, speed=3.0)
        loads = np.array([(s.prefill, s.decode) for s in run.load if s.time > 120])
        swings[name] = float(loads[:, 1].std())
        lines.append(Line(f"standard deviation of decode load, {name}", swings[name]))
        lines.append(Line(f"correlation of prefill with decode load, {name}", float(np.corrcoef(loads.T)[0, 1])))
        times = [s.time for s in run.load]
        curves = [Curve("prefill", times, [s.prefill for s in run.load])]
        curves.append(Curve("decode", times, [s.decode for s in run.load]))
        plots.append(Plot(f"arx-9-{name}", "seconds", "load / SLO", curves))
    calmer = swings["predicted"] < swings["early"]
    verdict = f"Prediction makes the decode load {'calmer' if calmer else 'no calmer'} on this trace; no numbers are published."
    setting = "conversation trace, 3 times as fast (20 min), [6P+14D]"
    return Figure("arx-9", "oscillation (also figure 10)", setting, lines, plots, verdict)
