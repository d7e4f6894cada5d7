"""Where HTTP is listened on: the configured address, and a Unix socket beside the daemon's own, for the same local users.

aiohttp is a third of the start-up time. With http.enabled = false it is imported when the first caller comes to the Unix
socket, and not before; this module imports it nowhere at its top. What HTTP answers: `daemon/http/`.
"""

import asyncio
import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from mooncask.client.socket_path import http_socket_path
from mooncask.daemon.config import Config
from mooncask.daemon.session import LocalPlane
from mooncask.daemon.socket_file import SocketFile

if TYPE_CHECKING:
    from mooncask.daemon.http.server import HttpServer

log = logging.getLogger(__name__)


class HttpDoors:
    """Owns the HTTP server and the Unix socket's file. Open it with `HttpDoors.open` before the daemon says it is ready."""

    def __init__(self, config: Config, plane: LocalPlane, file: SocketFile) -> None:
        self._config = config
        self._plane = plane
        self._file = file
        self._opening: asyncio.Task[None] | None = None
        self.server: HttpServer | None = None
        """None until somebody comes, with http.enabled = false."""

    @classmethod
    async def open(cls, config: Config, plane: LocalPlane, socket_path: Path) -> "HttpDoors":
        """Listening beside `socket_path`, the daemon's own, and on http.listen. Raises AddressInUse and ConfigError."""
        path = Path(http_socket_path(str(socket_path)))
        doors = cls(config, plane, SocketFile.bind(path, int(config.socket.mode, 8)))
        try:
            await doors._open()
        except BaseException:
            doors._file.close()
            raise
        return doors

    @property
    def address(self) -> str:
        """host:port; empty with http.enabled = false."""
        return self.server.address if self.server is not None else ""

    @property
    def path(self) -> str:
        return str(self._file.path)

    async def prepare(self, config: Config) -> Callable[[], None]:
        """A reload's part; see `reload.Prepare`."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        applies = [await self.server.prepare(config)] if self.server is not None else []

        def apply() -> None:
            self._config = config
            for each in applies:
                each()

        return apply

    async def close(self) -> None:
        """No new connections; requests under way may end within a moment; the file is removed."""
        asyncio.get_running_loop().remove_reader(self._file.sock)
        if self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
        if self.server is not None:
            await self.server.close()
        self._file.close()

    async def _open(self) -> None:
        self._file.listen()
        if not self._config.http.enabled:
            asyncio.get_running_loop().add_reader(self._file.sock, self._somebody_came)
            return
        from mooncask.daemon.http.server import HttpServer

        self.server = await HttpServer.start(self._config, self._plane)
        await self.server.listen_locally(self._file.sock)

    def _somebody_came(self) -> None:
        """The caller waits in the socket's queue until the server takes the socket over."""
        asyncio.get_running_loop().remove_reader(self._file.sock)
        self._opening = asyncio.get_running_loop().create_task(self._open_late())

    async def _open_late(self) -> None:
        try:
            module = await asyncio.to_thread(importlib.import_module, "mooncask.daemon.http.server")
            server = await module.HttpServer.serve(self._config, self._plane)
            await server.listen_locally(self._file.sock)
            self.server = server
        except Exception:
            log.exception("HTTP could not be started on %s", self._file.path)
