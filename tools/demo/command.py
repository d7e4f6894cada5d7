"""`mooncask demo`: from nothing to the verdict, with progress on the way; everything it started ends with it."""

import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.errors import MooncaskError
from mooncask.tools.demo.report import document, print_report
from mooncask.tools.demo.stage import Stage
from mooncask.tools.demo.verdict import Control, Phase, Row, Verdict, judge
from mooncask.tools.output import console, error_console

RESULT_FILE = Path("build/demo.json")


class Progress:
    """A line that says what is done now; where nobody watches a terminal, one line each."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        line = f"{time.monotonic() - self._started:6.1f} s  {text}"
        if self._console.is_terminal:
            self._status.update(line)
        else:
            self._console.print(line, highlight=False, markup=False)


def demo(
    json_file: Annotated[Path, typer.Option("--json", help="Where the results go.", metavar="FILE")] = RESULT_FILE,
) -> None:
    """Ask a real model questions about a document, with and without a store, and compare times and tokens.

    Fetches the model once (93 MB), needs 5 GiB of memory and of disk, and takes some minutes. Leaves nothing running.
    """
    screen = console()
    signal.signal(signal.SIGTERM, end_by_signal)
    with screen.status("starting") as status:
        rows, control, verdict = run_demo(Progress(screen, status))
    print_report(screen, rows, control, verdict)
    json_file.parent.mkdir(parents=True, exist_ok=True)
    json_file.write_text(json.dumps(document(rows, control, verdict), indent=2) + "\n")
    screen.print(f"Written to {json_file}", highlight=False)
    if not verdict.ok:
        raise typer.Exit(1)


def run_demo(tell: Progress) -> tuple[list[Row], Control, Verdict]:
    """The whole demo. Raises ConfigError when the model can't be had, and what daemon and workers raise."""
    model = smollm2_folder(cache_folder(), tell)
    tell("starting the daemon and three workers")
    with Stage(model) as stage:
        try:
            rows, control = _play(stage, model, tell)
        except MooncaskError:
            error_console().print(stage.log_tail(), markup=False, soft_wrap=True)  # the folder is gone in a moment
            raise
    return rows, control, judge(rows, control)


def _play(stage: Stage, model: Path, tell: Progress) -> tuple[list[Row], Control]:
    from mooncask.engine_adapter.transformers.chat import Chat  # transformers, which the other commands do without
    from mooncask.tools.demo import session

    chat = Chat(model)
    ready = stage.wait_ready()[0]
    asked = session.references(stage, chat, tell)
    rows = session.ask_all(stage, Phase.FIRST, asked, tell)
    session.kill_and_restart(stage, ready, tell)
    rows += session.ask_all(stage, Phase.AFTER_KILL, asked, tell)
    return rows, session.negative_control(stage, ready, asked[0], tell)


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """SIGTERM unwinds like Ctrl-C, so that the processes end and the folder goes."""
    sys.exit(128 + number)
