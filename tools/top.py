"""`mooncask top`: a live screen of the daemon, or one frame of it. What it shows: `top_screen.py`.

It survives the daemon: while there is none it says so, and goes on when there is one again.
"""

import os
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.live import Live

from mooncask.client.control_client import ControlClient
from mooncask.errors import BadRequest, DaemonUnavailable, MooncaskError
from mooncask.tools.connection import Json, Socket, socket_of
from mooncask.tools.output import console, print_json
from mooncask.tools.top_screen import Room, screen, waiting

ANSWER_SECONDS = 3.0
QUIT_KEYS = {b"q", b"Q", b"\x04", b"\x1b", b""}
"""q, Ctrl-D, Escape alone (arrows begin with it), and the end of the terminal; Ctrl-C is a signal."""


def top(
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between frames.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end; so it does in a pipe.")] = False,
    socket: Socket = None,
    as_json: Json = False,
) -> None:
    """Watch tiers, flows, hottest chains, namespaces, clients and what-ifs. q ends it."""
    path = socket_of(socket)
    with ControlClient(path, ANSWER_SECONDS) as control:
        if as_json:
            print_json(msgspec.to_builtins(control.overview()))
        elif once or not sys.stdout.isatty():
            found = console()
            found.print(screen(control.overview(), Room(found.width, whole_keys=True)))
        else:
            _watch(control, path, interval)


def _watch(control: ControlClient, socket: str, interval: float) -> None:
    if not sys.stdin.isatty():
        raise BadRequest("top: stdin is no terminal, so no key could end it; use --once")
    signal.signal(signal.SIGTERM, _end)  # or the terminal would be left as it is now
    found, last = console(), None
    with _single_keys(sys.stdin.fileno()), Live(console=found, screen=True, auto_refresh=False) as live:
        while True:
            frame, last = _frame(control, socket, found, last)
            live.update(frame, refresh=True)
            if _quits(sys.stdin.fileno(), interval):
                return


def _end(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)


def _frame(
    control: ControlClient, socket: str, found: Console, last: RenderableType | None
) -> tuple[RenderableType, RenderableType | None]:
    """What to draw now, and the last frame with figures."""
    try:
        overview = control.overview()
    except DaemonUnavailable as error:
        return waiting(socket, error.why, last), last
    except MooncaskError as error:
        return waiting(socket, str(error), last), last
    frame = screen(overview, Room(found.width, found.height))
    return frame, frame


def _quits(descriptor: int, seconds: float) -> bool:
    """Waits for a key; whether it ends the screen. Any other one draws at once."""
    if not select.select([descriptor], [], [], seconds)[0]:
        return False
    return os.read(descriptor, 64) in QUIT_KEYS


@contextmanager
def _single_keys(descriptor: int) -> Iterator[None]:
    """Keys come as they are pressed, and are not shown; the terminal is as before afterwards."""
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
