"""The HTTP server: S3 at the root, the operator's pages under /-/. Who answers what: `dispatch.py`."""

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Callable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from mooncask.daemon.config import Config
from mooncask.daemon.config_source import split_listen
from mooncask.daemon.http.answers import Answers
from mooncask.daemon.http.callers.authentication import Authentication
from mooncask.daemon.http.callers.caller import set_caller
from mooncask.daemon.http.callers.credentials import load_credentials
from mooncask.daemon.http.callers.local_caller import local_caller
from mooncask.daemon.http.connections import BoundedRunner, Server
from mooncask.daemon.http.dispatch import Dispatch
from mooncask.daemon.http.expectation import check_expectation
from mooncask.daemon.http.measuring import Measuring
from mooncask.daemon.http.pages.admin import Admin
from mooncask.daemon.http.pages.routes import PageRoutes
from mooncask.daemon.http.tls import replace_certificate, tls_context
from mooncask.daemon.metrics import Metrics
from mooncask.daemon.session import LocalPlane
from mooncask.errors import AddressInUse, ConfigError

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
CUT_SECONDS = 0.5
"""For handlers to notice that their connection was cut."""


class HttpServer:
    """Owns the listeners. Whose requests are whose: `callers/caller.py`."""

    def __init__(self, config: Config, plane: LocalPlane) -> None:
        self._dispatch = Dispatch(plane.service)
        self._authentication = Authentication(config, time.time)
        self._tenant_of = plane.service.door.tenant_of
        self._tls = tls_context(config.http)
        measuring = Measuring(plane.insight)
        self._answers = Answers(self._answer, lambda: plane.service.config.http.requests_max, measuring.answered)
        self._pages = PageRoutes(Admin(plane, Metrics(plane, self._answers.requests)).routes())
        # Not a web.Application: its router, middlewares and signals take longer than a small object does.
        server = Server(
            self._answers.answer,
            lambda: plane.service.config.http.grace,
            request_factory=_request,
            access_log=None,
            logger=_protocol_log(),
            auto_decompress=False,  # a body is stored as it was sent, whatever Content-Encoding calls it
            keepalive_timeout=config.http.idle,  # from a connection's first byte on
        )
        self._runner = BoundedRunner(server, lambda: plane.service.config.http.connections_max, CUT_SECONDS)
        self.address = ""

    @classmethod
    async def start(cls, config: Config, plane: LocalPlane) -> "HttpServer":
        """Listening on http.listen. Raises AddressInUse and ConfigError."""
        server = await cls.serve(config, plane)
        host, port = split_listen(config.http.listen)
        try:
            await web.TCPSite(server._runner, host, port, ssl_context=server._tls).start()
        except OSError as error:
            await server._runner.cleanup()
            if error.errno == errno.EADDRINUSE:
                raise AddressInUse("http.listen", config.http.listen) from error
            raise ConfigError("http.listen", config.http.listen, f"cannot be listened on: {error}") from error
        bound = server._runner.addresses[0]
        server.address = f"[{bound[0]}]:{bound[1]}" if ":" in bound[0] else f"{bound[0]}:{bound[1]}"
        return server

    @classmethod
    async def serve(cls, config: Config, plane: LocalPlane) -> "HttpServer":
        """Ready, but listening nowhere yet."""
        server = cls(config, plane)
        await server._runner.setup()
        return server

    async def listen_locally(self, sock: socket.socket) -> None:
        """Also answer on this bound Unix socket, which is closed with the server."""
        await _LocalSite(self._runner, sock).start()

    async def prepare(self, config: Config) -> Callable[[], None]:
        """Reads the files that `config` names; raises ConfigError. What it returns puts it into force, for what comes then."""
        credentials = await asyncio.to_thread(load_credentials, config)
        fresh = await asyncio.to_thread(tls_context, config.http)

        def apply() -> None:
            self._authentication.reconfigure(config, credentials)
            if self._tls is not None and fresh is not None:
                replace_certificate(self._tls, fresh)

        return apply

    async def close(self) -> None:
        """No new connections; requests under way may end within CLOSE_SECONDS; then they are cut off."""
        for site in list(self._runner.sites):
            await site.stop()
        await self._answers.finish(CLOSE_SECONDS)
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        """Who asks is settled before anything else of a request is looked at. Raises Refused and errors of mooncask.errors."""
        # Under a bucket's own host name even "/-/" begins a key.
        page = None if self._dispatch.is_virtual_hosted(request) else self._pages.find(request)
        caller = local_caller(request, self._tenant_of)
        if caller is None:
            caller = self._authentication.caller(request, None if page is None else page.access)
        set_caller(request, caller)
        check_expectation(request)
        return await (self._dispatch.answer if page is None else page.answer)(request)


class _LocalSite(web.BaseSite):
    """A site on a Unix socket that is bound already: aiohttp's own takes a path, and knows nothing of stale files."""

    def __init__(self, runner: BoundedRunner, sock: socket.socket) -> None:
        super().__init__(runner)
        self._sock = sock

    @property
    def name(self) -> str:
        return f"unix:{self._sock.getsockname()}"

    async def start(self) -> None:
        await super().start()
        assert self._runner.server is not None
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(self._runner.server, sock=self._sock)


def _request(
    message: RawRequestMessage,
    payload: StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.Request:
    return web.Request(message, payload, protocol, writer, task, asyncio.get_running_loop())


def _protocol_log() -> logging.Logger:
    """Where aiohttp tells of faults; a request that is not HTTP is none of ours, and is one line."""
    found = logging.getLogger("mooncask.daemon.http.protocol")
    if not found.filters:
        found.addFilter(_tell_bad_requests_briefly)
    return found


def _tell_bad_requests_briefly(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if not isinstance(error, HttpProcessingError):
        return True
    log.info("a request that is not HTTP was refused: %s", error.message.partition("\n")[0][:200])
    return False
