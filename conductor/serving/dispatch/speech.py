"""How a kind of worker is spoken to, behind one interface: calls and lines are those of `client/worker_api.py`.

`worker_client.py` carries it out, for all kinds alike: connections, deadlines, the order of lines, what is broken.
"""

from collections import OrderedDict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

import aiohttp
import msgspec
from aiohttp.abc import AbstractStreamWriter

from mooncask.client.worker_api import CONDUCTOR_HEADER, LINE_BYTES_MAX, DecodeCall, PrefillCall, StreamLine
from mooncask.conductor.serving.dispatch.pools import Worker

Call = PrefillCall | DecodeCall
WRITTEN_MAX = 64
"""Prompts whose ids are kept as JSON until their decode is asked: some 700 kB each at most models' longest."""


class Body(aiohttp.Payload):
    """A body in pieces, which are sent one after the other: put together, a long prompt would be copied twice."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__(pieces, content_type="application/json")
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._value:
            await writer.write(piece)


@dataclass(frozen=True, slots=True)
class Asked:
    """One POST. `silence_seconds`: how long nothing may come; None: as long as the call itself."""

    path: str
    body: Body
    headers: dict[str, str]
    silence_seconds: float | None


class Speech(Protocol):
    def asked(self, worker: Worker, call: Call) -> Asked: ...

    def lines(self, worker: Worker, call: Call, response: aiohttp.ClientResponse) -> AsyncIterator[StreamLine]:
        """What the worker answers, up to the last line or where it broke off. Raises what reading raises; a Failure is a line."""
        ...


class WrittenTokens:
    """A prompt's ids as JSON, written once for its prefill and its decode: a millisecond for 131,072 of them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[list[int], bytes]] = OrderedDict()

    def of(self, call: Call) -> bytes:
        kept = self._kept.pop(call.id, None)
        if kept is not None and kept[0] is call.tokens:
            return kept[1]
        written = msgspec.json.encode(call.tokens)
        if isinstance(call, PrefillCall):
            self._kept[call.id] = call.tokens, written
            if len(self._kept) > WRITTEN_MAX:
                self._kept.popitem(last=False)
        return written


class MooncaskSpeech:
    """`client/worker_api.py` itself. `secret` is the one that the Conductor shares with its workers, `conductor` its name."""

    def __init__(self, secret: str, silence_seconds: float, conductor: str = "") -> None:
        self._headers = {"Authorization": f"Bearer {secret}", CONDUCTOR_HEADER: conductor}
        self._silence_seconds = silence_seconds
        self._written = WrittenTokens()

    def asked(self, worker: Worker, call: Call) -> Asked:
        path = "/v1/prefill" if isinstance(call, PrefillCall) else "/v1/decode"
        others = msgspec.structs.asdict(call)
        del others["id"], others["tokens"]
        head, tail = b'{"id":' + msgspec.json.encode(call.id) + b',"tokens":', b"," + msgspec.json.encode(others)[1:]
        return Asked(path, Body(head, self._written.of(call), tail), self._headers, self._silence_seconds)

    async def lines(self, worker: Worker, call: Call, response: aiohttp.ClientResponse) -> AsyncIterator[StreamLine]:
        decoder = msgspec.json.Decoder(StreamLine)
        async for text in bounded_lines(response.content):
            yield decoder.decode(text)


async def bounded_lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines without their ends, no empty ones; a line longer than LINE_BYTES_MAX ends the stream as broken."""
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
