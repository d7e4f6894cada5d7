"""`mooncask simulate`: a cluster from TOML under a trace, as a summary, JSON and plots.

`simulate_command` is mounted by the command line; errors are MooncaskErrors of exit status 2, raised before anything is
written. Figures of the papers are `mooncask.conductor.papers.command`.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.table import Table

from mooncask.conductor.simulator.cluster import load_cluster
from mooncask.conductor.simulator.outcome import Simulation
from mooncask.conductor.simulator.plots import draw_simulation, prepare_folder
from mooncask.conductor.simulator.simulate import Progress, simulate
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.errors import BadArgument


def simulate_command(
    cluster: Annotated[Path, typer.Argument(help="The cluster's description in TOML.", show_default=False)],
    trace: Annotated[Path, typer.Argument(help="A trace in the Mooncake JSONL form.", show_default=False)],
    speed: Annotated[float, typer.Option(help="Replay so many times as fast.")] = 1.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[
        Path | None, typer.Option(help="Also write summary.json and plots into this folder.", show_default=False)
    ] = None,
) -> None:
    """Simulate a cluster under a trace: TTFT, TBT, hit rate, goodput and rejections."""
    if not 0 < speed < float("inf"):
        raise BadArgument("--speed", str(speed), "above 0")
    description, requests = load_cluster(cluster), list(read_trace(trace))
    if out is not None:
        prepare_folder(out, "--out")
    with _progress(len(requests), not as_json) as advance:
        result = simulate(description, requests, speed=speed, progress=advance)
    if out is not None:
        write_results(out, result)
    print(json.dumps(result.summary(), indent=2)) if as_json else print_summary(result)


def write_results(folder: Path, result: Simulation) -> Sequence[Path]:
    """summary.json and the plots; raises BadArgument when the folder can't be written."""
    try:
        plots = draw_simulation(folder, result)
        summary = folder / "summary.json"
        summary.write_text(json.dumps(result.summary(), indent=2) + "\n")
    except OSError as exc:
        raise BadArgument("--out", str(folder), f"cannot be written: {exc.strerror}") from exc
    return [summary, *plots]


def print_summary(result: Simulation) -> None:
    """The numbers people look at first."""
    table = Table("", "mean", "p50", "p90", "p99", title=f"{result.notation}, {len(result.outcomes)} requests")
    for label, field in (
        ("TTFT s", "ttft"),
        ("TBT s, longest tenth", "tbt_longest_tenth"),
        ("TBT s, P90", "tbt_p90"),
        ("prefill s", "prefill_seconds"),
    ):
        spread = [result.mean(field), *(result.quantile(field, q) for q in (0.5, 0.9, 0.99))]
        table.add_row(label, *(f"{value:.4g}" for value in spread))
    console = Console()
    console.print(table)
    console.print(
        f"goodput {result.goodput:.1%}   hit rate {result.hit_rate:.1%}   rejected {result.rejected() or 'none'}"
    )


@contextmanager
def _progress(total: int, shown: bool) -> Iterator[Progress]:
    with RichProgress(console=Console(stderr=True), disable=not shown, transient=True) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.advance(task, count)
