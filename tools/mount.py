"""`mooncask mount` and `umount`: shows the store as files, in the foreground or in a process of its own.

What is served and how is `fuse_mount/`'s knowledge; this starts its process and waits for its word.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from mooncask.errors import BadArgument, ConfigError, DaemonUnavailable
from mooncask.fuse_mount.mounts import MountEntry, find_mount
from mooncask.fuse_mount.options import MountOptions
from mooncask.tools.connection import Socket, socket_of

READY = b"ready\n"
UMOUNT_SECONDS = 30.0


def mount(
    path: Annotated[Path, typer.Argument(help="The folder to mount on.", metavar="PATH")],
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Go to the background as soon as the mount can be used.")
    ] = False,
    allow_other: Annotated[bool, typer.Option("--allow-other", help="Let other users see it too.")] = False,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let nobody change anything through it.")] = False,
    deadline: Annotated[
        float, typer.Option(min=0.1, help="Seconds that the daemon has for an answer; then it is an I/O error.")
    ] = 10.0,
    spool: Annotated[
        Path | None,
        typer.Option(help="Folder for long files while they are being written; a temporary one by default."),
    ] = None,
    socket: Socket = None,
) -> None:
    """Mount the store as a file system, until it is unmounted or Ctrl-C."""
    options = MountOptions(
        mountpoint=str(_absolute(path)),
        socket_path=os.path.abspath(socket_of(socket)),  # noqa: PTH100  # a socket's link must stay as it was named
        deadline_seconds=deadline,
        allow_other=allow_other,
        read_only=read_only,
        spool_folder=str(spool.absolute()) if spool else "",
    )
    if daemon:
        _start(options)
    else:
        command = _command(options)
        os.execv(command[0], command)


def umount(
    path: Annotated[Path, typer.Argument(help="Where it is mounted.", metavar="PATH")],
    lazy: Annotated[bool, typer.Option("--lazy", help="Also while files are open; they stay readable.")] = False,
) -> None:
    """Unmount what `mooncask mount` mounted."""
    place = _absolute(path)
    found = find_mount(str(place))
    if found is None or not found.is_ours:
        raise BadArgument("path", str(path), "no Mooncask mount; /proc/mounts lists those there are")
    try:
        done = subprocess.run(
            ["fusermount3", "-u", *(["-z"] if lazy else []), str(place)],
            capture_output=True,
            text=True,
            timeout=UMOUNT_SECONDS,
            check=False,
        )
    except FileNotFoundError as exc:
        raise ConfigError("fusermount3", "missing", "install it, on Debian with: apt-get install fuse3") from exc
    if done.returncode:
        raise BadArgument("path", str(path), f"{_reason(done.stderr, found)}; --lazy unmounts all the same")


def _reason(said: str, entry: MountEntry) -> str:
    return " ".join(said.split()) or f"fusermount3 could not unmount {entry.path}"


def _absolute(path: Path) -> Path:
    """Where the folder is, without asking the mount itself, which may be dead."""
    return path.parent.resolve() / path.name if path.name not in ("", "..") else path.resolve()


def _command(options: MountOptions) -> list[str]:
    return [sys.executable, "-m", "mooncask.fuse_mount", msgspec.json.encode(options).decode()]


def _start(options: MountOptions) -> None:
    """Returns when the mount can be used; exits as its process did when it can't."""
    ours, theirs = os.pipe()
    with os.fdopen(ours, "rb") as pipe:
        try:
            child = subprocess.Popen(
                _command(msgspec.structs.replace(options, ready_descriptor=theirs)),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs],
                start_new_session=True,
            )
        finally:
            os.close(theirs)
        said = pipe.read(len(READY))
    if said == READY:
        child.returncode = 0  # it lives on without us
        return
    status = child.wait()
    if status <= 0:
        raise DaemonUnavailable(options.socket_path, f"the mount's process ended with {status} before it was ready")
    raise typer.Exit(status)
