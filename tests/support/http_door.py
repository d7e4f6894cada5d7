"""One HTTP client of one daemon in this process, for the tests of its HTTP API."""

import asyncio
import gc
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from xml.etree import ElementTree

import aiohttp
from child_processes import until
from local_daemon import LocalDaemon, running_daemon
from yarl import URL

S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"


class Http:
    """One HTTP client of one daemon."""

    def __init__(self, daemon: LocalDaemon, session: aiohttp.ClientSession) -> None:
        assert daemon.http is not None
        self.daemon, self.session, self.address = daemon, session, daemon.http.address

    async def ask(self, method: str, path: str, **named: Any) -> tuple[int, bytes, Any]:
        """(status, body, headers); `path` is percent-encoded already."""
        if isinstance(named.get("data"), bytes):
            named["data"] = io.BytesIO(named["data"])
        url = URL(f"http://{self.address}{path}", encoded=True)
        async with self.session.request(method, url, **named) as response:
            return response.status, await response.read(), response.headers

    async def error(self, method: str, path: str, **named: Any) -> tuple[int, str]:
        """(status, S3 error code)."""
        status, body, _ = await self.ask(method, path, **named)
        return status, ElementTree.fromstring(body).findtext("Code") or ""


@asynccontextmanager
async def running_http(settings: dict[str, Any] | None = None) -> AsyncIterator[Http]:
    """Bodies come as they were sent, whatever Content-Encoding they name."""
    async with (
        running_daemon({"http.enabled": True, **(settings or {})}) as daemon,
        aiohttp.ClientSession(auto_decompress=False) as session,
    ):
        yield Http(daemon, session)


def leased(http: Http) -> int:
    return http.daemon.store.status().tiers[0].leased_bytes


async def settled(http: Http) -> None:
    """All that HTTP leased was given back."""
    gc.collect()
    await until(lambda: leased(http) == 0)


async def slow_reader(http: Http, path: str) -> socket.socket:
    """A connection that has asked for `path` and reads nothing."""
    host, port = http.address.split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    sock.send(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    return sock
