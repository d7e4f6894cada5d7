"""`mooncask simulate paper --figure N`, and the page of all figures that `make papers` writes."""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from mooncask.conductor.papers.figures import FIGURES, find_figure
from mooncask.conductor.papers.report import Figure, Inputs, as_markdown, number
from mooncask.conductor.papers.traces import LocalTraces
from mooncask.conductor.simulator.plots import draw, prepare_folder

PREAMBLE = """# The papers' numbers

Ours beside the published value, with the ratio and what can be said of it. Written by `python -m mooncask.conductor.papers`
(`make papers`) from the public conversation trace; the times in brackets are CPU seconds of one core. FAST25 is "Mooncake: Trading More
Storage for Less Computation", ARX is arXiv 2407.00079 v4; they are different experiments. Published values read off figures
are good to about 3 %. TTFT is arrival to first token; TBT is, of each request, the mean of the longest tenth of its gaps
unless P90 is named; goodput is requests completed within both SLOs / all offered. Rejected requests do not return.
"""


def paper_command(
    figure: Annotated[
        str, typer.Option(help=f"{', '.join(FIGURES)}; a bare number means FAST'25.", show_default=False)
    ],
    trace: Annotated[
        Path | None, typer.Option(help="The conversation trace; else $MOONCASK_CONVERSATION_TRACE.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the plots into this folder.", show_default=False)] = None,
) -> None:
    """Reproduce a figure of the papers: ours, the published value, the ratio, and an honest word."""
    _, make = find_figure(figure)
    if out is not None:
        prepare_folder(out, "--out")
    made = make(LocalTraces(trace))
    if out is not None:
        write_plots(out, made)
    print(json.dumps(_document(made), indent=2)) if as_json else _print(made)


def write_page(folder: Path, inputs: Inputs, names: Iterable[str], say: Callable[[str], None]) -> Path:
    """All figures into `folder`: README.md and a PNG a plot. The page is replaced at once, when all are made."""
    prepare_folder(folder, "folder")
    sections = [PREAMBLE]
    for name in names:
        began = time.process_time()
        made = FIGURES[name](inputs)
        seconds = time.process_time() - began
        write_plots(folder, made)
        sections.append(as_markdown(made, seconds))
        say(f"{name}: {seconds:.1f} s")
    page = folder / "README.md"
    unfinished = page.with_suffix(".unfinished")
    unfinished.write_text("\n".join(sections).rstrip() + "\n")
    unfinished.replace(page)
    return page


def write_plots(folder: Path, figure: Figure) -> None:
    for plot in figure.plots:
        path = folder / f"{plot.name}.png"
        draw(path, plot.curves, plot.x_label, plot.y_label, logarithmic=plot.logarithmic)


def _document(figure: Figure) -> dict[str, object]:
    lines = [{**asdict(line), "ratio": line.ratio} for line in figure.lines]
    return {
        "figure": figure.name,
        "title": figure.title,
        "setting": figure.setting,
        "lines": lines,
        "verdict": figure.verdict,
        "not_reproduced": figure.reason,
    }


def _print(figure: Figure) -> None:
    table = Table("", "ours", "published", "ratio", "", title=f"{figure.name}: {figure.title} ({figure.setting})")
    for line in figure.lines:
        table.add_row(line.what, number(line.ours), number(line.published), number(line.ratio), line.word)
    console = Console()
    console.print(table)
    for text in (figure.reason, figure.verdict):
        if text:
            console.print(text)
