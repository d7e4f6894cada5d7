"""`mooncask simulate`: a cluster under a trace (`conductor/simulator`), and `simulate paper`: figures of the papers."""

from typing import Any

import typer
from typer.core import TyperGroup

from mooncask.conductor.papers.command import paper_command
from mooncask.conductor.simulator.command import simulate_command


class RunsWithoutAWord(TyperGroup):
    """Takes what names none of its commands as the arguments of `run`: `simulate A B` is `simulate run A B`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


simulate = typer.Typer(
    cls=RunsWithoutAWord,
    help="Simulate a cluster; figures of the papers.",
    no_args_is_help=True,
    add_completion=False,
)
simulate.command("run")(simulate_command)
simulate.command("paper")(paper_command)
