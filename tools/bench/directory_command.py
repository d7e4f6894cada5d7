"""`mooncask bench directory`: what a directory of nodes takes, and what a thousand of them would ask of it."""

import importlib.metadata
import json
import shlex
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from mooncask.tools.bench.directory_model import Costs, Line, Load, model, model_of_list
from mooncask.tools.bench.directory_plot import plot_growth
from mooncask.tools.bench.directory_run import FULL, QUICK, DirectoryFindings, Point, run
from mooncask.tools.bench.options import JsonFile, Quick
from mooncask.tools.bench.report import document, print_findings
from mooncask.tools.output import console, stages


def directory(
    json_file: JsonFile = None,
    quick: Quick = False,
    nodes: Annotated[
        int | None, typer.Option(min=2, max=1 << 20, help="Also say what so many nodes would ask of it, by a model.")
    ] = None,
    published: Annotated[float, typer.Option(min=0, help="For the model: blocks that come to a node a second.")] = 50.0,
    lookups: Annotated[float, typer.Option(min=0, help="For the model: look-ups of a node a second.")] = 20.0,
    held: Annotated[float, typer.Option(min=0, help="For the model: blocks that a node has.")] = 100_000.0,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the growth into this file; needs matplotlib.", metavar="FILE")
    ] = None,
) -> None:
    """Measure a directory's announce rate, look-up time and memory as its entries grow to 2 million, on servers of its own.

    With --nodes, what is measured at 16 nodes is put into a model of that many, which says what gives out first. The full run
    takes two minutes and 4 GiB of memory.
    """
    with tempfile.TemporaryDirectory(prefix="mooncask-bench-") as folder, stages() as progress:
        found = run(QUICK if quick else FULL, Path(folder), progress)
    print_findings(console(), found.findings)
    console().print(_growth_table(found.growth))
    models = _modelled(found, nodes, Load(published, lookups, held))
    if json_file is not None:
        text = document(found.findings, shlex.join(["mooncask", *sys.argv[1:]]), importlib.metadata.version("mooncask"))
        text |= {**found.as_json(), "model": {how: [asdict(line) for line in lines] for how, lines in models.items()}}
        json_file.write_text(json.dumps(text, indent=2, ensure_ascii=False) + "\n")
    if plot is not None:
        plot_growth(found.growth, plot)


def _modelled(found: DirectoryFindings, nodes: int | None, load: Load) -> dict[str, list[Line]]:
    if nodes is None or found.costs is None:
        return {}
    console().print(_costs_table(found.costs))
    models = {"a directory": model(found.costs, load, nodes), "a static list": model_of_list(found.costs, load, nodes)}
    for how, lines in models.items():
        console().print(_model_table(lines, nodes, load, how))
        if lines[0].breaks_at is not None:
            console().print(f"with {how} the first to give out: {lines[0].what}, at {lines[0].breaks_at:,} nodes")
    return models


def _growth_table(points: list[Point]) -> Table:
    table = Table(title="Growth", title_justify="left")
    for heading in ("servers", "nodes", "entries", "announced keys/s", "bytes a key", "look-up p50 µs", "p99 µs"):
        table.add_column(heading, justify="right")
    for point in points:
        table.add_row(
            str(point.servers),
            str(point.nodes),
            f"{point.entries:,}",
            f"{point.announce_rate:,.0f}",
            f"{point.key_bytes:.0f}",
            f"{point.lookup_p50_us:,.0f}",
            f"{point.lookup_p99_us:,.0f}",
        )
    return table


def _costs_table(costs: Costs) -> Table:
    table = Table(title="Measured costs, the model's constants", title_justify="left")
    table.add_column("what")
    table.add_column("value", justify="right")
    for name, value in asdict(costs).items():
        shown = f"{value * 1e6:,.2f} µs" if name.endswith("cpu") else f"{value:,.1f}"
        table.add_row(name.replace("_", " "), shown)
    return table


def _model_table(lines: list[Line], nodes: int, load: Load, how: str) -> Table:
    title = (
        f"Model of {nodes:,} nodes with {how}; each publishes {load.published_per_second:g} blocks/s, looks up {load.lookups_per_second:g} "
        f"times/s, has {load.held:,.0f} blocks"
    )
    table = Table(title=title, title_justify="left")
    table.add_column("what")
    for heading in (f"at {nodes:,} nodes", "limit", "", "gives out at"):
        table.add_column(heading, justify="right" if heading else "left")
    for line in lines:
        at = f"{line.breaks_at:,} nodes" if line.breaks_at is not None else "never"
        table.add_row(line.what, f"{line.used:,.4g}", f"{line.limit:,.4g}", line.unit, at)
    return table
