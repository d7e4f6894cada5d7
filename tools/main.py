"""The `mooncask` command. Each command is in a module of its own; here they are put together and errors become exit codes."""

import importlib
import importlib.metadata
from typing import Any

import typer
from typer.core import TyperGroup

from mooncask.client.wire import PROTOCOL
from mooncask.conductor.papers.command import paper_command
from mooncask.conductor.planner.command import plan_command
from mooncask.conductor.replay.command import replay_command
from mooncask.conductor.simulator.command import simulate_command
from mooncask.errors import MooncaskError
from mooncask.tools import blocks, listing
from mooncask.tools.bench.command import bench
from mooncask.tools.connection import Json
from mooncask.tools.demo.command import demo
from mooncask.tools.output import error_console, print_json
from mooncask.tools.serve import serve
from mooncask.tools.verify import verify

OS_ERROR_EXIT = 74
"""EX_IOERR: a file that was named could not be read or written."""


class ErrorsBecomeExitCodes(TyperGroup):
    """One line on stderr and the exit code of the error's class, for every command below."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except MooncaskError as error:
            _complain(str(error))
            raise typer.Exit(error.exit_code) from error
        except BrokenPipeError:
            raise  # typer ends quietly when the reader of our output has gone
        except OSError as error:
            _complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            raise typer.Exit(OS_ERROR_EXIT) from error


class RunsWithoutAWord(TyperGroup):
    """Takes what names none of its commands as the arguments of `run`: `simulate A B` is `simulate run A B`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def _complain(text: str) -> None:
    error_console().print("mooncask: " + " ".join(text.split()), markup=False, soft_wrap=True)


app = typer.Typer(
    cls=ErrorsBecomeExitCodes,
    help="A KV-cache store for LLM inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(serve)
app.command()(blocks.put)
app.command()(blocks.get)
app.command()(listing.ls)
app.command()(listing.stat)
app.command()(blocks.rm)
app.command()(verify)
app.command()(demo)
app.command("replay")(replay_command)
app.command("plan")(plan_command)
simulate = typer.Typer(cls=RunsWithoutAWord, help="Simulate a cluster; figures of the papers.", no_args_is_help=True)
simulate.command("run")(simulate_command)
simulate.command("paper")(paper_command)
app.add_typer(simulate, name="simulate")
app.add_typer(bench, name="bench")


@app.command()
def version(as_json: Json = False) -> None:
    """Print the version, and that of the socket protocol."""
    found = {"version": importlib.metadata.version("mooncask"), "protocol": PROTOCOL}
    if as_json:
        print_json(found)
    else:
        typer.echo(f"mooncask {found['version']}, protocol {found['protocol']}")
