"""The local socket: accepts processes of this machine, introduces them, and hands them the memory they may use.

The introduction (Hello, Welcome and the descriptors beside it) happens on the raw socket, which the loop gets only
afterwards: uvloop's transports can't send descriptors.
"""

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import secrets
import socket
import time

import msgspec

from mooncask.client import wire
from mooncask.daemon.config import Config
from mooncask.daemon.connection import Connection
from mooncask.daemon.peer import Peer, peer_of
from mooncask.daemon.processes import Process
from mooncask.daemon.service import Service
from mooncask.daemon.session import LocalPlane, Session
from mooncask.daemon.socket_file import SocketFile
from mooncask.daemon.staging import Staging
from mooncask.daemon.status import version
from mooncask.errors import BadRequest, Busy, MooncaskError, ProtocolMismatch, error_data
from mooncask.tiers.block import Hint
from mooncask.tiers.hbm import HbmTier

log = logging.getLogger(__name__)

HELLO_SECONDS = 5.0
HELLO_BYTES_MAX = 256 << 10
PROCESS_TOKEN_BYTES = 16
SWEEP_SECONDS_MAX = 1.0
CLOSE_SECONDS = 2.0


class LocalSocket:
    """Owns the listener and all connections. `start` after the store is open, `close` before it is closed."""

    def __init__(self, service: Service, file: SocketFile) -> None:
        self.plane = LocalPlane(service)
        self._service = service
        self._file = file
        self._daemon = secrets.token_bytes(16)
        self._numbers = itertools.count(1)
        self._connections: set[Connection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def _config(self) -> Config:
        """The one in force: a reload replaces it."""
        return self._service.config

    def start(self) -> None:
        self._file.listen()
        self._tasks = [asyncio.create_task(self._accept()), asyncio.create_task(self._sweep())]

    async def close(self) -> None:
        """No new connections; commits under way end; then all are cut. The file is removed."""
        for task in [*self._tasks, *self._handshakes]:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._handshakes, return_exceptions=True)
        self._file.close()
        await self.plane.warming.close()
        running = [task for connection in self._connections for task in connection.tasks]
        for connection in list(self._connections):
            connection.cut("the daemon stops")
        if running:
            await asyncio.wait(running, timeout=CLOSE_SECONDS)
        for process in list(self.plane.processes):
            self.plane.drop_all(self.plane.leases.end(process.token))
            self.plane.abort_parked(process)
        self.plane.processes.close()

    # --- accepting ---

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(self._file.sock)
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.ECONNABORTED):
                    raise
                log.error("cannot accept: %s", error.strerror)
                await asyncio.sleep(0.1)
                continue
            task = asyncio.create_task(self._introduce(sock))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _introduce(self, sock: socket.socket) -> None:
        """The top of one handshake: it ends in a served connection or in a closed socket."""
        sock.setblocking(False)
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await self._welcome(sock)
        except MooncaskError as error:
            log.warning("a connection was refused: %s", error.message)
            _refuse(sock, error)
        except (TimeoutError, OSError, EOFError) as error:
            log.info("a connection ended before its Hello: %s", error or "it came too late")
            sock.close()
        except asyncio.CancelledError:
            sock.close()
            raise
        except Exception:
            log.exception("a connection failed by a fault of this daemon")
            sock.close()

    async def _welcome(self, sock: socket.socket) -> None:
        if len(self._connections) + len(self._handshakes) > self._config.socket.clients_max:
            raise Busy(f"{self._config.socket.clients_max} connections are open (socket.clients_max)")
        peer = peer_of(sock)
        try:
            hello = await _read_hello(sock)
            self._check(hello)
        except BaseException:
            _close_pidfd(peer)
            raise
        process = self.plane.processes.enter(hello.process, peer, self._service.door.tenant_of(peer.uid))
        try:
            await self._serve(sock, hello, process)
        except BaseException:
            self.plane.forget_if_idle(process)
            raise

    def _check(self, hello: wire.Hello) -> None:
        if hello.protocol != wire.PROTOCOL:
            self.plane.counters["protocol_mismatches"] += 1
            raise ProtocolMismatch(wire.PROTOCOL, hello.protocol)
        if len(hello.process) != PROCESS_TOKEN_BYTES:
            raise BadRequest(f"Hello.process has {len(hello.process)} bytes; {PROCESS_TOKEN_BYTES} are needed")

    async def _serve(self, sock: socket.socket, hello: wire.Hello, process: Process) -> None:
        number = next(self._numbers)
        connection = Connection(self._config.limits.requests_open_max, self._closed)
        staging = self._staging(hello, process)
        session = Session(
            self.plane,
            process,
            number,
            hello.client[:64],
            connection.send,
            connection.cut,
            staging,
            Hint(tenant=process.tenant),
        )
        # From here on this connection counts: its first request may arrive before the loop's taking over has returned.
        process.sessions.add(session)
        self._connections.add(connection)
        connection.serve(session)
        try:
            resumed = self._resume(hello, process, number)
            self._send_welcome(sock, hello, session, resumed)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: connection, sock)
        except BaseException:
            connection.cut("its introduction failed")
            self._connections.discard(connection)
            raise
        log.debug("connection %d: %r, process %d, uid %d", number, session.client, process.peer.pid, process.peer.uid)

    def _staging(self, hello: wire.Hello, process: Process) -> Staging | None:
        if not hello.want_write or not process.shares_memory or self._trusts(process):
            return None
        return Staging(self._config.socket.staging)

    def _trusts(self, process: Process) -> bool:
        return process.peer.uid in self._config.socket.trusted_writers

    def _resume(self, hello: wire.Hello, process: Process, number: int) -> list[int]:
        """The client says what its process still uses; the rest of what cut connections left is free."""
        resumed = self.plane.leases.resume(process.token, number, hello.resume)
        self.plane.drop_all(resumed.freed)
        self.plane.abort_parked(process, frozenset(hello.resume))
        return resumed.ids

    def _send_welcome(self, sock: socket.socket, hello: wire.Hello, session: Session, resumed: list[int]) -> None:
        names, descriptors = self._descriptors(hello, session)
        try:
            welcome = self._welcome_message(hello, session, names, resumed)
            frame = wire.frame(msgspec.msgpack.Encoder(), welcome)
            sent = socket.send_fds(sock, [frame], descriptors)
            if sent < len(frame):  # a fresh socket's buffer holds 200 KiB; the longest Welcome has a third of that
                raise ConnectionError("the socket took only a part of the Welcome")
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _welcome_message(
        self, hello: wire.Hello, session: Session, names: list[str], resumed: list[int]
    ) -> wire.Welcome:
        dram, hbm = self._service.store.dram, self._service.store.hbm
        shares = session.process.shares_memory
        return wire.Welcome(
            id=hello.id,
            protocol=wire.PROTOCOL,
            version=version(),
            daemon=self._daemon,
            arena_bytes=dram.capacity_bytes if shares else 0,
            populated_bytes=dram.populated_bytes if shares else 0,
            descriptors=names,
            staging_bytes=session.staging.area.capacity_bytes if session.staging else 0,
            resumed=resumed,
            block_bytes_max=self._service.block_bytes_max,
            batch_max=self._config.limits.batch_max,
            lease_ms_max=int(self._config.limits.lease_max * 1000),
            hbm_device=hbm.device if hbm is not None and shares else "",
            hbm_bytes=hbm.capacity_bytes if hbm is not None and shares else 0,
            hbm_handle=_hbm_handle(hbm) if hbm is not None and shares else b"",
        )

    def _descriptors(self, hello: wire.Hello, session: Session) -> tuple[list[str], list[int]]:
        if not session.process.shares_memory:
            return [], []
        arena = self._service.store.dram.arena
        found = {"arena": arena.read_only_descriptor()}
        if session.staging is not None:
            found["staging"] = session.staging.area.writable_descriptor()
        elif hello.want_write:
            found["arena-writable"] = arena.writable_descriptor()
        return list(found), list(found.values())

    def _closed(self, connection: Connection) -> None:
        self._connections.discard(connection)

    # --- upkeep ---

    async def _sweep(self) -> None:
        """Looks for leases that are kept too long, often enough to notice them within a quarter of their time; insight ticks."""
        every = min(SWEEP_SECONDS_MAX, max(0.01, self._config.limits.lease_max / 4))
        while True:
            await asyncio.sleep(every)
            self.plane.cut_overstayed(time.monotonic())
            self.plane.insight.tick()


async def _read_hello(sock: socket.socket) -> wire.Hello:
    (length,) = wire.HEADER.unpack(await _read(sock, wire.HEADER.size))
    if length > HELLO_BYTES_MAX:
        raise BadRequest(f"a Hello of {length} bytes; at most {HELLO_BYTES_MAX} are allowed")
    try:
        return msgspec.msgpack.decode(await _read(sock, length), type=wire.Hello)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the first message must be a Hello: {error}") from error


async def _read(sock: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes and not one more: the loop's transport must find what follows."""
    loop = asyncio.get_running_loop()
    got = bytearray()
    while len(got) < count:
        part = await loop.sock_recv(sock, count - len(got))
        if not part:
            raise EOFError("closed by the client")
        got += part
    return bytes(got)


def _refuse(sock: socket.socket, error: MooncaskError) -> None:
    """Tell why, as far as the socket takes it at once, and close."""
    failed = wire.Failed(0, type(error).__name__, error.message, error_data(error))
    with contextlib.suppress(OSError):
        sock.send(wire.frame(msgspec.msgpack.Encoder(), failed))
    sock.close()


def _close_pidfd(peer: Peer) -> None:
    if peer.pidfd is not None:
        os.close(peer.pidfd)


def _hbm_handle(hbm: HbmTier) -> bytes:
    """Empty on the cpu device of tests, which other processes can't open."""
    try:
        return hbm.export_handle()
    except BadRequest:
        return b""
