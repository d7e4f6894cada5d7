"""`mooncask plan`: the cheapest DRAM, NVMe, prefill and decode nodes that meet SLOs under a trace, as a table, JSON and a plot.

Errors are MooncaskErrors of exit status 2, raised before the long work and before anything is written.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from mooncask.conductor.models.analytical import (
    MODELS,
    ModelShape,
    analytical_decode,
    analytical_prefill,
    find_gpu,
    find_model,
    kv_capacity_tokens,
)
from mooncask.conductor.models.fitted import FITTED_DECODE
from mooncask.conductor.planner.curves import Curve, Sample, miss_ratio_curve, sample_trace
from mooncask.conductor.planner.decode import (
    TBT_METRICS,
    DecodeHardware,
    DecodePlan,
    Prefilled,
    TbtMetric,
    TbtObjective,
    check_decodable,
    plan_decode,
)
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
from mooncask.conductor.planner.prices import HOURS_PER_MONTH, Prices, load_prices
from mooncask.conductor.planner.queue import Hardware, Load, make_load, times_to_first_token
from mooncask.conductor.replay.replay import block_tokens_of
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
    slo_tbt: Annotated[
        float | None,
        typer.Option(
            help="Seconds between tokens that nine tenths are to keep: also plan decode nodes.", show_default=False
        ),
    ] = None,
    tbt_metric: Annotated[
        str, typer.Option(help="A request's TBT: longest-tenth (its mean) or p90.")
    ] = "longest-tenth",
    speed: Annotated[float, typer.Option(help="Replay so many times as fast.")] = 1.0,
    rate: Annotated[
        float | None,
        typer.Option(help="Share of the blocks to sample. Without it, about 8192 blocks.", show_default=False),
    ] = None,
    block_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that one hash id stands for. Without it, those of a daemon's recording, else 512.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with all candidates instead of a table.")] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the miss-ratio curves into this PNG file.", show_default=False)
    ] = None,
) -> None:
    """Find the cheapest mix of DRAM, NVMe and nodes that meets SLOs for the first token and between tokens."""
    if slo_metric not in ("mean", "p90"):
        raise BadArgument("--slo-metric", repr(slo_metric), "one of mean, p90")
    objective = Objective(slo_ttft, "mean" if slo_metric == "mean" else "p90")
    names = list(dict.fromkeys(policy or POLICY_NAMES))
    for name in names:
        check_name("--policy", name, POLICY_NAMES)
    if block_tokens is not None and block_tokens < 1:
        raise BadArgument("--block-tokens", str(block_tokens), "at least 1")
    shape, costs = find_model(model), load_prices(prices)
    between = None if slo_tbt is None else TbtObjective(slo_tbt, _metric(tbt_metric))
    if plot is not None:
        _check_plot(plot)
    requests = list(read_trace(trace))
    tokens = block_tokens or block_tokens_of(requests)
    question = Question(requests, _sample(requests, rate), shape, costs, tokens, speed)
    if between is not None:
        check_decodable(requests, question.decode_hardware)
    found, curves = _find(question, names, objective)
    decode = None if between is None else _find_decode(question, found, curves, between)
    block_bytes = question.block_bytes
    if plot is not None:
        draw(plot, [_line(curve, block_bytes) for curve in curves], "GiB of cache", "miss ratio", logarithmic=True)
    if as_json:
        objectives = {"objective": asdict(objective), "tbt_objective": asdict(between) if between else None}
        _print_json(trace, question, curves, found, decode, objectives)
    else:
        _print_table(found, question.sample, objective)
        if between is not None and decode is not None:
            _print_decode(decode, between, found)


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be planned for."""

    requests: Sequence[Request]
    sample: Sample
    shape: ModelShape
    prices: Prices
    block_tokens: int
    speed: float

    @property
    def block_bytes(self) -> int:
        return self.block_tokens * self.shape.kv_bytes_per_token

    @property
    def load(self) -> Load:
        hardware = _hardware(self.shape, self.prices)
        return make_load(self.requests, self.sample, hardware, block_tokens=self.block_tokens, speed=self.speed)

    @property
    def decode_hardware(self) -> DecodeHardware:
        decode = self.prices.decode
        gpu = find_gpu(decode.gpu)
        analytical = analytical_decode(self.shape, gpu, decode.gpus, decode.efficiency)
        step = FITTED_DECODE if decode.costs == "fitted" else analytical
        return DecodeHardware(step, kv_capacity_tokens(self.shape, gpu, decode.gpus, decode.memory_share))


def _sample(requests: Sequence[Request], rate: float | None) -> Sample:
    sample = sample_trace(requests, rate)
    if sample.reuses and not sample.sampled_reuses:
        raise BadArgument(
            "--rate", str(sample.rate), f"the sample has none of the trace's {sample.reuses} reuses; more"
        )
    return sample


def _find(question: Question, names: Sequence[str], objective: Objective) -> tuple[Plan, list[Curve]]:
    load, block_bytes = question.load, question.block_bytes
    sizes = grid_gib(question.sample.different, block_bytes)
    capacities = curve_capacities(sizes, block_bytes)
    curves = [miss_ratio_curve(question.sample, name, capacities) for name in names]
    plan = make_plan(curves, load, question.prices, objective, sizes_gib=sizes, block_bytes=block_bytes)
    return plan, curves


def _find_decode(question: Question, plan: Plan, curves: Sequence[Curve], objective: TbtObjective) -> DecodePlan:
    """Behind the prefills of the cheapest mix; the KV comes over the network when the first token is there."""
    mix, load, decode = plan.candidates[0], question.load, question.prices.decode
    curve = next((curve for curve in curves if curve.policy == mix.policy), None)
    kept = 0.0 if curve is None else curve.kept(mix.dram_gib * GIB / question.block_bytes)
    service = load.nothing if curve is None else load.service(kept, mix.kept)
    speed = 1e9 * question.prices.node.network_gigabytes_per_second
    sent = [request.input_length * question.shape.kv_bytes_per_token / speed for request in question.requests]
    first_token = load.arrivals + times_to_first_token(load.arrivals, service, mix.nodes)
    return plan_decode(
        question.requests,
        Prefilled(first_token, first_token + np.array(sent)),
        question.decode_hardware,
        objective,
        nodes_max=decode.nodes_max,
        dollars_per_node_month=decode.dollars_per_hour * HOURS_PER_MONTH,
    )


def _hardware(shape: ModelShape, prices: Prices) -> Hardware:
    """KV in a pool comes over the network to the host and from there to the GPUs: the slowest part counts."""
    node = prices.node
    dram = 1e9 * min(node.network_gigabytes_per_second, node.host_to_device_gigabytes_per_second)
    prefill = analytical_prefill(shape, find_gpu(node.gpu), node.gpus, node.mfu)
    nvme = 1e9 * prices.nvme.gigabytes_per_second
    return Hardware(prefill, shape.layers, shape.kv_bytes_per_token, dram, min(dram, nvme))


def _metric(name: str) -> TbtMetric:
    for metric in TBT_METRICS:
        if name == metric:
            return metric
    raise BadArgument("--tbt-metric", repr(name), f"one of {', '.join(TBT_METRICS)}")


def _check_plot(path: Path) -> None:
    require_matplotlib()
    if not path.parent.is_dir() or path.is_dir():
        raise BadArgument("--plot", str(path), "a file in a folder that exists")


def _line(curve: Curve, block_bytes: int) -> _Line:
    gib = [point.capacity_blocks * block_bytes / GIB for point in curve.points]
    return _Line(curve.policy, gib, [1 - point.hit_rate for point in curve.points])


def _print_json(
    trace: Path,
    question: Question,
    curves: Sequence[Curve],
    plan: Plan,
    decode: DecodePlan | None,
    objectives: Mapping[str, object],
) -> None:
    document = {
        "trace": str(trace),
        **objectives,
        "block_bytes": question.block_bytes,
        "sample": _sample_facts(question.sample),
        "curves": [asdict(curve) for curve in curves],
        "chosen": asdict(plan.chosen) if plan.chosen else None,
        "decode": asdict(decode) if decode else None,
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


def _print_decode(decode: DecodePlan, objective: TbtObjective, plan: Plan) -> None:
    console = Console(highlight=False, soft_wrap=True)
    kept = "keep" if decode.meets else "are all there may be, and miss"
    measure = "mean of the longest tenth of gaps" if objective.metric == "longest-tenth" else "P90 of gaps"
    total = plan.candidates[0].dollars_per_month + decode.dollars_per_month
    console.print(
        f"decode: {decode.nodes} nodes {kept} a TBT of {1e3 * objective.tbt_seconds:g} ms ({measure}) for nine tenths of the "
        f"requests: {1e3 * decode.tbt:.1f} ms, mean {1e3 * decode.tbt_mean:.1f} ms, KV memory up to {decode.kv_peak:.0%} full",
        markup=False,
    )
    console.print(f"${decode.dollars_per_month:,.0f} a month for decode, ${total:,.0f} with the cheapest mix above")
