"""Frames of one local connection: bytes in, requests to their handlers, replies out. What requests mean is elsewhere.

Backpressure: nothing is read while the client does not read its replies, or has too many requests under way. So one
connection buffers at most one frame and one read of the socket.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec

from mooncask.client import wire
from mooncask.daemon.ahead import Ahead
from mooncask.daemon.control import Control
from mooncask.daemon.insight.latencies import Latencies
from mooncask.daemon.reading import Reading
from mooncask.daemon.session import Session
from mooncask.daemon.writing import WritingRequests
from mooncask.errors import MooncaskError, error_data

log = logging.getLogger(__name__)

UNSENT_BYTES_MAX = 1 << 20
"""Replies that wait for the client to read them; above this its requests are not read."""

Later = Coroutine[Any, Any, wire.Message | None]
Handler = Callable[[Any], wire.Message | Later | None]


class Connection(asyncio.Protocol):
    """Serves one session over one transport. A malformed frame ends the connection and nothing else."""

    def __init__(self, requests_open_max: int, on_closed: Callable[["Connection"], None]) -> None:
        self.session: Session | None = None
        self.tasks: set[asyncio.Task[None]] = set()
        self._requests_open_max = requests_open_max
        self._on_closed = on_closed
        self._transport: asyncio.Transport | None = None
        self._decoder = msgspec.msgpack.Decoder(wire.Request)
        self._encoder = msgspec.msgpack.Encoder()
        self._handlers: dict[type, Handler] = {}
        self._latencies = Latencies()
        """The daemon's, once there is a session."""
        self._buffer = bytearray()
        self._unread = False
        """The client does not read its replies."""
        self._reading = True

    # --- life ---

    def serve(self, session: Session) -> None:
        """From now on requests are answered. Called right after the Welcome was sent."""
        self.session = session
        self._latencies = session.plane.insight.latencies
        self._handlers = _handlers(session)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self.session is not None:
            self.session.close()
        self._on_closed(self)

    def cut(self, reason: str) -> None:
        """End the connection at once; what it holds is dealt with before this returns."""
        if self._transport is not None:
            log.debug("connection cut: %s", reason)
            self._transport.abort()
        if self.session is not None:
            self.session.close()

    # --- replies ---

    def send(self, message: wire.Message) -> None:
        if self._transport is not None:
            self._transport.write(wire.frame(self._encoder, message))

    def _fail(self, request_id: int, error: MooncaskError) -> None:
        self.send(wire.Failed(request_id, type(error).__name__, error.message, error_data(error)))

    def pause_writing(self) -> None:
        self._unread = True
        if self.session is not None:
            self.session.congested = True
        self._regulate()

    def resume_writing(self) -> None:
        self._unread = False
        if self.session is not None:
            self.session.congested = False
        self._regulate()
        self._work_off()

    # --- requests ---

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._work_off()

    def _work_off(self) -> None:
        """Handles the whole frames that are here, as far as backpressure lets it."""
        buffer, header = self._buffer, wire.HEADER.size
        start = 0
        while len(buffer) - start >= header and not self._choked() and self._alive():
            (length,) = wire.HEADER.unpack_from(buffer, start)
            if length > wire.FRAME_BYTES_MAX:
                self._malformed(f"a frame of {length} bytes; at most {wire.FRAME_BYTES_MAX} are allowed")
                return
            stop = start + header + length
            if len(buffer) < stop:
                break
            try:
                with memoryview(buffer) as whole, whole[start + header : stop] as body:
                    request = self._decoder.decode(body)
            except (msgspec.MsgspecError, ValueError) as error:  # ValueError: text that is no UTF-8
                self._malformed(f"not a request: {error}")
                return
            self._handle(request)
            start = stop
        del buffer[:start]
        self._regulate()

    def _handle(self, request: Any) -> None:
        began = time.perf_counter()
        handler = self._handlers.get(type(request))
        if handler is None:
            self._malformed("a second Hello")
            return
        try:
            answer = handler(request)
        except MooncaskError as error:
            self._fail(request.id, error)
            return
        if isinstance(answer, wire.Message):
            self.send(answer)
            self._latencies.answered_at_once(request, time.perf_counter() - began)
        elif answer is not None:
            self._spawn(request, answer, began)

    def _spawn(self, request: Any, work: Later, began: float) -> None:
        task = asyncio.get_running_loop().create_task(self._answer_later(request, work, began))
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

    async def _answer_later(self, request: Any, work: Later, began: float) -> None:
        """The top of a request's task: whatever happens in it ends here and reaches the client as an error."""
        try:
            answer = await work
        except MooncaskError as error:
            self._fail(request.id, error)
        except Exception:
            log.exception("request failed by a fault of this daemon")
            self._fail(request.id, _internal())
        else:
            if answer is not None:
                self.send(answer)
        self._latencies.answered_later(request, time.perf_counter() - began)

    def _task_done(self, task: "asyncio.Task[None]") -> None:
        choked = self._choked()
        self.tasks.discard(task)
        if choked:
            self._work_off()

    def _malformed(self, what: str) -> None:
        if self.session is not None:
            self.session.plane.counters["frames_malformed"] += 1
            log.warning("process %d: %s; the connection is closed", self.session.process.peer.pid, what)
        self._buffer.clear()
        self.cut(what)

    # --- backpressure ---

    def _alive(self) -> bool:
        return self._transport is not None and self.session is not None and not self.session.closed

    def _choked(self) -> bool:
        return self._unread or len(self.tasks) >= self._requests_open_max

    def _regulate(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        wanted = not self._choked()
        if wanted and not self._reading:
            self._transport.resume_reading()
        elif not wanted and self._reading:
            self._transport.pause_reading()
        self._reading = wanted


def _handlers(session: Session) -> dict[type, Handler]:
    reading, writing, control = Reading(session), WritingRequests(session), Control(session)
    ahead = Ahead(session)
    return {
        wire.Open: control.open,
        wire.Match: reading.match,
        wire.Acquire: reading.acquire,
        wire.Adopt: reading.adopt,
        wire.Expect: writing.expect,
        wire.Release: reading.release,
        wire.Recomputed: reading.recomputed,
        wire.Reserve: writing.reserve,
        wire.Advance: writing.advance,
        wire.Commit: writing.commit,
        wire.Abort: writing.abort,
        wire.Pin: control.pin,
        wire.Unpin: control.unpin,
        wire.SetTtl: control.set_ttl,
        wire.Evict: control.evict,
        wire.Stat: control.stat,
        wire.ListBlocks: control.list_blocks,
        wire.Verify: reading.verify,
        wire.Replicate: ahead.replicate,
        wire.Warm: ahead.warm,
    }


class _InternalError(MooncaskError):
    """A fault of the daemon itself; the log has the details."""


def _internal() -> MooncaskError:
    return _InternalError("the daemon failed on this request by its own fault; its log says where")
