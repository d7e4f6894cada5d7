"""How many connections there may be: one above the limit is told so and closed, before anything is read from it."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from aiohttp import web

_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nServer: mooncask\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class BoundedRunner(web.AppRunner):
    """An AppRunner whose sites accept at most `connections_max()` connections at a time, of all sites together.

    What a connection may wait for: `keepalive_timeout`, from its first byte on.
    """

    def __init__(self, app: web.Application, connections_max: Callable[[], int], **options: Any) -> None:
        super().__init__(app, **options)
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
