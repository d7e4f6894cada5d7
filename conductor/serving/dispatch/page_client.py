"""Asks one node's JSON pages, over connections that stay open: HTTP/1.1 as far as a short question and its answer need it.

A request is asked of every node before it is placed, so what one question costs counts as often as there are nodes: this
takes a fifth of what a general HTTP client does. Not here: what is asked (`prefixes.py`).
"""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

UNIX = "unix:"
ANSWER_BYTES_MAX = 4 << 20
IDLE_MAX = 32
"""Connections that are kept when nobody asks."""
LENGTH = b"content-length:"


class PageUnreadable(Exception):
    """What came is no answer of a page; the text says what it is."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    status: int
    body: bytes


@dataclass(slots=True, eq=False)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used: bool = False

    def close(self) -> None:
        self.writer.close()


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
                answer = await _asked(connection, request)
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
        connection.used = True
        if len(self._idle) < IDLE_MAX and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    async def _open(self) -> _Connection:
        if self._pages.startswith(UNIX):
            path = self._pages.removeprefix(UNIX)
            return _Connection(*await asyncio.open_unix_connection(path, limit=ANSWER_BYTES_MAX))
        opened = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=ANSWER_BYTES_MAX)
        return _Connection(*opened)


async def _asked(connection: _Connection, request: bytes) -> PageAnswer:
    connection.writer.write(request)
    try:
        head = await connection.reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError as exc:
        raise PageUnreadable("a head without an end") from exc
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ", 2)
    lengths = [line[len(LENGTH) :] for line in lines if line[: len(LENGTH)].lower() == LENGTH]
    with contextlib.suppress(ValueError):
        if words[0].startswith(b"HTTP/1.") and len(lengths) == 1:
            length = int(lengths[0])
            if 0 <= length <= ANSWER_BYTES_MAX:
                return PageAnswer(int(words[1]), await connection.reader.readexactly(length))
    raise PageUnreadable(f"an answer that begins with {first[:80]!r} and tells no length")
