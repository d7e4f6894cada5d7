"""One data connection of a link, on the side that reads: a thread that receives straight into the caller's memory.

    connecting ──> idle ──(a job)──> receiving ──> idle
                                        └─(interrupted, or an error)──> closed; the thread ends

A job that has not begun to receive can be taken back at once. One that has is interrupted by shutting its socket down: the
kernel's copy ends, `recv_into` returns, and only then is the job done: after that nothing writes into its memory any more.
"""

import asyncio
import contextlib
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.daemon.transport import authentication as auth
from mooncask.daemon.transport.messages import ANSWER_BYTES, error_of, padded, parse_failed, refusal_length
from mooncask.daemon.transport.tcp.handshake import (
    ClientSide,
    Credentials,
    greet_blocking,
    receive_all,
    receive_into,
)
from mooncask.daemon.transport.transport import PeerInfo
from mooncask.errors import MooncaskError, PeerChanged, PeerUnavailable
from mooncask.tiers.checksum import payload_checksum

CONNECT_SECONDS_MAX = 5.0
NO_LINGER = struct.pack("ii", 1, 0)
"""struct linger: closing resets the connection."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Whom a data connection leads to: where the control connection went, and the link there that it belongs to."""

    family: int
    address: tuple[str | int, ...]
    peer: PeerInfo
    token: bytes = field(repr=False)
    credentials: Credentials


@dataclass(slots=True, eq=False)
class Job:
    """One stripe: the request's frame, and where the pieces' bytes go. `done` is the loop's; it never holds the bytes.

    `digests[i]` is filled with the xxh3_128 of the bytes that piece i put into memory, where `whole[i]`: read while they are
    still in the processor's cache, and by the thread that would otherwise wait for the network.
    """

    request: bytes
    targets: list[memoryview]
    whole: list[bool]
    size_bytes: int
    deadline: float
    done: asyncio.Future[None]
    digests: list[bytes] = field(default_factory=list)
    withdrawn: bool = False
    lane: "Lane | None" = None


class Lane:
    """Owned by the loop, which gives it one job at a time; `on_done(lane, job, error, usable)` comes there in answer to each,
    and `on_ended(lane)` once when the thread is over."""

    def __init__(
        self,
        destination: Destination,
        on_done: "Callable[[Lane, Job, Exception | None, bool], None]",
        on_ended: "Callable[[Lane], None]",
    ) -> None:
        self._to = destination
        self._on_done = on_done
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sock: socket.socket | None = None
        self._receiving: Job | None = None
        self._fresh = True
        """Nothing was received over this connection yet."""
        self.idle_since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"mooncask-from-{destination.peer.name}", daemon=True)
        self._thread.start()

    # --- the loop's thread ---

    def start(self, job: Job) -> None:
        job.lane = self
        self._jobs.put(job)

    def withdraw(self, job: Job) -> bool:
        """Nobody wants it any more. True: it never wrote and never will; False: `on_done` comes in a moment."""
        with self._lock:
            job.withdrawn = True
            if self._receiving is not job:
                job.targets = []
                return True
            self._shut()
            return False

    def stop(self) -> None:
        """Ends the thread, whatever it does; `on_ended` follows."""
        self._jobs.put(None)
        with self._lock:
            self._shut()

    def join(self) -> None:
        """Returns at once after `on_ended`."""
        self._thread.join()

    def _shut(self) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                # Not SSLSocket's own: it would forget its TLS while the thread is in it.
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)

    # --- its own thread ---

    def _run(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                error, usable = self._carry(job)
                self._tell(self._on_done, self, job, error, usable)
                job = None
                if not usable:
                    break
        finally:
            self._close()
            self._tell(self._on_ended, self)

    def _tell(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(call, *arguments)

    def _carry(self, job: Job) -> tuple[Exception | None, bool]:
        """The job's error, and whether the connection is in a known state afterwards."""
        try:
            try:
                self._receive(job)
            except _Stale:
                self._close()  # it was closed while it lay idle: what the peer has not answered can be asked again
                self._receive(job)
        except _Withdrawn:
            return None, True
        except _Answered as answer:
            return answer.error, True
        except MooncaskError as error:
            return error.with_traceback(None), False  # its frames have the caller's memory
        except (OSError, ValueError, EOFError) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return PeerUnavailable(self._to.peer.name, f"data connection: {why}"), False
        return None, True

    def _receive(self, job: Job) -> None:
        sock = self._connected(job.deadline)
        with self._lock:
            if job.withdrawn:
                raise _Withdrawn
            self._receiving = job
        try:
            self._ask(sock, job.request)
            job.digests.clear()
            for target, whole in zip(job.targets, job.whole, strict=True):
                receive_into(sock, target)
                job.digests.append(payload_checksum(target) if whole else b"")
            self._fresh = False
        finally:
            with self._lock:
                self._receiving = None

    def _ask(self, sock: socket.socket, request: bytes) -> None:
        """Raises _Answered where the peer refuses, _Stale where it had closed the connection before it was asked."""
        try:
            sock.sendall(request)
            length = refusal_length(receive_all(sock, ANSWER_BYTES))
        except OSError as error:
            if self._fresh or self._withdrawn():
                raise
            raise _Stale from error
        if length:
            self._fresh = False
            raise _Answered(error_of(parse_failed(receive_all(sock, padded(length))[:length])))

    def _withdrawn(self) -> bool:
        with self._lock:
            return self._receiving is None or self._receiving.withdrawn

    # --- connecting ---

    def _connected(self, deadline: float) -> socket.socket:
        if self._sock is None:
            seconds = min(CONNECT_SECONDS_MAX, deadline - time.monotonic())
            if seconds <= 0:
                raise TimeoutError("no time left to connect")
            self._connect(seconds)
        assert self._sock is not None
        return self._sock

    def _connect(self, seconds: float) -> None:
        sock = socket.socket(self._to.family, socket.SOCK_STREAM)
        with self._lock:
            self._sock = sock  # before it connects, so that `stop` can interrupt that too
        sock.settimeout(seconds)
        sock.connect(self._to.address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        side = ClientSide(self._to.credentials, auth.DATA, self._to.peer.address, self._to.token)
        sock.sendall(side.preamble())
        side.preamble_came(receive_all(sock, auth.PREAMBLE_BYTES))
        sock = self._encrypt(sock)
        found = greet_blocking(side, sock).introduction
        if found.incarnation != self._to.peer.incarnation:
            raise PeerChanged(self._to.peer.name, self._to.peer.incarnation.hex(), found.incarnation.hex())
        sock.settimeout(None)
        self._fresh = True

    def _encrypt(self, sock: socket.socket) -> socket.socket:
        context = self._to.credentials.client_tls
        if context is None:
            return sock
        with self._lock:
            tls: ssl.SSLSocket = context.wrap_socket(sock, do_handshake_on_connect=False)
            self._sock = tls
        tls.do_handshake()
        return tls

    def _close(self) -> None:
        """At once: a peer that sends into a full window learns nothing from a shutdown, nor from an end in good order that
        takes the last bytes along, and would keep the block for a minute."""
        with self._lock:
            if self._sock is not None:
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
                self._sock.close()
            self._sock = None


class _Withdrawn(Exception):
    """The job was taken back before it began."""


class _Stale(Exception):
    """The connection had been closed before this job."""


class _Answered(Exception):
    """The peer refused, in good form."""

    def __init__(self, error: MooncaskError) -> None:
        super().__init__(error.message)
        self.error = error
