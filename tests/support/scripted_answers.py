"""What a scripted worker says: its right answers, and the stream that it says them into. Faults: `worker_faults.py`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec
from aiohttp import web

from mooncask.client.worker_api import (
    Admitted,
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    PrefillCall,
    PrefillDone,
    Started,
    StreamLine,
    Tokens,
)

Script = Callable[["Stream", "PrefillCall | DecodeCall"], Awaitable[None]]


def right_answer(tokens: Sequence[int], count: int) -> list[int]:
    """The `count` tokens behind these."""
    state, said = 1, list[int]()
    for token in tokens:
        state = (state * 1_000_003 + token) % 2_147_483_647
    for _ in range(count):
        said.append(3 + state % 200)
        state = (state * 1_000_003 + said[-1]) % 2_147_483_647
    return said


class Broken(Exception):
    """The connection ends here."""


@dataclass
class Stream:
    """The answer to one call, as it is sent."""

    response: web.StreamResponse
    sent: int = 0

    async def line(self, *lines: StreamLine) -> None:
        for line in lines:
            await self.raw(msgspec.json.encode(line) + b"\n")
            self.sent += len(line.tokens) if isinstance(line, Tokens) else 0

    async def raw(self, data: bytes) -> None:
        await self.response.write(data)

    async def failure(self, kind: FailureKind) -> None:
        await self.line(Failure(kind=kind, message=f"as scripted: {kind}"))


async def prefill_rightly(stream: Stream, call: PrefillCall | DecodeCall, seconds: float = 0.0) -> None:
    """In `seconds` from its turn to its end."""
    done = PrefillDone(
        prompt_tokens=len(call.tokens),
        cached_tokens=0,
        computed_tokens=len(call.tokens),
        stored_blocks=0,
        queue_seconds=0.0,
        seconds=seconds or 0.001,
    )
    await stream.line(Admitted(), Started())
    if seconds:
        await asyncio.sleep(seconds)
    await stream.line(done)


async def answer_rightly(stream: Stream, call: DecodeCall, count: int, pace_seconds: float = 0.0) -> None:
    """`count` tokens; with all of them comes the end."""
    await stream.line(Admitted())
    await say(stream, call, count, pace_seconds)
    if count == call.max_tokens:
        await stream.line(done(stream))


async def say(stream: Stream, call: DecodeCall, count: int, pace_seconds: float = 0.0) -> None:
    for token in right_answer(call.tokens, count):
        await stream.line(Tokens(tokens=[token]))
        if pace_seconds:
            await asyncio.sleep(pace_seconds)


def done(stream: Stream, reason: str = "length", more: int = 0) -> DecodeDone:
    return DecodeDone(reason=reason, output_tokens=stream.sent + more, cached_tokens=0, computed_tokens=1)
