"""Who is at the other end of a local connection: credentials from the kernel, and a handle that tells of its death."""

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

SO_PEERPIDFD = 77
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """A local process as the kernel sees it. `pidfd` is None where its death could not be noticed: a foreign pid namespace."""

    pid: int
    uid: int
    gid: int
    pidfd: int | None


def peer_of(sock: socket.socket) -> Peer:
    """The process that connected. The caller closes `pidfd`."""
    pid, uid, gid = _credentials(sock)
    return Peer(pid, uid, gid, _pidfd(sock, pid))


def uid_of(sock: socket.socket) -> int:
    """The user who connected: for callers that get no memory, whose death need not be noticed."""
    return _credentials(sock)[1]


def _credentials(sock: socket.socket) -> tuple[int, int, int]:
    pid, uid, gid = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid, gid


def _pidfd(sock: socket.socket, pid: int) -> int | None:
    if pid <= 0 or _foreign(pid):
        return None
    try:
        return sock.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:
        pass  # a kernel before 6.5
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def _foreign(pid: int) -> bool:
    """Whether the process is known to live in another pid namespace; where /proc hides that, the pidfd decides."""
    try:
        return Path(f"/proc/{pid}/ns/pid").stat().st_ino != Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return False
