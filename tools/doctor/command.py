"""`mooncask doctor`: looks at this machine, at the daemon and its data folder, and says what to do."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from mooncask.client.control_client import ControlClient
from mooncask.errors import MooncaskError
from mooncask.tools.connection import Json, Socket, socket_of
from mooncask.tools.doctor.devices import check_devices
from mooncask.tools.doctor.disk import check_disk
from mooncask.tools.doctor.finding import Finding, State
from mooncask.tools.doctor.limits import check_limits
from mooncask.tools.doctor.software import check_daemon, check_software
from mooncask.tools.exit_codes import ANSWER_IS_NO
from mooncask.tools.output import console, counted, print_aligned, print_json, stages

ANSWER_SECONDS = 5.0
MARKS = {State.OK: Text("ok", "green"), State.NOTE: Text("note", "yellow"), State.WRONG: Text("wrong", "bold red")}


def doctor(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Folder to measure for some seconds; by default the NVMe tier's of the running daemon.",
            metavar="FOLDER",
        ),
    ] = None,
    without_daemon: Annotated[bool, typer.Option("--no-daemon", help="Do not look for a daemon.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Check this machine, the daemon and the disk, and say what to do. Exit status 1 if anything is wrong."""
    with stages() as tell:
        tell("limits and devices")
        findings = [*check_limits(), *check_devices(), *check_software()]
        if not without_daemon:
            tell("the daemon")
            findings += check_daemon(socket)
        if data is not None or not without_daemon:
            tell("the disk, for some seconds")
            findings += check_disk(data or _data_folder(socket))
    _print(findings, as_json)
    if any(finding.state is State.WRONG for finding in findings):
        raise typer.Exit(ANSWER_IS_NO)


def _data_folder(socket: str | None) -> Path | None:
    """The running daemon's; None without one, or without an NVMe tier."""
    try:
        with ControlClient(socket_of(socket), ANSWER_SECONDS) as control:
            path = control.config().sections["nvme"]["path"]
    except MooncaskError:
        return None  # that there is no daemon is told already
    return Path(str(path)) if path else None


def _print(findings: list[Finding], as_json: bool) -> None:
    if as_json:
        print_json([dataclasses.asdict(finding) for finding in findings])
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for finding in findings:
        table.add_row(MARKS[finding.state], Text(finding.what), Text(finding.found))
        if finding.to_do:
            table.add_row("", "", Text(f"-> {finding.to_do}"))
    print_aligned(table, wrap=True)
    states = [finding.state for finding in findings]
    wrong, notes = states.count(State.WRONG), states.count(State.NOTE)
    console().print(f"{wrong} wrong, {counted(notes, 'note')}, {states.count(State.OK)} ok")
