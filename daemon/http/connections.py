"""How many connections there may be: one above the limit is told so and closed, before anything is read from it."""

import asyncio
from collections.abc import Callable
from typing import cast

from aiohttp import web

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nServer: mooncask\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


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
