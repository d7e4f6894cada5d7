"""A worker that speaks client/worker_api.py over real HTTP and has no model: it answers right, or fails as it is told.

The right answer to a prompt depends on every token of it, so that a continuation which lost, repeated or swapped one goes
on wrongly. Faults are given by request id and used up one a call: `prefill` and `decode` of a request have lists of their own.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import aiohttp
import msgspec
from aiohttp import web

from mooncask.client.worker_api import (
    Admitted,
    DecodeCall,
    DecodeDone,
    Failure,
    FailureKind,
    Hashing,
    Node,
    PrefillCall,
    PrefillDone,
    Registration,
    Report,
    Role,
    Started,
    StreamLine,
    Tokens,
)

REPORT_SECONDS = 0.05
ANY = "*"
"""In `faults`: whichever request comes."""
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


@dataclass
class ScriptedWorker:
    """`faults` by (request, role): names of the tables below; `pace_seconds` between two tokens."""

    conductor: str
    secret: str
    name: str
    role: Role
    model: str = "scripted"
    slots: int = 4
    pace_seconds: float = 0.0
    hashing: Hashing | None = None
    node: Node = field(default_factory=Node)
    faults: dict[tuple[str, Role], deque[str]] = field(default_factory=lambda: defaultdict(deque))
    running: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    calls: list[tuple[str, Role]] = field(default_factory=list)
    address: str = ""
    incarnation: str = field(default_factory=lambda: secrets.token_hex(4))

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator["ScriptedWorker"]:
        app = web.Application(client_max_size=16 << 20)
        app.router.add_post("/v1/prefill", self._prefill)
        app.router.add_post("/v1/decode", self._decode)
        runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.address = f"http://127.0.0.1:{runner.addresses[0][1]}"
        headers = {"Authorization": f"Bearer {self.secret}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            self._session = session
            await self.register()
            reporting = asyncio.create_task(self._reporting())
            try:
                yield self
            finally:
                reporting.cancel()
                await asyncio.gather(reporting, return_exceptions=True)
                await runner.cleanup()

    def registration(self) -> Registration:
        return Registration(
            name=self.name,
            incarnation=self.incarnation,
            address=self.address,
            role=self.role,
            model=self.model,
            family={"model": self.model},
            hashing=self.hashing,
            node=self.node,
            positions_max=100_000,
            slots=self.slots,
            prefill_tokens_per_second=1000.0,
        )

    async def register(self) -> None:
        async with self._session.post(
            f"{self.conductor}/internal/v1/register", data=msgspec.json.encode(self.registration())
        ) as response:
            assert response.status == 200, await response.text()

    async def report(self) -> None:
        requests = [request for request, count in self.running.items() for _ in range(count)]
        told = Report(
            name=self.name,
            incarnation=self.incarnation,
            role=self.role,
            running=len(requests),
            free_slots=self.slots - len(requests),
            requests=requests,
        )
        async with self._session.post(
            f"{self.conductor}/internal/v1/report", data=msgspec.json.encode(told)
        ) as response:
            known = (await response.json())["known"]
        if not known:
            await self.register()

    async def _reporting(self) -> None:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                await self.report()
            await asyncio.sleep(REPORT_SECONDS)

    # --- calls ---

    async def _prefill(self, request: web.Request) -> web.StreamResponse:
        call = msgspec.json.decode(await request.read(), type=PrefillCall)
        return await self._scripted(request, call, Role.PREFILL, PREFILL_FAULTS, prefill_rightly)

    async def _decode(self, request: web.Request) -> web.StreamResponse:
        call = msgspec.json.decode(await request.read(), type=DecodeCall)

        async def rightly(stream: Stream, call: PrefillCall | DecodeCall) -> None:
            assert isinstance(call, DecodeCall)
            await answer_rightly(stream, call, call.max_tokens, self.pace_seconds)

        return await self._scripted(request, call, Role.DECODE, DECODE_FAULTS, rightly)

    async def _scripted(
        self,
        request: web.Request,
        call: PrefillCall | DecodeCall,
        role: Role,
        table: dict[str, Script],
        rightly: Script,
    ) -> web.StreamResponse:
        self.calls.append((call.id, role))
        self.running[call.id] += 1
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        try:
            faults = self.faults.get((call.id, role)) or self.faults.get((ANY, role))
            fault = faults.popleft() if faults else ""
            if fault == "no head":
                raise Broken
            await response.prepare(request)
            await (table[fault] if fault else rightly)(Stream(response), call)
            await response.write_eof()
        except (Broken, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
        finally:
            self.running[call.id] -= 1
            if not self.running[call.id]:
                del self.running[call.id]
        return response


async def prefill_rightly(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    done = PrefillDone(
        prompt_tokens=len(call.tokens),
        cached_tokens=0,
        computed_tokens=len(call.tokens),
        stored_blocks=0,
        queue_seconds=0.0,
        seconds=0.001,
    )
    await stream.line(Admitted(), Started(), done)


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


# --- faults ---


def _decode(fault: Callable[[Stream, DecodeCall], Awaitable[None]]) -> Script:
    async def script(stream: Stream, call: PrefillCall | DecodeCall) -> None:
        assert isinstance(call, DecodeCall)
        await fault(stream, call)

    return script


def _half(call: DecodeCall) -> int:
    return max(1, call.max_tokens // 2)


async def _bounces(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.failure(FailureKind.BUSY)


async def _refuses(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.failure(FailureKind.REFUSED)


async def _fails(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.failure(FailureKind.INTERNAL)


async def _breaks_at_once(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    raise Broken


async def _is_silent(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await asyncio.Event().wait()


async def _babbles(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.raw(b"\xff\xfe{]\n")


async def _nests(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.raw(b'{"event": "admitted", "more": ' + b"[" * 100_000 + b"\n")


async def _never_ends_its_line(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())
    for _ in range(20):
        await stream.raw(b"x" * (1 << 20))
    await asyncio.Event().wait()


async def _ends_early(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted())  # and a well-formed end of the response


async def _breaks_off(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    raise Broken


async def _breaks_off_before_its_end(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens)
    raise Broken


async def _loses_kv(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await stream.failure(FailureKind.KV_LOST)


async def _falls_silent(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    await asyncio.Event().wait()


async def _says_tokens_first(stream: Stream, call: DecodeCall) -> None:
    await say(stream, call, 1)


async def _says_done_first(stream: Stream, call: DecodeCall) -> None:
    await stream.line(done(stream))


async def _says_what_a_prefill_says(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted(), Started())


async def _admits_twice(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted(), Admitted())


async def _goes_on_behind_its_end(stream: Stream, call: DecodeCall) -> None:
    await answer_rightly(stream, call, call.max_tokens)
    await stream.line(Tokens(tokens=[7]))


async def _says_too_much(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens)
    await stream.line(Tokens(tokens=[7]))


async def _swallows_tokens(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, _half(call))
    await stream.line(done(stream, more=1))


async def _ends_too_soon(stream: Stream, call: DecodeCall) -> None:
    await stream.line(Admitted())
    await say(stream, call, call.max_tokens - 1)
    await stream.line(done(stream))


async def _breaks_off_behind_started(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Started())
    raise Broken


async def _is_silent_behind_started(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Started())
    await asyncio.Event().wait()


async def _admits_a_prefill_twice(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    await stream.line(Admitted(), Admitted())


async def _no_head(stream: Stream, call: PrefillCall | DecodeCall) -> None:
    raise AssertionError("done before there is a stream")


_BOTH: dict[str, Script] = {
    "no head": _no_head,
    "bounces": _bounces,
    "refuses": _refuses,
    "fails": _fails,
    "breaks at once": _breaks_at_once,
    "is silent": _is_silent,
    "babbles": _babbles,
    "nests": _nests,
    "never ends its line": _never_ends_its_line,
    "ends early": _ends_early,
}
DECODE_FAULTS: dict[str, Script] = {
    **_BOTH,
    "breaks off": _decode(_breaks_off),
    "breaks off before its end": _decode(_breaks_off_before_its_end),
    "loses kv": _decode(_loses_kv),
    "falls silent": _decode(_falls_silent),
    "says tokens first": _decode(_says_tokens_first),
    "says done first": _decode(_says_done_first),
    "says what a prefill says": _decode(_says_what_a_prefill_says),
    "admits twice": _decode(_admits_twice),
    "goes on behind its end": _decode(_goes_on_behind_its_end),
    "says too much": _decode(_says_too_much),
    "swallows tokens": _decode(_swallows_tokens),
    "ends too soon": _decode(_ends_too_soon),
}
PREFILL_FAULTS: dict[str, Script] = {
    **_BOTH,
    "breaks off behind started": _breaks_off_behind_started,
    "is silent behind started": _is_silent_behind_started,
    "admits twice": _admits_a_prefill_twice,
}
