"""A worker that speaks client/worker_api.py over real HTTP and has no model: it answers right, or fails as it is told.

The right answer to a prompt depends on every token of it, so that a continuation which lost, repeated or swapped one goes
on wrongly. Faults are given by request id and used up one a call: `prefill` and `decode` of a request have lists of their own.
"""

import asyncio
import contextlib
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import aiohttp
import msgspec
from aiohttp import web
from scripted_answers import Broken, Script, Stream, answer_rightly, prefill_rightly
from worker_faults import DECODE_FAULTS, PREFILL_FAULTS

from mooncask.client.worker_api import (
    DecodeCall,
    Hashing,
    Node,
    PauseCall,
    Paused,
    PrefillCall,
    Registration,
    Report,
    Role,
)

REPORT_SECONDS = 0.05
ANY = "*"
"""In `faults`: whichever request comes."""


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
    prefill_seconds: float = 0.0
    """From a prefill's turn to its end."""
    pauses: list[float] = field(default_factory=list)
    """What it was asked to stand still for; it says yes and goes on."""
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
        app.router.add_post("/v1/pause", self._pause)
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

        async def rightly(stream: Stream, call: PrefillCall | DecodeCall) -> None:
            await prefill_rightly(stream, call, self.prefill_seconds)

        return await self._scripted(request, call, Role.PREFILL, PREFILL_FAULTS, rightly)

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        call = msgspec.json.decode(await request.read(), type=PauseCall)
        self.pauses.append(call.seconds)
        return web.Response(body=msgspec.json.encode(Paused(seconds=call.seconds)), content_type="application/json")

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
