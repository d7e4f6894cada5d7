"""Workers that compute nothing, for measuring what is in front of them: they register, report and answer over real HTTP as
`client/worker_api.py` says, and stand for their nodes' pages, too. `python -m mooncask.tools.bench.scripted_workers`.

A prefill is done at once; an answer is as many tokens as were asked for, all in one line. GET /seen tells when the head of
each prefill or decode call came, on the machine's monotonic clock. Workers and nodes are machines of their own, which do not
wait for each other; here they are one process, which therefore does as little with a body as it can.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import cast

import aiohttp
import msgspec
import uvloop

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
TAIL_BYTES = 2000
"""Within the first and the last so many bytes of a call's body stand its id, and how many tokens are wanted."""
PREFILLED = PrefillDone(
    prompt_tokens=0, cached_tokens=0, computed_tokens=0, stored_blocks=0, queue_seconds=0.0, seconds=0.0
)


class ScriptedWorkers:
    """`count` of them, half for each role, each on a port of its own."""

    def __init__(self, conductor: str, count: int, secret: str) -> None:
        self._conductor, self._count = conductor, count
        self._headers = {"Authorization": f"Bearer {secret}"}
        self._seen: dict[str, float] = {}

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        servers = [await loop.create_server(lambda: _Door(self._answer), "127.0.0.1", 0) for _ in range(self._count)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        async with aiohttp.ClientSession(headers=self._headers) as session:
            tasks = [asyncio.create_task(self._live(session, number, port)) for number, port in enumerate(ports)]
            print(f"scripted workers at http://127.0.0.1:{ports[0]}", flush=True)
            yield
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for server in servers:
            server.close()

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

    def _answer(self, path: bytes, came: float, pieces: list[bytes]) -> bytes:
        """`came`: when the head of the request was there; `pieces` of its body."""
        match path:
            case b"/seen":
                seen, self._seen = self._seen, {}
                return msgspec.json.encode(seen)
            case b"/-/v1/match":
                return _matched(msgspec.json.decode(b"".join(pieces), type=WhyRequest))
        name = b"".join(pieces[:2])[:ID_BYTES].partition(b'"id":"')[2].partition(b'"')[0].decode()
        self._seen.setdefault(name, came)
        if path == b"/v1/prefill":
            return _lines(Admitted(), Started(), PREFILLED)
        wanted = int(re.findall(rb'"max_tokens":(\d+)', b"".join(pieces[-2:])[-TAIL_BYTES:])[-1])
        done = DecodeDone(reason="length", output_tokens=wanted, cached_tokens=0, computed_tokens=0)
        return _lines(Admitted(), Tokens(tokens=[5] * wanted), done)


class _Door(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, answer: Callable[[bytes, float, list[bytes]], bytes]) -> None:
        self._answer = answer
        self._transport: asyncio.Transport | None = None
        self._head, self._path, self._came = b"", b"", 0.0
        self._pieces: list[bytes] = []
        self._left = -1
        """Bytes of the body that are missing; -1 while the head is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._left < 0:
            self._head += data
            head, end, data = self._head.partition(b"\r\n\r\n")
            if not end:
                return
            self._came, self._path, self._head = time.monotonic(), head.split(b" ", 2)[1], b""
            length = re.search(rb"(?i)content-length: *(\d+)", head)
            self._left = int(length[1]) if length is not None else 0
        self._left -= len(data)
        self._pieces.append(data)
        if self._left <= 0:
            told = self._answer(self._path, self._came, self._pieces)
            assert self._transport is not None
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(told), told))
            self._pieces, self._left = [], -1


def _matched(asked: WhyRequest) -> bytes:
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
    return msgspec.json.encode(told)


def _lines(*lines: Line) -> bytes:
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


async def run(conductor: str, count: int) -> None:
    """Until SIGTERM, or until whoever started it is gone."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_reader(sys.stdin.fileno(), stop.set)  # its end: nobody is there any more
    async with ScriptedWorkers(conductor, count, os.environ.get("MOONCASK_WORKER_SECRET", "")).serving():
        await stop.wait()


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], int(sys.argv[2])))
