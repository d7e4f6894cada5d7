"""`mooncask plan`: the cheapest DRAM, NVMe and prefill nodes that meet an SLO under a trace, as a table, JSON and a plot.

Errors are MooncaskErrors of exit status 2, raised before the long work and before anything is written.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mooncask.conductor.models.analytical import MODELS, ModelShape, analytical_prefill, find_gpu, find_model
from mooncask.conductor.planner.curves import Curve, Sample, miss_ratio_curve, sample_trace
from mooncask.conductor.planner.planner import (
    GIB,
    Candidate,
    Objective,
    Plan,
    best_by_policy,
    curve_capacities,
    grid_gib,
    make_plan,
)
from mooncask.conductor.planner.prices import Prices, load_prices
from mooncask.conductor.planner.queue import Hardware, make_load
from mooncask.conductor.replay.replay import BLOCK_TOKENS
from mooncask.conductor.simulator.cluster import check_name
from mooncask.conductor.simulator.plots import draw, require_matplotlib
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument
from mooncask.tiers.policies import POLICY_NAMES

ROWS = 10
"""Candidates in the table; --json has all."""


@dataclass(frozen=True, slots=True)
class _Line:
    """A policy's hit rate by GiB, for the plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def plan_command(
    trace: Annotated[Path, typer.Argument(help="A trace in the Mooncake JSONL form.", show_default=False)],
    prices: Annotated[Path, typer.Option(help="What hardware costs, in TOML; see docs/plans.", show_default=False)],
    slo_ttft: Annotated[
        float, typer.Option(help="Seconds to the first token that are to be kept.", show_default=False)
    ],
    slo_metric: Annotated[str, typer.Option(help="Whose: mean or p90.")] = "p90",
    policy: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(POLICY_NAMES)}; repeatable. Without it, all.", show_default=False),
    ] = None,
    model: Annotated[str, typer.Option(help=f"One of {', '.join(MODELS)}.")] = "llama3-70b",
    speed: Annotated[float, typer.Option(help="Replay so many times as fast.")] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Share of the blocks to sample. Without it, about 8192 blocks.", show_default=False),
    ] = None,
    block_tokens: Annotated[int, typer.Option(help="Tokens that one hash id stands for.")] = BLOCK_TOKENS,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all candidates instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the miss-ratio curves into this PNG file.", show_default=False)
    ] = None,
) -> None:
    """Find the cheapest mix of DRAM, NVMe and prefill nodes that meets an SLO for the time to first token."""
    if slo_metric not in ("mean", "p90"):
        raise BadArgument("--slo-metric", repr(slo_metric), "one of mean, p90")
    objective = Objective(slo_ttft, "mean" if slo_metric == "mean" else "p90")
    names = list(dict.fromkeys(policy or POLICY_NAMES))
    for name in names:
        check_name("--policy", name, POLICY_NAMES)
    if block_tokens < 1:
        raise BadArgument("--block-tokens", str(block_tokens), "at least 1")
    shape, costs = find_model(model), load_prices(prices)
    if plot is not None:
        _check_plot(plot)
    requests = list(read_trace(trace))
    load = (requests, _sample(requests, rate))
    found, curves = _find(load, names, shape, costs, objective, block_tokens, speed)
    block_bytes = block_tokens * shape.kv_bytes_per_token
    if plot is not None:
        draw(plot, [_line(curve, block_bytes) for curve in curves], "GiB of cache", "miss ratio", logarithmic=True)
    if as_json:
        _print_json(trace, load[1], curves, found, objective, block_bytes)
    else:
        _print_table(found, load[1], objective)


def _sample(requests: Sequence[Request], rate: float | None) -> Sample:
    sample = sample_trace(requests, rate)
    if sample.reuses and not sample.sampled_reuses:
        raise BadArgument(
            "--rate", str(sample.rate), f"the sample has none of the trace's {sample.reuses} reuses; more"
        )
    return sample


def _find(
    load: tuple[Sequence[Request], Sample],
    names: Sequence[str],
    shape: ModelShape,
    prices: Prices,
    objective: Objective,
    block_tokens: int,
    speed: float,
) -> tuple[Plan, list[Curve]]:
    requests, sample = load
    block_bytes = block_tokens * shape.kv_bytes_per_token
    served = make_load(requests, sample, _hardware(shape, prices), block_tokens=block_tokens, speed=speed)
    sizes = grid_gib(sample.different, block_bytes)
    capacities = curve_capacities(sizes, block_bytes)
    curves = [miss_ratio_curve(sample, name, capacities) for name in names]
    plan = make_plan(curves, served, prices, objective, sizes_gib=sizes, block_bytes=block_bytes)
    return plan, curves


def _hardware(shape: ModelShape, prices: Prices) -> Hardware:
    """KV in a pool comes over the network to the host and from there to the GPUs: the slowest part counts."""
    node = prices.node
    dram = 1e9 * min(node.network_gigabytes_per_second, node.host_to_device_gigabytes_per_second)
    prefill = analytical_prefill(shape, find_gpu(node.gpu), node.gpus, node.mfu)
    nvme = 1e9 * prices.nvme.gigabytes_per_second
    return Hardware(prefill, shape.layers, shape.kv_bytes_per_token, dram, min(dram, nvme))


def _check_plot(path: Path) -> None:
    require_matplotlib()
    if not path.parent.is_dir() or path.is_dir():
        raise BadArgument("--plot", str(path), "a file in a folder that exists")


def _line(curve: Curve, block_bytes: int) -> _Line:
    gib = [point.capacity_blocks * block_bytes / GIB for point in curve.points]
    return _Line(curve.policy, gib, [1 - point.hit_rate for point in curve.points])


def _print_json(
    trace: Path, sample: Sample, curves: Sequence[Curve], plan: Plan, objective: Objective, block_bytes: int
) -> None:
    document = {
        "trace": str(trace),
        "objective": asdict(objective),
        "block_bytes": block_bytes,
        "sample": _sample_facts(sample),
        "curves": [asdict(curve) for curve in curves],
        "chosen": asdict(plan.chosen) if plan.chosen else None,
        "candidates": [asdict(candidate) for candidate in plan.candidates],
    }
    print(json.dumps(document, indent=2))


def _sample_facts(sample: Sample) -> dict[str, float]:
    return {
        "rate": sample.rate,
        "block_accesses": sample.accesses,
        "sampled_block_accesses": sample.sampled_accesses,
        "different_blocks": sample.different,
        "shared_blocks": sample.shared,
        "unlimited_hit_rate": (sample.shared_hits + sample.reuses) / sample.accesses,
    }


def _print_table(plan: Plan, sample: Sample, objective: Objective) -> None:
    """The cheapest candidates, then the best of each other policy and what no cache at all would need."""
    console = Console(highlight=False, soft_wrap=True)
    best = best_by_policy(plan)
    shown = [candidate for candidate in plan.candidates if candidate.meets][:ROWS]
    shown += [candidate for candidate in best.values() if candidate not in shown]
    uncached = next(candidate for candidate in plan.candidates if candidate.dram_gib == 0)
    shown += [] if uncached in shown else [uncached]
    table = Table(box=None, pad_edge=False)
    for heading in ("", "policy", "DRAM GiB", "NVMe GiB", "nodes", "kept", "mean s", "P90 s", "busy", "per month"):
        table.add_column(heading, justify="left" if heading in ("", "policy") else "right", no_wrap=True)
    for candidate in shown:
        table.add_row(*_row(candidate, candidate == plan.chosen))
    console.print(table)
    target = f"{objective.metric} TTFT of {objective.ttft_seconds:g} s"
    console.print(_verdict(plan, uncached, target), markup=False)
    console.print(
        f"curves from {sample.sampled_accesses} of {sample.accesses} block accesses (rate {sample.rate:.3g}); "
        f"a cache without limit would hit {(sample.shared_hits + sample.reuses) / sample.accesses:.4f}"
    )


def _row(found: Candidate, chosen: bool) -> tuple[str, ...]:
    mark = ">" if chosen else "" if found.meets else "misses"
    return (
        mark,
        found.policy,
        str(found.dram_gib),
        str(found.nvme_gib),
        str(found.nodes),
        f"{found.kept:.1%}",
        f"{found.ttft_mean:.2f}",
        f"{found.ttft_p90:.2f}",
        f"{found.busy:.0%}",
        f"${found.dollars_per_month:,.0f}",
    )


def _verdict(plan: Plan, uncached: Candidate, target: str) -> str:
    if plan.chosen is None:
        return (
            f"no mix with at most {plan.candidates[0].nodes} nodes keeps the {target}; use faster nodes, or allow more"
        )
    saved = uncached.dollars_per_month - plan.chosen.dollars_per_month
    if not uncached.meets:
        return f"the {target} is kept; without a cache no number of nodes that can be had keeps it"
    return f"the {target} is kept; ${saved:,.0f} a month less than without a cache"
