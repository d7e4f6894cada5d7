"""`mooncask demo-cluster`: a directory, three nodes, a real model; everything it started ends with it."""

import json
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.errors import MooncaskError
from mooncask.tools.demo.cluster_session import FULL, SHORT, Played, Script, play
from mooncask.tools.demo.cluster_stage import ClusterStage
from mooncask.tools.demo.cluster_verdict import Row, Verdict, judge
from mooncask.tools.demo.command import Progress, end_by_signal
from mooncask.tools.demo.verdict import Comparison
from mooncask.tools.keys import format_size
from mooncask.tools.output import console, error_console

RESULT_FILE = Path("build/demo-cluster.json")


def demo_cluster(
    json_file: Annotated[Path, typer.Option("--json", help="Where the results go.", metavar="FILE")] = RESULT_FILE,
    short: Annotated[bool, typer.Option("--short", help="Two questions and not four.")] = False,
) -> None:
    """Prefill on one node, answer on two others, kill the first half-way, and compare times and tokens.

    Fetches the model once (93 MB), needs 6 GiB of memory, and takes some minutes. Leaves nothing running.
    """
    screen = console()
    signal.signal(signal.SIGTERM, end_by_signal)
    with screen.status("starting") as status:
        played, directory = run_demo_cluster(SHORT if short else FULL, Progress(screen, status))
    verdict = judge(played.rows, played.cold_s, played.bytes_by_transport)
    _print_report(screen, played, verdict, directory)
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(document(played, verdict, directory), indent=2) + "\n")
    screen.print(f"Written to {json_file}", highlight=False)
    if not verdict.ok:
        raise typer.Exit(1)


def run_demo_cluster(script: Script, tell: Progress) -> tuple[Played, str]:
    """What was played, and which directory the nodes had. Raises ConfigError when the model can't be had."""
    model = smollm2_folder(cache_folder(), tell)
    from mooncask.engine_adapter.transformers.chat import Chat  # transformers, which the other commands do without

    tell("starting a directory, three daemons and three workers")
    with ClusterStage(model) as stage:
        try:
            tell(f"directory: {stage.directory}")
            stage.wait_ready()
            return play(stage, Chat(model), script, tell), stage.directory
        except MooncaskError:
            error_console().print(stage.log_tail(), markup=False, soft_wrap=True)  # the folder is gone in a moment
            raise


def document(played: Played, verdict: Verdict, directory: str) -> dict[str, Any]:
    """What build/demo-cluster.json holds."""
    return {
        "directory": directory,
        "requests": [_entry(row) for row in played.rows],
        "bytes_by_transport": played.bytes_by_transport,
        "bytes_by_node": played.bytes_by_node,
        "ttft_s": {source: round(seconds, 4) for source, seconds in verdict.ttft_s.items()},
        "tokens_identical": all(row.comparison is Comparison.IDENTICAL for row in played.rows),
        "ties": sum(row.comparison is Comparison.TIE for row in played.rows),
        "problems": list(verdict.problems),
        "ok": verdict.ok,
    }


def _entry(row: Row) -> dict[str, Any]:
    return {
        "phase": row.phase.value,
        "name": row.name,
        "node": row.node,
        "prompt_tokens": row.prompt_tokens,
        "local": row.local,
        "remote": row.remote,
        "computed": row.computed,
        "source": row.source.value,
        "ttft_cold_s": round(row.ttft_cold_s, 4),
        "ttft_s": round(row.ttft_s, 4),
        "tokens": row.comparison.value,
        "store_faults": row.faults,
    }


def _print_report(screen: Console, played: Played, verdict: Verdict, directory: str) -> None:
    screen.print(_table(played.rows))
    screen.print(f"Directory: {directory}", highlight=False, markup=False)
    moved = ", ".join(f"{format_size(size)} over {name}" for name, size in sorted(played.bytes_by_transport.items()))
    received = ", ".join(f"{name} {format_size(size)}" for name, size in sorted(played.bytes_by_node.items()))
    screen.print(f"Moved between nodes: {moved or 'nothing'} (received by {received})", highlight=False)
    times = ", ".join(f"{source} {seconds:.2f} s" for source, seconds in verdict.ttft_s.items())
    screen.print(f"Time to first token with all nodes up, medians: {times}", highlight=False)
    for problem in verdict.problems:
        screen.print(f"[red]Problem:[/red] {problem}")
    screen.print("[green]ok[/green]" if verdict.ok else "[red]not ok[/red]")


def _table(rows: list[Row]) -> Table:
    table = Table()
    for heading in ("phase", "request", "node"):
        table.add_column(heading)
    for heading in ("prompt", "local", "remote", "computed", "TTFT cold", "TTFT"):
        table.add_column(heading, justify="right")
    table.add_column("tokens")
    for row in rows:
        counts = (row.prompt_tokens, row.local, row.remote, row.computed)
        times = (f"{row.ttft_cold_s:.2f} s", f"{row.ttft_s:.2f} s")
        table.add_row(row.phase.value, row.name, row.node, *map(str, counts), *times, row.comparison.value)
    return table
