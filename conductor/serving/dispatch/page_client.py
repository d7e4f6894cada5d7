"""Asks one node's JSON pages, over connections that stay open: HTTP/1.1 as far as a short question and its answer need it.

A request is asked of every node before it is placed, so what one question costs counts as often as there are nodes: this
takes a fifth of what a general HTTP client does. Not here: what is asked (`prefixes.py`).
"""

import asyncio
import ssl
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

from mooncask.client.http import UNIX

ANSWER_BYTES_MAX = 4 << 20
HEAD_BYTES_MAX = 64 << 10
IDLE_MAX = 32
"""Connections that are kept when nobody asks."""
LENGTH = b"content-length:"


class PageUnreadable(Exception):
    """What came is no answer of a page; the text says what it is."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    status: int
    body: bytes


class _Connection(asyncio.Protocol):
    """One connection, on which one question at a time is asked. Belongs to one event loop."""

    def __init__(self) -> None:
        self.used = self.closed = False
        self._transport: asyncio.Transport | None = None
        self._got = bytearray()
        self._whole = 0
        """Bytes of head and body of the answer that is coming; 0 until its head is there."""
        self._begin = 0
        self._status = 0
        self._answer: asyncio.Future[PageAnswer] | None = None

    def ask(self, request: bytes) -> "asyncio.Future[PageAnswer]":
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        if self.closed:
            self._answer.set_exception(EOFError())
        else:
            self._transport.write(request)
        return self._answer

    def close(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._end(exc if isinstance(exc, OSError) else EOFError())

    def data_received(self, data: bytes) -> None:
        self._got += data
        try:
            if not self._whole and not self._read_head():
                return
        except (PageUnreadable, ValueError) as exc:
            self._end(exc if isinstance(exc, PageUnreadable) else _unreadable(self._got))
            return
        if len(self._got) >= self._whole:
            body = bytes(self._got[self._begin : self._whole])
            del self._got[: self._whole]
            self._whole, self.used, answer = 0, True, self._answer
            if answer is not None and not answer.done():
                answer.set_result(PageAnswer(self._status, body))

    def _read_head(self) -> bool:
        """Whether it is there. Raises PageUnreadable, ValueError."""
        end = self._got.find(b"\r\n\r\n")
        if end < 0:
            if len(self._got) > HEAD_BYTES_MAX:
                raise PageUnreadable("a head without an end")
            return False
        first, *lines = bytes(self._got[:end]).split(b"\r\n")
        lengths = [line[len(LENGTH) :] for line in lines if line[: len(LENGTH)].lower() == LENGTH]
        if not first.startswith(b"HTTP/1.") or len(lengths) != 1 or not 0 <= int(lengths[0]) <= ANSWER_BYTES_MAX:
            raise _unreadable(first)
        self._status, self._begin = int(first.split(b" ", 2)[1]), end + 4
        self._whole = self._begin + int(lengths[0])
        return True

    def _end(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)


def _unreadable(begins: bytes | bytearray) -> PageUnreadable:
    return PageUnreadable(f"an answer that begins with {bytes(begins[:80])!r} and tells no length")


class PageClient:
    """`pages` is `http://HOST:PORT`, `https://HOST:PORT` or `unix:PATH`. Any number of questions at a time."""

    def __init__(self, pages: str, headers: dict[str, str]) -> None:
        self._pages = pages
        where = urlsplit("http://localhost" if pages.startswith(UNIX) else pages)
        self._host, self._port = where.hostname or "", where.port or (443 if where.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if where.scheme == "https" else None
        lines = [f"Host: {where.netloc}", "Content-Type: application/json", *(f"{k}: {v}" for k, v in headers.items())]
        self._head = "\r\n".join(lines)
        self._idle: list[_Connection] = []
        self._closed = False

    async def post(self, path: str, body: bytes) -> PageAnswer:
        """Raises OSError, EOFError, PageUnreadable; cancelled, it leaves no connection behind that would answer later."""
        request = f"POST {path} HTTP/1.1\r\n{self._head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        while True:
            connection = self._idle.pop() if self._idle else await self._open()
            try:
                answer = await connection.ask(request)
            except (OSError, EOFError):
                connection.close()
                if not connection.used:
                    raise
                continue  # it was closed while nobody asked: the question is one that may be put twice
            except BaseException:
                connection.close()
                raise
            self._keep(connection)
            return answer

    def close(self) -> None:
        self._closed = True  # what is asked just now closes its connection behind it
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _keep(self, connection: _Connection) -> None:
        if len(self._idle) < IDLE_MAX and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if self._pages.startswith(UNIX):
            return (await loop.create_unix_connection(_Connection, self._pages.removeprefix(UNIX)))[1]
        return (await loop.create_connection(_Connection, self._host, self._port, ssl=self._tls))[1]
