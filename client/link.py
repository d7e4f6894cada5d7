"""One connection of the sync client. Many threads may have calls under way on it; no thread of its own.

Whichever waiting thread finds nobody reading reads, and hands out what came; the others sleep until their answer is there
or it is their turn to read. So a lone caller pays one send and one receive and no thread switch.
"""

import contextlib
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import Any

from mooncask.client.dial import Dialled
from mooncask.client.operations import AnyOperation
from mooncask.client.session import Call, Session
from mooncask.errors import DaemonUnavailable, DeadlineExceeded

_RECEIVE_BYTES = 256 << 10


class NotSent(Exception):
    """The connection was found dead before the daemon could have seen the request: it can be sent again elsewhere."""


class Link:
    """A connection and its calls. Thread-safe; `_state` guards the session, `_sending` the order of bytes on the socket."""

    def __init__(self, dialled: Dialled) -> None:
        self.session: Session = dialled.session
        self.populators = dialled.populators
        self._sock = dialled.sock
        self._sock.setblocking(False)
        self._readable = select.poll()
        self._readable.register(self._sock, select.POLLIN)
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._state = threading.Condition()
        self._sending = threading.Lock()
        self._reading = False
        self._followers = 0
        self.dead = False
        if dialled.rest:
            self.session.receive(dialled.rest)

    # --- sending ---

    def start(self, operation: AnyOperation, handle: int, deadline: float) -> Call:
        """Sends a request. Raises NotSent, and DeadlineExceeded when the daemon does not even take the bytes."""
        with self._sending:
            if self.dead:
                raise NotSent
            with self._state:
                call, data = self.session.begin(operation.build, handle, operation.progress)
            try:
                self._send(data, deadline, operation)
            except BaseException:
                self.abandon(call)
                raise
        return call

    def flush(self) -> None:
        """Sends what waits to be given back, if anything does and the socket takes it at once."""
        with self._sending:
            if self.dead or not self.session.has_leftovers:
                return
            with self._state:
                data = self.session.leftovers()
            try:
                self._send(data, time.monotonic() + 1.0, None)
            except (NotSent, DeadlineExceeded):
                return  # the connection is dead: the next call makes another one and its Hello names what still lives

    def _send(self, data: bytes, deadline: float, operation: AnyOperation | None) -> None:
        rest, sent_any = memoryview(data), False
        while rest:
            try:
                sent = self._sock.send(rest)
                rest, sent_any = rest[sent:], True
            except BlockingIOError:
                self._wait_writable(deadline, operation, sent_any)
            except OSError as exc:
                self._break(exc.strerror or str(exc))
                raise NotSent from exc

    def _wait_writable(self, deadline: float, operation: AnyOperation | None, sent_any: bool) -> None:
        writable = select.poll()
        writable.register(self._sock, select.POLLOUT)
        if not writable.poll(_poll_ms(deadline)):
            error = DeadlineExceeded(
                operation.what if operation else "release", operation.seconds if operation else 1.0
            )
            if sent_any:  # half a frame is out: nothing sensible can follow it
                self._break("it stopped reading in the middle of a request")
            raise error

    # --- receiving ---

    def wait(self, call: Call, deadline: float, operation: AnyOperation) -> None:
        """Returns when the call is finished. Raises DeadlineExceeded, and then the call is abandoned."""
        try:
            while not call.finished:
                if self._take_turn(call, deadline, operation):
                    self._read_once(deadline)
                call.tell_progress()
        except BaseException:
            self.abandon(call)
            raise

    def _take_turn(self, call: Call, deadline: float, operation: AnyOperation) -> bool:
        """True: this thread is the reader now and must read. False: something came for the call."""
        with self._state:
            while not call.finished and not call.progressed:
                if time.monotonic() >= deadline:
                    raise DeadlineExceeded(operation.what, operation.seconds)
                if not self._reading:
                    self._reading = True
                    return True
                self._followers += 1
                self._state.wait(deadline - time.monotonic())
                self._followers -= 1
            return False

    def _read_once(self, deadline: float) -> None:
        """Waits for bytes until the deadline, hands out what they hold, and lets another thread read."""
        try:
            data = self._receive(deadline)
            if data is not None:
                with self._state:
                    self.session.receive(data)
        except DaemonUnavailable as error:
            self._break(error.why)
        finally:
            with self._state:
                self._reading = False
                if self._followers:
                    self._state.notify_all()

    def _receive(self, deadline: float) -> memoryview | None:
        """What came, or None at the deadline. Raises DaemonUnavailable at the end of the stream."""
        if not self._readable.poll(_poll_ms(deadline)):
            return None
        try:
            count = self._sock.recv_into(self._buffer)
        except BlockingIOError:
            return None
        except OSError as exc:
            raise DaemonUnavailable(self.session.address, exc.strerror or str(exc)) from exc
        if count == 0:
            raise DaemonUnavailable(self.session.address, "it closed the connection")
        return self._buffer[:count]

    # --- ending ---

    def abandon(self, call: Call) -> None:
        with self._state:
            self.session.abandon(call)

    def _break(self, why: str) -> None:
        with self._state:
            if not self.dead:
                self.dead = True
                self.session.fail_all(why)
            self._state.notify_all()

    def close(self, why: str) -> None:
        """Ends the connection; calls under way fail with DaemonUnavailable, for this reason."""
        self._break(why)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for bytes
        for populator in self.populators:
            populator.stop()
        with self._sending:
            self._sock.close()

    def drop_inherited(self) -> None:
        """In a forked child: close this process's copy of the socket and nothing else; the parent uses the connection."""
        self._sock.close()


@dataclass(frozen=True, slots=True)
class PendingCall:
    """A request that was sent, to be waited for later."""

    link: Link
    call: Call
    operation: AnyOperation
    deadline: float

    def abandon(self) -> None:
        self.link.abandon(self.call)

    def wait(self) -> Any:
        """The operation's value; raises what the daemon answered, DeadlineExceeded or DaemonUnavailable."""
        self.link.wait(self.call, self.deadline, self.operation)
        return self.operation.shape(self.link.session, self.call.results())


def _poll_ms(deadline: float) -> float:
    return max(0.0, (deadline - time.monotonic()) * 1000.0)
