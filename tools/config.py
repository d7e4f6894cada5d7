"""`mooncask config`: check a configuration with the daemon's own loader, and show the one in force.

What is allowed is the daemon's knowledge: the check starts `python -m mooncask.daemon --check-config`, which starts nothing.
"""

import json
import subprocess
from pathlib import Path
from typing import Annotated

import typer

from mooncask.client.control_client import ControlClient
from mooncask.tools.connection import Json, Socket, socket_of
from mooncask.tools.output import Column, console, print_json, print_table
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


@config.command()
def show(socket: Socket = None, as_json: Json = False) -> None:
    """Show what the running daemon goes by: every key, secrets left out; those marked can change with SIGHUP."""
    with ControlClient(socket_of(socket)) as control:
        page = control.config()
    if as_json:
        print_json({"file": page.file, "sections": page.sections, "reloadable": page.reloadable})
        return
    rows = [
        [f"{section}.{key}", _shown(value), "yes" if f"{section}.{key}" in page.reloadable else ""]
        for section, values in page.sections.items()
        for key, value in values.items()
    ]
    print_table([Column("key"), Column("value"), Column("SIGHUP")], rows)
    console().print(f"file: {page.file or 'none'}", markup=False)


def _shown(value: object) -> str:
    """As a TOML file would have it."""
    return json.dumps(value, ensure_ascii=False, default=str)
