"""`mooncask config`: check a configuration with the daemon's own loader, and show the one in force.

What is allowed is the daemon's knowledge: the check starts `python -m mooncask.daemon --check-config`, which starts nothing.
"""

import subprocess
from pathlib import Path
from typing import Annotated

import typer

from mooncask.tools.connection import Json
from mooncask.tools.output import print_json
from mooncask.tools.serve import daemon_command

CHECK_SECONDS = 60.0

config = typer.Typer(
    help="Check a configuration file, or show what is in force.", no_args_is_help=True, add_completion=False
)


@config.callback()
def main() -> None:
    """Check a configuration file, or show what is in force."""


@config.command()
def check(
    file: Annotated[
        Path, typer.Argument(help="TOML file; MOONCASK_<SECTION>_<KEY> variables win over it.", metavar="FILE")
    ],
    as_json: Json = False,
) -> None:
    """Say whether the daemon would take this file. Exit status 78 and the key's name if not."""
    done = subprocess.run(
        [*daemon_command(file), "--check-config"],
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=CHECK_SECONDS,
    )
    said = " ".join((done.stdout + done.stderr).split())
    if as_json:
        print_json({"file": str(file), "valid": done.returncode == 0, "said": said.removeprefix("mooncask: ")})
    else:
        typer.echo(said, err=done.returncode != 0)
    if done.returncode:
        raise typer.Exit(done.returncode)
