"""The process behind one mount: checks what it was told, connects, mounts, serves, and says when it is ready.

Run as `python -m mooncask.fuse_mount JSON`, where JSON are `MountOptions`; `mooncask mount` does so.
"""

import logging
import os
import sys
import threading
from logging.handlers import SysLogHandler
from pathlib import Path

import msgspec

from mooncask.client.local import LocalClient
from mooncask.errors import BadArgument, ConfigError, MooncaskError
from mooncask.fuse_mount.mounts import find_mount
from mooncask.fuse_mount.options import MountOptions
from mooncask.fuse_mount.readahead import read_far_ahead

SYSTEM_LOG = Path("/dev/log")


def main(arguments: list[str]) -> int:
    """The exit status; errors are one line on stderr."""
    options = msgspec.json.decode(arguments[0], type=MountOptions)
    logging.basicConfig(
        format="mooncask: %(levelname)s %(message)s", level=logging.WARNING, handlers=[log_handler(options)]
    )
    try:
        serve(options)
    except MooncaskError as error:
        sys.stderr.write(f"mooncask: {' '.join(str(error).split())}\n")
        return error.exit_code
    return 0


def log_handler(options: MountOptions) -> logging.Handler:
    """stderr; in the background, where that leads nowhere, the system's log if there is one."""
    if options.ready_descriptor >= 0 and SYSTEM_LOG.exists():
        return SysLogHandler(str(SYSTEM_LOG))
    return logging.StreamHandler(sys.stderr)


def serve(options: MountOptions) -> None:
    """Returns when it was unmounted. Raises ConfigError, BadArgument, DaemonUnavailable ..."""
    check_mountpoint(options.mountpoint)
    check_machine()
    client = LocalClient.connect(
        options.socket_path,
        name=f"mount {options.mountpoint}",
        deadline_seconds=options.deadline_seconds,
        want_write=not options.read_only,
    )
    from mooncask.fuse_mount.kernel import Mount
    from mooncask.fuse_mount.operations import MountedStore

    mounted = threading.Event()

    def ready() -> None:
        mounted.set()
        threading.Thread(target=settle, args=(options,), name="mooncask-mounted", daemon=True).start()

    operations = MountedStore(client, options, ready)
    try:
        Mount(operations, options)
    except RuntimeError as exc:
        if mounted.is_set():  # libfuse's way to say that a signal ended it
            return
        raise ConfigError("mountpoint", options.mountpoint, f"libfuse could not mount there (status {exc})") from exc
    finally:
        operations.destroy("/")


def check_mountpoint(path: str) -> None:
    """Raises BadArgument."""
    found = find_mount(path)
    if found is not None and found.is_ours:
        raise BadArgument("mountpoint", path, f'a Mooncask mount already; "mooncask umount {path}" ends it')
    try:
        if not Path(path).is_dir():
            raise BadArgument("mountpoint", path, "an existing folder is wanted")
    except OSError as exc:
        raise BadArgument("mountpoint", path, exc.strerror or str(exc)) from exc


def check_machine() -> None:
    """Raises ConfigError naming what is missing."""
    if not Path("/dev/fuse").exists():
        raise ConfigError("/dev/fuse", "missing", "load the kernel's module with: modprobe fuse")
    # mfusepy would take libfuse 2 where both are installed.
    if not os.environ.keys() & {"FUSE_LIBRARY_PATH", "FUSE_LIBRARY_NAME"}:
        os.environ["FUSE_LIBRARY_NAME"] = "fuse3"
    try:
        import mfusepy
    except ImportError as exc:
        raise ConfigError("mfusepy", "missing", 'install it with: pip install "mooncask[fuse]"') from exc
    except OSError as exc:
        raise ConfigError("libfuse 3", "missing", "install it, on Debian with: apt-get install fuse3") from exc
    if mfusepy.fuse_version_major != 3:
        raise ConfigError("libfuse", f"version {mfusepy.fuse_version_major}", "version 3 is wanted")


def settle(options: MountOptions) -> None:
    """What is done when the kernel has mounted."""
    read_far_ahead(options.mountpoint)
    say_ready(options.ready_descriptor)


def say_ready(descriptor: int) -> None:
    """Tells whoever started this process, and lets go of its terminal."""
    if descriptor < 0:
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    os.close(nothing)
    os.chdir("/")
    os.write(descriptor, b"ready\n")
    os.close(descriptor)
