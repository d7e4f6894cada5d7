"""The socket's place in the file system: where it is by default, whether it may lie there, and whether it is taken."""

import contextlib
import errno
import fcntl
import os
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncask.errors import AddressInUse, ConfigError, FolderNotWritable

PATH_BYTES_MAX = 107
"""sun_path without its final zero."""
BACKLOG = 128


def default_path(environment: Mapping[str, str], uid: int) -> Path:
    """$XDG_RUNTIME_DIR/mooncask.sock; for root /run/mooncask/mooncask.sock; else /tmp/mooncask-<uid>/mooncask.sock.

    Each lies in a folder that only this user can write, so nobody else can put a socket of his own there.
    """
    runtime = environment.get("XDG_RUNTIME_DIR")
    if runtime:
        return Path(runtime) / "mooncask.sock"
    if uid == 0:
        return Path("/run/mooncask/mooncask.sock")
    return Path(f"/tmp/mooncask-{uid}/mooncask.sock")


@dataclass(slots=True)
class SocketFile:
    """A bound, not yet listening socket and the lock that keeps others from replacing it."""

    path: Path
    sock: socket.socket
    _lock: int
    _closed: bool = False

    @classmethod
    def bind(cls, path: Path, mode: int) -> "SocketFile":
        """Raises AddressInUse where a process answers or is about to, ConfigError and FolderNotWritable."""
        if len(os.fsencode(path)) > PATH_BYTES_MAX:
            raise ConfigError("socket.path", str(path), f"at most {PATH_BYTES_MAX} bytes fit into a socket's address")
        _check_folder(path.parent)
        lock = _lock(path)
        try:
            _remove_stale(path)
            return cls(path, _bind(path, mode), lock)
        except BaseException:
            os.close(lock)
            raise

    def listen(self) -> None:
        self.sock.listen(BACKLOG)
        self.sock.setblocking(False)

    def close(self) -> None:
        """Stop listening and remove the file; idempotent. The lock's stays: without it two others could lock two files."""
        if self._closed:
            return
        self._closed = True
        self.sock.close()
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self._lock)


def _check_folder(folder: Path) -> None:
    """Made (0700) if it is not there; refused where another user could swap the socket."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise FolderNotWritable("socket.path", str(folder), error.strerror or str(error)) from error
    if found.st_uid not in (0, os.getuid()):
        raise ConfigError(
            "socket.path", str(folder), f"its folder belongs to uid {found.st_uid}; choose one of your own"
        )
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise ConfigError(
            "socket.path", str(folder), "its folder can be written by everyone; choose another, or chmod it"
        )


def _lock(path: Path) -> int:
    name = path.with_name(path.name + ".lock")
    try:
        lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise FolderNotWritable("socket.path", str(path.parent), error.strerror or str(error)) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise AddressInUse("socket.path", str(path)) from error
    return lock


def _remove_stale(path: Path) -> None:
    """A socket that nobody listens on is a leftover of a crash; anything else there is not ours to remove."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigError("socket.path", str(path), "is a file that is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        refused = probe.connect_ex(str(path)) == errno.ECONNREFUSED
    if not refused:
        raise AddressInUse("socket.path", str(path))
    path.unlink()


def _bind(path: Path, mode: int) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)  # no moment in which others could connect
    try:
        sock.bind(str(path))
        path.chmod(mode)
    except OSError as error:
        sock.close()
        raise FolderNotWritable("socket.path", str(path.parent), error.strerror or str(error)) from error
    finally:
        os.umask(before)
    return sock
