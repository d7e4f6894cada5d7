"""One connection of the asyncio client. Everything belongs to the loop's thread."""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, cast

from mooncask.client.dial import Dialled
from mooncask.client.link import NotSent
from mooncask.client.operations import AnyOperation
from mooncask.client.session import Call, Session
from mooncask.errors import DaemonUnavailable, DeadlineExceeded

UNSENT_BYTES_MAX = 1 << 20
"""Requests that wait for the daemon to read them; above this a call waits before it sends."""


class AsyncLink(asyncio.Protocol):
    """A connection and its calls."""

    def __init__(self, dialled: Dialled) -> None:
        self.session: Session = dialled.session
        self.dead = False
        self._populators = dialled.populators
        self._transport: asyncio.Transport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._lost = asyncio.Event()

    @classmethod
    async def over(cls, dialled: Dialled) -> "AsyncLink":
        """Hands the socket to the running loop."""
        link = cls(dialled)
        dialled.sock.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: link, sock=dialled.sock)
        if dialled.rest:
            link.data_received(dialled.rest)
        return link

    # --- the loop's side ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        try:
            self.session.receive(data)
        except DaemonUnavailable as error:
            self._break(error.why)

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(str(exc) if exc is not None else "it closed the connection")
        self._lost.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- the client's side ---

    async def start(self, operation: AnyOperation, handle: int, deadline: float) -> "AsyncPendingCall":
        """Sends a request. Raises NotSent, and DeadlineExceeded when the daemon does not even take the bytes."""
        loop = asyncio.get_running_loop()
        if not self._writable.is_set():
            with _deadline_of(operation):
                async with asyncio.timeout(deadline - loop.time()):
                    await self._writable.wait()
        if self.dead or self._transport is None:
            raise NotSent
        call, data = self.session.begin(operation.build, handle, operation.progress)
        future: asyncio.Future[None] = loop.create_future()

        def notify() -> None:
            call.tell_progress()
            if call.finished and not future.done():
                future.set_result(None)

        call.notify = notify
        self._transport.write(data)
        return AsyncPendingCall(self, call, operation, deadline, future)

    def flush(self) -> None:
        """Sends what waits to be given back."""
        if not self.dead and self._transport is not None and self.session.has_leftovers and self._writable.is_set():
            self._transport.write(self.session.leftovers())

    def close_now(self, why: str) -> None:
        """Ends the connection, except for the threads that populate its mappings."""
        self._break(why)
        if self._transport is not None:
            self._transport.close()

    async def close(self, why: str) -> None:
        """Ends the connection; calls under way fail with DaemonUnavailable, for this reason."""
        self.close_now(why)
        await self._lost.wait()
        for populator in self._populators:
            await asyncio.to_thread(populator.stop)

    def _break(self, why: str) -> None:
        if not self.dead:
            self.dead = True
            self._writable.set()
            self.session.fail_all(why)
            if self._transport is not None:
                self._transport.close()


@dataclass(frozen=True, slots=True)
class AsyncPendingCall:
    """A request that was sent, to be waited for later. `deadline` is on the loop's clock."""

    link: AsyncLink
    call: Call
    operation: AnyOperation
    deadline: float
    future: "asyncio.Future[None]"

    def abandon(self) -> None:
        self.link.session.abandon(self.call)

    async def wait(self) -> Any:
        """The operation's value; raises what the daemon answered, DeadlineExceeded or DaemonUnavailable."""
        try:
            with _deadline_of(self.operation):
                async with asyncio.timeout(self.deadline - asyncio.get_running_loop().time()):
                    await self.future
        finally:
            if not self.call.finished:
                self.abandon()
        return self.operation.shape(self.link.session, self.call.results())


@contextlib.contextmanager
def _deadline_of(operation: AnyOperation) -> Any:
    try:
        yield
    except TimeoutError as exc:
        raise DeadlineExceeded(operation.what, operation.seconds) from exc
