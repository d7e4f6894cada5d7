"""One request from its checked body to its answer, whole or as server-sent events.

The stream's header is sent when decode has admitted every answer, so that a late rejection is still a 429. A connection
that breaks ends the request; a Conductor that dies breaks its connections, which no client takes for an answer's end.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from mooncask.conductor.serving.door.answering import Answer, TextPiece
from mooncask.conductor.serving.door.caching import CacheUse, Caching
from mooncask.conductor.serving.door.failures import failure_body
from mooncask.conductor.serving.door.formats import ChatShape, TextShape, ids_of, with_logprobs
from mooncask.conductor.serving.door.gate import CallUsage, Gate, Identity
from mooncask.conductor.serving.job import Begun
from mooncask.errors import MooncaskError, Overloaded

log = logging.getLogger(__name__)

Events = AsyncGenerator[tuple[int, Begun | TextPiece | None]]


@dataclass(slots=True)
class Call:
    """One request of a client, with its answers."""

    gate: Gate
    identity: Identity
    answers: list[Answer]
    shape: ChatShape | TextShape
    headers: dict[str, str]
    caching: Caching | None = None
    cache: CacheUse | None = None
    """The cache that the request names."""
    token_ids: bool = False
    """Whether the client wants them."""
    client_seconds: float = 60.0
    """A client that takes nothing for so long is cut off."""
    pieces: list[list[TextPiece]] = field(default_factory=list)
    broken: bool = False
    """Its stream ended with an error."""
    streamed: bool = False
    """The client has got what there is of it."""

    async def whole(self) -> dict[str, Any]:
        """The answer when all of it is there."""
        self.pieces = [[] for _ in self.answers]
        async with self._recorded():
            try:
                async with asyncio.TaskGroup() as group:
                    for number in range(len(self.answers)):
                        group.create_task(self._collect(number))
            except ExceptionGroup as errors:  # the first that failed has ended the others
                raise errors.exceptions[0] from errors
        await self._cache_headers()
        whole = with_logprobs(self.shape.whole(self.answers), self.shape, self.pieces)
        if self.token_ids:
            for choice, answer in zip(whole["choices"], self.answers, strict=True):
                choice |= ids_of(answer)
        return whole

    async def stream(self, request: web.Request, include_usage: bool) -> web.StreamResponse:
        """Server-sent events; raises what comes before the first of them."""
        async with self._recorded(), contextlib.aclosing(_merged(self.answers)) as events:
            early = await self._all_begun(events)
            await self._cache_headers()
            response = web.StreamResponse(
                headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache", **self.headers}
            )
            await response.prepare(request)
            self.streamed = True
            await self._send_all(request, response, early, events, include_usage)
        return response

    async def _cache_headers(self) -> None:
        if self.caching is not None and self.cache is not None:
            cached = max(answer.cached_tokens for answer in self.answers)
            self.headers |= await self.caching.used(self.cache, cached)

    async def _all_begun(self, events: Events) -> list[tuple[int, TextPiece | None]]:
        """Waits for the last answer to begin. What early answers say meanwhile, and None where one of them has ended."""
        early: list[tuple[int, TextPiece | None]] = []
        waiting = len(self.answers)
        while waiting:
            number, event = await anext(events)
            if isinstance(event, Begun):
                waiting -= 1
            else:
                early.append((number, event))
        return early

    async def _send_all(
        self,
        request: web.Request,
        response: web.StreamResponse,
        early: list[tuple[int, TextPiece | None]],
        events: Events,
        include_usage: bool,
    ) -> None:
        try:
            for number in range(len(self.answers)):
                if (first := self.shape.first(number)) is not None:
                    await self._send(response, first)
            for number, piece in early:
                await self._send_one(response, number, piece)
            async for number, event in events:
                if not isinstance(event, Begun):
                    await self._send_one(response, number, event)
            if include_usage:
                await self._send(response, self.shape.usage(self.answers))
            await self._write(response, b"data: [DONE]\n\n")
            await response.write_eof()
        except (ConnectionError, TimeoutError) as exc:
            log.info("request %s: the client is gone, or takes nothing: %r", self._id, exc)
            _cut_off(request)
        except Exception as exc:  # it had begun: one event says that it is broken, and no end follows
            self.broken = True
            if not isinstance(exc, MooncaskError):
                log.exception("request %s failed by a fault of this Conductor", self._id)
            await self._send_failure(request, response, exc)

    async def _send_one(self, response: web.StreamResponse, number: int, piece: TextPiece | None) -> None:
        """A piece of one answer, or its end."""
        if piece is not None:
            await self._send(response, self.shape.chunk(number, piece))
            return
        last = self.shape.last(number, self.answers[number].reason)
        if self.token_ids:
            last["choices"][0] |= ids_of(self.answers[number])
        await self._send(response, last)

    async def _send_failure(self, request: web.Request, response: web.StreamResponse, error: Exception) -> None:
        try:
            await self._send(response, failure_body(error))
            await response.write_eof()
        except (ConnectionError, TimeoutError):
            _cut_off(request)

    async def _send(self, response: web.StreamResponse, event: dict[str, Any]) -> None:
        await self._write(response, b"data: " + msgspec.json.encode(event) + b"\n\n")

    async def _write(self, response: web.StreamResponse, data: bytes) -> None:
        async with asyncio.timeout(self.client_seconds):
            await response.write(data)

    @property
    def _id(self) -> str:
        return self.answers[0].job.id

    async def _collect(self, number: int) -> None:
        async with contextlib.aclosing(self.answers[number].pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, TextPiece):
                    self.pieces[number].append(piece)

    @contextlib.asynccontextmanager
    async def _recorded(self) -> AsyncIterator[None]:
        """Admitted by the gate; then each answer is recorded once, however it ended. Nobody pays for tokens of which he has got
        an error instead. Raises TokenQuotaExceeded."""
        prompt = len(self.answers[0].job.tokens)
        await self.gate.admit(self.identity, prompt + sum(answer.job.max_tokens for answer in self.answers))
        began, at = time.monotonic(), time.time()
        outcome = "cancelled"
        try:
            yield
            outcome = "failed" if self.broken else ""
        except Exception as exc:
            outcome = "rejected" if isinstance(exc, Overloaded) else "failed"
            raise
        finally:
            given = self.streamed or outcome not in ("failed", "rejected")
            for answer in self.answers:
                ended = (given and answer.reason) or outcome or "cancelled"
                self._record(answer, ended, len(answer.tokens) if given else 0, at, time.monotonic() - began)

    def _record(self, answer: Answer, outcome: str, output_tokens: int, at: float, seconds: float) -> None:
        job, first = answer.job, answer is self.answers[0]
        usage = CallUsage(
            request=job.id,
            tenant=job.tenant,
            model=job.model,
            prompt_tokens=len(job.tokens) if first else 0,
            cached_tokens=answer.cached_tokens if first else 0,
            output_tokens=output_tokens,
            outcome=outcome,
            at=at,
            seconds=seconds,
            cache_id=self.cache.cache if self.cache is not None else "",
            cache_tokens=self.cache.tokens if self.cache is not None else 0,
            answer_tokens_max=job.max_tokens,
        )
        self.gate.record(self.identity, usage)


async def _merged(answers: list[Answer]) -> AsyncGenerator[tuple[int, Begun | TextPiece | None]]:
    """The events of all answers as they come; None when one has ended. Raises what the first failing one raises."""
    if len(answers) == 1:
        async with contextlib.aclosing(answers[0].pieces()) as pieces:
            async for piece in pieces:
                yield 0, piece
        yield 0, None
        return
    queue: asyncio.Queue[tuple[int, Begun | TextPiece | Exception | None]] = asyncio.Queue(maxsize=64)

    async def pump(number: int) -> None:
        try:
            async with contextlib.aclosing(answers[number].pieces()) as pieces:
                async for piece in pieces:
                    await queue.put((number, piece))
            await queue.put((number, None))
        except Exception as exc:  # noqa: BLE001  # whoever reads the queue raises it
            await queue.put((number, exc))

    tasks = [asyncio.create_task(pump(number)) for number in range(len(answers))]
    try:
        running = len(tasks)
        while running:
            number, event = await queue.get()
            if isinstance(event, Exception):
                raise event
            running -= event is None
            yield number, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cut_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
