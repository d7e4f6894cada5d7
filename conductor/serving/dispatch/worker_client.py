"""Speaks to workers: one call, one stream of lines. Leaving the stream closes its connection, which cancels the call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import aiohttp
import msgspec

from mooncask.client.worker_api import (
    LINE_BYTES_MAX,
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    PrefillCall,
    PrefillDone,
    StreamLine,
)
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.errors import BadRequest, MooncaskError, WorkerUnavailable

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
    """Of one Conductor; keeps connections open. `secret` is the one that it shares with its workers."""

    def __init__(self, secret: str) -> None:
        headers = {"Authorization": f"Bearer {secret}"}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=timeout,
            connector=aiohttp.TCPConnector(limit=0),
            read_bufsize=1 << 18,
        )

    async def close(self) -> None:
        await self._session.close()

    @asynccontextmanager
    async def stream(self, worker: Worker, call: PrefillCall | DecodeCall) -> AsyncIterator[AsyncIterator[StreamLine]]:
        """The lines of one call, up to and with its PrefillDone or DecodeDone.

        While they are read they raise Bounced, KvLost, BadRequest (refused), and WorkerUnavailable when the worker broke off,
        failed, or went away.
        """
        async with aclosing(self._lines(worker, call)) as lines:
            yield lines

    async def _lines(self, worker: Worker, call: PrefillCall | DecodeCall) -> AsyncGenerator[StreamLine]:
        kind = "prefill" if isinstance(call, PrefillCall) else "decode"
        url = f"{worker.registration.address}/v1/{kind}"
        decoder = msgspec.json.Decoder(StreamLine)
        try:
            async with (
                self._session.post(url, data=msgspec.json.encode(call)) as response,
                _closed_when_gone(worker, response),
            ):
                async for text in _bounded_lines(response.content):
                    line = decoder.decode(text)
                    if isinstance(line, Failure):
                        raise _error(worker, line)
                    yield line
                    if isinstance(line, PrefillDone | DecodeDone):
                        return
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError, ConnectionError) as exc:
            raise WorkerUnavailable(worker.name, f"request {call.id}: {type(exc).__name__} {exc}") from exc
        raise WorkerUnavailable(worker.name, f"request {call.id}: it broke off in the middle of its answer")


async def _bounded_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines without their ends; a line longer than LINE_BYTES_MAX ends the stream as broken."""
    rest = b""
    async for data in content.iter_any():
        rest += data
        *lines, rest = rest.split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LINE_BYTES_MAX:
            raise aiohttp.ClientPayloadError("a line without an end")
    if rest.strip():
        yield rest


@asynccontextmanager
async def _closed_when_gone(worker: Worker, response: aiohttp.ClientResponse) -> AsyncIterator[None]:
    """A worker that is frozen or cut off keeps its connections: they are closed when it is taken to be gone."""

    async def close() -> None:
        await worker.gone.wait()
        response.close()

    closing = asyncio.create_task(close())
    try:
        yield
    finally:
        closing.cancel()


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
