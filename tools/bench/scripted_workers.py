"""Workers that compute nothing, for measuring what is in front of them: they register, report and answer over real HTTP as
`client/worker_api.py` says, and stand for their nodes' pages, too. `python -m mooncask.tools.bench.scripted_workers`.

A prefill is done at once; an answer is as many tokens as were asked for, all in one line. GET /seen tells when the head of
each prefill or decode call came, on the machine's monotonic clock.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator

import aiohttp
import msgspec
from aiohttp import web

from mooncask.client.control import Matched, WhyRequest
from mooncask.client.worker_api import (
    REPORT_SECONDS,
    Admitted,
    DecodeDone,
    Hashing,
    Line,
    Node,
    PrefillDone,
    Registration,
    Report,
    Role,
    Started,
    Tokens,
)

MODEL = "scripted"
BLOCK_TOKENS = 512
HELD_SHARE = 0.5
"""Of each prompt, what every node holds."""
CLOSED_FORM = {"namespace": "bench", "fingerprint": "00" * 16, "tenant_salt": "", "hash": "sha256"}
ID_BYTES = 100


class ScriptedWorkers:
    """`count` of them, half for each role, each on a port of its own."""

    def __init__(self, conductor: str, count: int, secret: str) -> None:
        self._conductor, self._count = conductor, count
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._seen: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/prefill", self._prefill)
        app.router.add_post("/v1/decode", self._decode)
        app.router.add_post("/-/v1/match", self._match)
        app.router.add_get("/seen", self._told)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        try:
            for _ in range(self._count):
                await web.TCPSite(runner, "127.0.0.1", 0).start()
            ports = [address[1] for address in runner.addresses]
            async with aiohttp.ClientSession(headers=self._headers) as session:
                tasks = [asyncio.create_task(self._live(session, number, port)) for number, port in enumerate(ports)]
                print(f"scripted workers at http://127.0.0.1:{ports[0]}", flush=True)
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await runner.cleanup()

    async def _live(self, session: aiohttp.ClientSession, number: int, port: int) -> None:
        """Registers, and reports as often as real ones do."""
        address, role = f"http://127.0.0.1:{port}", Role.PREFILL if number % 2 == 0 else Role.DECODE
        told = Registration(
            name=f"worker-{number}",
            incarnation=f"{os.getpid()}",
            address=address,
            role=role,
            model=MODEL,
            family={"model": MODEL},
            hashing=Hashing(**CLOSED_FORM, block_tokens=BLOCK_TOKENS, block_bytes=BLOCK_TOKENS * 1024),
            node=Node(name=f"node-{number}", pages=address),
            positions_max=1 << 20,
            slots=256,
            prefill_tokens_per_second=1e6,
            gone_seconds=600.0,
        )
        await self._tell(session, "register", told)
        report = Report(name=told.name, incarnation=told.incarnation, role=role, free_slots=256)
        while True:
            await self._tell(session, "report", report)
            await asyncio.sleep(REPORT_SECONDS)

    async def _tell(self, session: aiohttp.ClientSession, what: str, message: Registration | Report) -> None:
        async with session.post(f"{self._conductor}/internal/v1/{what}", data=msgspec.json.encode(message)) as response:
            response.raise_for_status()

    # --- what is asked of them ---

    async def _prefill(self, request: web.Request) -> web.StreamResponse:
        await self._read(request)
        done = PrefillDone(
            prompt_tokens=0, cached_tokens=0, computed_tokens=0, stored_blocks=0, queue_seconds=0.0, seconds=0.0
        )
        return _lines(Admitted(), Started(), done)

    async def _decode(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        wanted = msgspec.json.decode(body, type=_Wanted).max_tokens
        done = DecodeDone(reason="length", output_tokens=wanted, cached_tokens=0, computed_tokens=0)
        return _lines(Admitted(), Tokens(tokens=[5] * wanted), done)

    async def _read(self, request: web.Request) -> bytes:
        """Notes when the head was there. Bodies are long, so the id is looked for at their beginning, not parsed."""
        at = time.monotonic()
        body = await request.read()
        name = body[:ID_BYTES].partition(b'"id":"')[2].partition(b'"')[0].decode()
        self._seen.setdefault(name, at)
        return body

    async def _match(self, request: web.Request) -> web.StreamResponse:
        asked = msgspec.json.decode(await request.read(), type=WhyRequest)
        held = int(len(asked.keys) * HELD_SHARE)
        told = Matched(
            namespace=asked.namespace,
            blocks=len(asked.keys),
            block_tokens=BLOCK_TOKENS,
            hit_blocks=held,
            hit_tokens=held * BLOCK_TOKENS,
            tiers=["dram"] * held,
            seconds=[0.001] * held,
        )
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")

    async def _told(self, request: web.Request) -> web.StreamResponse:
        seen, self._seen = self._seen, {}
        return web.Response(body=msgspec.json.encode(seen), content_type="application/json")


class _Wanted(msgspec.Struct):
    """Of a DecodeCall, all that is looked at."""

    max_tokens: int


def _lines(*lines: Line) -> web.Response:
    return web.Response(body=b"\n".join(map(msgspec.json.encode, lines)) + b"\n", content_type="application/x-ndjson")


async def run(conductor: str, count: int) -> None:
    """Until SIGTERM, or until whoever started it is gone."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)  # its end: nobody is there any more
    async with ScriptedWorkers(conductor, count, os.environ.get("MOONCASK_WORKER_SECRET", "")).serving():
        await stop.wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
