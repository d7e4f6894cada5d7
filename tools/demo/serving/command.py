"""`mooncask demo-serve`: a Conductor with four workers under a load of chats; everything it started ends with it."""

import json
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mooncask.conductor.scheduling.pause import PAUSES
from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.errors import BadArgument, MooncaskError
from mooncask.tools.demo.command import Progress, end_by_signal
from mooncask.tools.demo.serving.chats import Shape
from mooncask.tools.demo.serving.checking import Checked, check
from mooncask.tools.demo.serving.experiment import (
    PAUSE_TTFT_FACTOR,
    TTFT_FACTOR,
    Plan,
    Results,
    measure_capacity,
    run_all,
)
from mooncask.tools.demo.serving.processes import Cores, ServingStage
from mooncask.tools.demo.serving.report import HEADINGS, document, markdown, rows
from mooncask.tools.demo.serving.variant import Variant
from mooncask.tools.output import console, error_console

RESULT_FILE = Path("build/demo-serve.json")
PLACEMENTS = ("random", "load-balancing", "cache-aware", "kvcache-centric")
ADMISSIONS = ("none", "baseline", "early", "predicted")
LOAD, OVERLOAD, PAUSE_LOAD = 0.7, 2.0, 0.9


def demo_serve(
    json_file: Annotated[
        Path, typer.Option("--json", help="Where the results go; the table goes beside it as .md.", metavar="FILE")
    ] = RESULT_FILE,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, two policies, 12 requests each.")] = False,
    overload: Annotated[
        bool, typer.Option("--overload", help="Twice the sustainable rate, and the admission policies compared.")
    ] = False,
    pause: Annotated[
        bool,
        typer.Option(
            "--pause", help="Prefill and decode of a node on one core, and pauses of decode for it on and off."
        ),
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, max=20, help="How many loads are drawn, one after the other.")] = 3,
    chats: Annotated[int, typer.Option(min=1, max=200, help="Of three turns each.")] = 20,
    load: Annotated[
        float, typer.Option(help="In multiples of the sustainable rate; 0: 0.7, 2 with --overload, 0.9 with --pause.")
    ] = 0.0,
) -> None:
    """Serve chats through a Conductor, two prefill and two decode workers, and compare policies.

    Fetches the model once (93 MB), needs 8 GiB of memory, and takes half an hour on two quiet cores. Leaves nothing running.
    """
    if load < 0:
        raise BadArgument("--load", str(load), "0 or more")
    if overload and pause:
        raise BadArgument("--overload", "given with --pause", "one of the two")
    screen = console()
    signal.signal(signal.SIGTERM, end_by_signal)
    plan = make_plan(quick, overload, seeds, chats, load, pause)
    with screen.status("starting") as status:
        results, checked, directory = run_demo_serve(plan, Progress(screen, status), json_file)
    _print(screen, results)
    text = markdown(results, checked, directory)
    screen.print("\n".join(text.splitlines()[-3:]), highlight=False, markup=False)
    _write(json_file, document(results, checked, directory))
    json_file.with_suffix(".md").write_text(text)
    screen.print(f"Written to {json_file} and {json_file.with_suffix('.md')}", highlight=False)
    if checked.different:
        screen.print(f"[red]Not what the model alone answers:[/red] {'; '.join(checked.different)}", highlight=False)
        raise typer.Exit(1)


def make_plan(quick: bool, overload: bool, seeds: int, chats: int, load: float, pause: bool = False) -> Plan:
    variants = [Variant(placement, "predicted") for placement in PLACEMENTS]
    if overload:
        variants = [Variant("kvcache-centric", admission) for admission in ADMISSIONS]
    if pause:
        variants = [Variant("kvcache-centric", "none", policy) for policy in PAUSES]
    return Plan(
        shape=Shape(4, 3, 2, 1.0) if quick else Shape(chats, 3, max(2, chats * 3 // 5)),
        pressed_chats=2 if quick else 6,
        answer_tokens=8 if quick else 32 if pause else 16,
        load=load or (OVERLOAD if overload else PAUSE_LOAD if pause else LOAD),
        seeds=range(1, 2 if quick else seeds + 1),
        variants=[variants[0], variants[-1]] if quick else variants,
        ttft_factor=PAUSE_TTFT_FACTOR if pause else TTFT_FACTOR,
    )


def run_demo_serve(plan: Plan, tell: Progress, json_file: Path) -> tuple[Results, Checked, str]:
    """`json_file` has what was measured so far after each run. Raises ConfigError when the model can't be had, and what daemons
    and workers raise."""
    model = smollm2_folder(cache_folder(), tell)
    tell("starting a directory, two daemons and four workers")
    shared = len({one.pause for one in plan.variants}) > 1
    with ServingStage(model, Cores.BY_NODE if shared else Cores.BY_ROLE) as stage:
        try:
            tell(f"directory: {stage.directory}")
            results = Results(plan, measure_capacity(stage, plan, tell))
            tell(f"sustainable: {results.capacity.sustainable:.2f} requests/s")
            run_all(stage, results, tell, lambda so_far: _write(json_file, document(so_far, None, stage.directory)))
        except MooncaskError:
            error_console().print(stage.log_tail(), markup=False, soft_wrap=True)  # the folder is gone in a moment
            raise
    checked = check(model, [reply for run in results.runs for reply in run.replies], tell)
    return results, checked, stage.directory


def _write(path: Path, found: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=2) + "\n")


def _print(screen: Console, results: Results) -> None:
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in ("placement", "admission", "pause") else "right")
    for row in rows(results.runs):
        table.add_row(*row)
    screen.print(table)
