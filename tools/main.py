"""The `mooncask` command: its table of commands (`command_table.py`) with errors turned into one line and an exit code.

What the exit codes mean stands in docs/CLI.md.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from mooncask.errors import MooncaskError
from mooncask.tools.command_table import lazy_commands
from mooncask.tools.exit_codes import INTERRUPTED, OS_ERROR, PIPE, USAGE
from mooncask.tools.output import complain

ClickException: Any = typer.BadParameter.__mro__[2]
"""The base of all errors about the command line; by way of a public name, since typer keeps its own copy of click."""
assert ClickException.__name__ == "ClickException"


class Mooncask(TyperGroup):
    """All commands, each loaded when it is asked for. Whatever goes wrong is one line on stderr and an exit code."""

    def __init__(self, *, commands: Any = None, **named: Any) -> None:
        own: Mapping[str, Any] = commands or {}
        super().__init__(commands={**lazy_commands(), **own}, **named)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, windows_expand_args, **extra)
        try:
            status = super().main(args, prog_name or "mooncask", complete_var, False, windows_expand_args, **extra)
        except ClickException as error:
            sys.exit(_refuse(error))
        except typer.Abort:
            complain("stopped; nothing more was done")
            sys.exit(INTERRUPTED)
        except MooncaskError as error:
            complain(str(error))
            sys.exit(error.exit_code)
        except OSError as error:
            complain(f"{error.filename}: {error.strerror}" if error.filename else str(error))
            sys.exit(OS_ERROR)
        sys.exit(status if isinstance(status, int) else 0)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or flushing at exit would complain
            raise typer.Exit(PIPE) from error


def _refuse(error: Any) -> int:
    """Says what is wrong with the command line, and what to try. Without any arguments the help page was meant."""
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return USAGE
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "mooncask"
    complain(f'{_reworded(error)}; "{path} --help" shows what there is')
    return USAGE


def _reworded(error: Any) -> str:
    """What the library says, as part of a line of ours."""
    possible = sorted(getattr(error, "possibilities", None) or [])
    said: str = error.message if possible else error.format_message()
    said = said.rstrip(".") + (f"; did you mean {' or '.join(possible)}?" if possible else "")
    return f"{said[:1].lower()}{said[1:]}".replace(". Did you mean", "; did you mean").removesuffix("?")


app = typer.Typer(
    cls=Mooncask,
    help="A KV-cache store for LLM inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from mooncask.tools.version import version

        version()
        raise typer.Exit


@app.callback()
def mooncask(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="The same as the command version."),
    ] = False,
) -> None:
    """A KV-cache store for LLM inference."""
