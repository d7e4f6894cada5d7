"""Connects to a daemon: blocking, since descriptors come beside the Welcome on the raw socket. Both clients start here."""

import os
import socket
import time
from dataclasses import dataclass

import msgspec

from mooncask.client import wire
from mooncask.client.arena_map import ArenaMap, Populator
from mooncask.client.leases import LeaseBook, this_process
from mooncask.client.session import Session
from mooncask.errors import AccessDenied, BadRequest, DaemonUnavailable, ProtocolMismatch, revive

_DESCRIPTORS_MAX = 4
_RECEIVE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to connect to, and as what."""

    path: str
    name: str
    want_write: bool = True
    populate: bool = True


@dataclass(frozen=True, slots=True)
class Dialled:
    """A connection that is ready for calls. `rest` is what already came after the Welcome."""

    sock: socket.socket
    session: Session
    populators: tuple[Populator, ...]
    rest: bytes


def dial(target: Target, deadline: float) -> Dialled:
    """Connects, says Hello, maps the memory. Raises DaemonUnavailable and what the daemon refuses with; then nothing is left
    open. `deadline` is on time.monotonic()."""
    process = this_process()
    book = process.book(target.path)
    seconds = deadline - time.monotonic()
    if not book.hello_lock.acquire(timeout=max(0.0, seconds)):
        raise DaemonUnavailable(target.path, "another thread is still connecting to it")
    try:
        sock = _connect(target.path, deadline)
        try:
            return _introduce(sock, target, process.token, book, deadline)
        except BaseException:
            sock.close()
            raise
    finally:
        book.hello_lock.release()


def _connect(path: str, deadline: float) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        sock.connect(path)
    except OSError as exc:
        sock.close()
        raise DaemonUnavailable(path, exc.strerror or str(exc)) from exc
    return sock


def _introduce(sock: socket.socket, target: Target, token: bytes, book: LeaseBook, deadline: float) -> Dialled:
    hello = wire.Hello(1, wire.PROTOCOL, target.name, token, target.want_write, book.named_in_hello())
    welcome, descriptors, rest = _exchange(sock, target.path, hello, deadline)
    maps = _map(target.path, welcome, descriptors)
    book.met(welcome.daemon)
    writing = maps.get("arena-writable", maps.get("staging"))
    session = Session(target.path, welcome, maps["arena"], writing if target.want_write else None, book)
    shared = [arena for name, arena in maps.items() if name != "staging" and target.populate]
    populators = tuple(Populator(arena, welcome.populated_bytes) for arena in shared)
    return Dialled(sock, session, populators, rest)


def _exchange(
    sock: socket.socket, path: str, hello: wire.Hello, deadline: float
) -> tuple[wire.Welcome, list[int], bytes]:
    descriptors: list[int] = []
    try:
        sock.sendall(wire.frame(msgspec.msgpack.Encoder(), hello))
        data = _receive_frame(sock, descriptors, deadline)
        end = wire.HEADER.size + wire.HEADER.unpack_from(data)[0]
        return _welcome(data[wire.HEADER.size : end]), descriptors, data[end:]
    except BaseException as exc:
        for descriptor in descriptors:
            os.close(descriptor)
        if isinstance(exc, OSError):
            raise DaemonUnavailable(path, exc.strerror or "no answer to hello in time") from exc
        if isinstance(exc, msgspec.MsgspecError | BadRequest):
            raise DaemonUnavailable(path, f"its answer to hello is malformed: {exc}") from exc
        raise


def _receive_frame(sock: socket.socket, descriptors: list[int], deadline: float) -> bytes:
    """At least one whole frame; received descriptors are appended."""
    data = b""
    while len(data) < wire.HEADER.size or len(data) < wire.HEADER.size + wire.HEADER.unpack_from(data)[0]:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        piece, received, _, _ = socket.recv_fds(sock, _RECEIVE_BYTES, _DESCRIPTORS_MAX, socket.MSG_CMSG_CLOEXEC)
        descriptors += received
        if not piece:
            raise ConnectionResetError(0, "it closed the connection at hello")
        data += piece
        if wire.HEADER.size <= len(data) and wire.HEADER.unpack_from(data)[0] > wire.FRAME_BYTES_MAX:
            raise BadRequest("oversized frame")
    return data


def _welcome(payload: bytes) -> wire.Welcome:
    reply = msgspec.msgpack.decode(payload, type=wire.Reply)
    if isinstance(reply, wire.Failed):
        raise revive(reply.error, reply.message, reply.data)
    if not isinstance(reply, wire.Welcome):
        raise BadRequest(f"a {type(reply).__name__}")
    if reply.protocol != wire.PROTOCOL:
        raise ProtocolMismatch(wire.PROTOCOL, reply.protocol)
    return reply


def _map(path: str, welcome: wire.Welcome, descriptors: list[int]) -> dict[str, ArenaMap]:
    """The mapped memories by name; takes all descriptors over. Raises DaemonUnavailable."""
    maps: dict[str, ArenaMap] = {}
    waiting = list(descriptors)
    try:
        if not welcome.arena_bytes:
            raise AccessDenied(
                f"the daemon at {path} shares no memory with this process (another pid namespace); use HTTP"
            )
        if "arena" not in welcome.descriptors or len(welcome.descriptors) != len(descriptors):
            raise DaemonUnavailable(path, f"it named descriptors {welcome.descriptors} and sent {len(descriptors)}")
        for name in welcome.descriptors:
            size = welcome.staging_bytes if name == "staging" else welcome.arena_bytes
            maps[name] = ArenaMap(waiting.pop(0), size, path, writable=name != "arena")
    finally:
        for descriptor in waiting:
            os.close(descriptor)
    return maps
