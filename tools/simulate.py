"""`mooncask simulate`: a cluster under a trace (`conductor/simulator`), and `simulate paper`: figures of the papers."""

import typer

from mooncask.conductor.papers.command import paper_command
from mooncask.conductor.simulator.command import simulate_command
from mooncask.tools.default_command import DefaultsTo


class RunsByDefault(DefaultsTo):
    """`simulate A B` is `simulate run A B`."""

    default = "run"


simulate = typer.Typer(
    cls=RunsByDefault,
    help="Simulate a cluster; figures of the papers.",
    no_args_is_help=True,
    add_completion=False,
)
simulate.command("run")(simulate_command)
simulate.command("paper")(paper_command)
