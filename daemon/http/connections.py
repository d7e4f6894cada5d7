"""How many connections there may be, and when one whose other side reads nothing is cut off.

One above the limit is told so and closed, before anything is read from it. What is to be sent is looked at twice a grace: where
nothing of it went since, the connection ends, also one that was closed and waits for its last bytes to be taken.
"""

import asyncio
import fcntl
import termios
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nServer: mooncask\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Server(web.Server):
    """aiohttp's, with connections that are cut off when nothing of an answer is taken for `grace()` seconds."""

    def __init__(self, handler: Any, grace: Callable[[], float], **settings: Any) -> None:
        super().__init__(handler, **settings)
        self._grace = grace
        self._settings = {name: value for name, value in settings.items() if name != "request_factory"}

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, self._grace, **self._settings)


class _Connection(web.RequestHandler):
    def __init__(self, server: web.Server, grace: Callable[[], float], **settings: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **settings)
        self._grace = grace
        self._emptied = 0
        """How often what waited to be sent was taken: pieces of one object may leave the same rest more than once."""
        self._seen: list[tuple[int, int, int]] = []
        self._sending: asyncio.Transport | None = None
        """Until the connection is lost, also when it was closed: what aiohttp calls `transport` may be gone before."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._sending = cast(asyncio.Transport, transport)
        self._look_later()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sending = self._timer = None
        super().connection_lost(exc)

    def resume_writing(self) -> None:
        self._emptied += 1
        super().resume_writing()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._grace() / 2, self._look)

    def _look(self) -> None:
        assert self._sending is not None
        now = (self._emptied, self._sending.get_write_buffer_size(), _kept_by_kernel(self._sending))
        self._seen = [*self._seen[-2:], now]
        if now[1] and self._seen == [now] * 3:
            self._sending.abort()
        else:
            self._look_later()


def _kept_by_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the other side has not taken. The kernel keeps megabytes, and asks for more when a third of them is gone."""
    sock = transport.get_extra_info("socket")
    try:
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), "little")
    except OSError:
        return 0


class BoundedRunner(web.ServerRunner):
    """A ServerRunner whose sites accept at most `connections_max()` connections at a time, of all sites together."""

    def __init__(self, server: web.Server, connections_max: Callable[[], int], shutdown_timeout: float) -> None:
        super().__init__(server, shutdown_timeout=shutdown_timeout)
        self._connections_max = connections_max

    @property
    def server(self) -> web.Server | None:
        """What sites make a connection's protocol with."""
        found = super().server
        if found is None:
            return None

        def protocol() -> asyncio.BaseProtocol:
            return found() if len(found.connections) < self._connections_max() else _Refusal()

        return cast(web.Server, protocol)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(_TOO_MANY)
        transport.close()
