"""Speaks to workers: one call, one stream of lines. Leaving the stream closes its connection, which cancels the call."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

import aiohttp
import msgspec

from mooncask.client.worker_api import (
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    PauseCall,
    Paused,
    PrefillCall,
    PrefillDone,
    StreamLine,
    WorkerKind,
)
from mooncask.conductor.serving.dispatch.ending import Ending
from mooncask.conductor.serving.dispatch.line_order import DecodeLines, PrefillLines, WrongLine
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.dispatch.speech import Asked, MooncaskSpeech, Speech
from mooncask.errors import BadRequest, DeadlineExceeded, MooncaskError, WorkerUnavailable

log = logging.getLogger(__name__)

CONNECT_SECONDS = 1.0
SILENCE_SECONDS = 60.0
"""A stream that says nothing for so long is taken for dead; a worker that is gone is noticed sooner by its reports."""


class Bounced(MooncaskError):
    """The worker has no place for it; it may go somewhere else."""

    code, http_status, exit_code = "Bounced", 503, 75


class KvLost(MooncaskError):
    """More KV is missing than decode may compute: the prefill is done again."""

    code, http_status, exit_code = "KvLost", 503, 75


class WorkerClient:
    """Of one Conductor; keeps connections open. `secret` is the one that it shares with its workers; a stream that says
    nothing for `silence_seconds` is taken for dead. `others`: how workers of other kinds are spoken to; `conductor`: by whom."""

    def __init__(
        self,
        secret: str,
        silence_seconds: float = SILENCE_SECONDS,
        others: Mapping[WorkerKind, Speech] | None = None,
        conductor: str = "",
    ) -> None:
        self._secret = secret
        self._speeches: dict[WorkerKind, Speech] = {
            WorkerKind.MOONCASK: MooncaskSpeech(secret, silence_seconds, conductor),
            **(others or {}),
        }
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 18)

    async def close(self) -> None:
        await self._session.close()

    async def pause(self, worker: Worker, seconds: float) -> float:
        """Has decode there stand still for so long, 0: go on; what of it the worker does. 0.0 where it can't be told."""
        limit = aiohttp.ClientTimeout(total=CONNECT_SECONDS)
        url, body = worker.registration.address + "/v1/pause", msgspec.json.encode(PauseCall(seconds=seconds))
        headers = {"Authorization": f"Bearer {self._secret}"}
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=limit) as response:
                response.raise_for_status()
                return msgspec.json.decode(await response.read(), type=Paused).seconds
        except _BROKEN as exc:
            log.debug("worker %s was not told to stand still: %r", worker.name, exc)
            return 0.0

    @asynccontextmanager
    async def stream(
        self, worker: Worker, call: PrefillCall | DecodeCall, stop: Ending | None = None
    ) -> AsyncIterator[AsyncIterator[StreamLine]]:
        """The lines of one call, up to and with its PrefillDone or DecodeDone, in the order of `line_order.py`.

        While they are read they raise Bounced, KvLost, BadRequest (refused), DeadlineExceeded at the call's deadline, and
        WorkerUnavailable when the worker broke off, failed, went away, or said what it may not say; KvLost also when `stop` is
        set: what the call waits for will not come.
        """
        async with aclosing(self._lines(worker, call, stop or Ending())) as lines:
            yield lines

    async def _lines(self, worker: Worker, call: PrefillCall | DecodeCall, stop: Ending) -> AsyncGenerator[StreamLine]:
        watch = _Watch(worker, stop, time.monotonic() + call.deadline_seconds)
        order = PrefillLines() if isinstance(call, PrefillCall) else DecodeLines(call)
        speech = self._speeches[worker.registration.kind]
        try:
            response = await self._opened(worker, speech.asked(worker, call), watch)
            async with response:
                with watch.ending(response.close):
                    async for line in speech.lines(worker, call, response):
                        order.check(line)
                        if isinstance(line, Failure):
                            raise _error(worker, line)
                        yield line
                        if isinstance(line, PrefillDone | DecodeDone):
                            return
        except _BROKEN as exc:
            if stop.is_set():
                raise KvLost(f"request {call.id}: the prefill that it waited for has failed") from exc
            if watch.late:
                raise DeadlineExceeded(f"request {call.id}", call.deadline_seconds) from exc
            why = "it is gone" if worker.gone.is_set() else f"{type(exc).__name__} {exc}"
            raise WorkerUnavailable(worker.name, f"request {call.id}: {why}") from exc
        raise WorkerUnavailable(worker.name, f"request {call.id}: it broke off in the middle of its answer")

    async def _opened(self, worker: Worker, asked: Asked, watch: "_Watch") -> aiohttp.ClientResponse:
        """The answer's head: a frozen worker takes a connection and never sends one."""
        url, loop = worker.registration.address + asked.path, asyncio.get_running_loop()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=asked.silence_seconds)
        async with asyncio.timeout(None) as limit:
            with watch.ending(lambda: limit.reschedule(loop.time())):
                return await self._session.post(url, data=asked.body, headers=asked.headers, timeout=timeout)


_BROKEN = (
    aiohttp.ClientError,
    TimeoutError,
    ConnectionError,
    msgspec.DecodeError,
    UnicodeDecodeError,
    RecursionError,
    WrongLine,
)
"""What a broken worker, or one that says nonsense, makes of reading from it."""


@dataclass(slots=True)
class _Watch:
    """Ends what is under way when the worker is taken to be gone, at `stop`, or at `until` on the monotonic clock: a worker
    that is frozen or cut off keeps its connections."""

    worker: Worker
    stop: Ending
    until: float

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.until

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Calls `end`, once."""
        first = Ending()
        late = asyncio.get_running_loop().call_later(max(0.0, self.until - time.monotonic()), first.set)
        try:
            with first.calling(end), self.worker.gone.calling(first.set), self.stop.calling(first.set):
                yield
        finally:
            late.cancel()


def _error(worker: Worker, failure: Failure) -> MooncaskError:
    match failure.kind:
        case FailureKind.BUSY:
            return Bounced(failure.message)
        case FailureKind.KV_LOST:
            return KvLost(failure.message)
        case FailureKind.REFUSED:
            return BadRequest(failure.message)
        case FailureKind.CANCELLED | FailureKind.INTERNAL:
            return WorkerUnavailable(worker.name, failure.message)
