"""The worker's HTTP side: `client/worker_api.py` is its contract. Whoever closes a connection cancels what it asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from mooncask.client.bearer import bears
from mooncask.client.worker_api import (
    CONDUCTOR_HEADER,
    LINE_BYTES_MAX,
    DecodeCall,
    Failure,
    FailureKind,
    PauseCall,
    Paused,
    PrefillCall,
    Registration,
    RoleCall,
    State,
    StreamLine,
)
from mooncask.engine_adapter.transformers.server.callers import Callers
from mooncask.engine_adapter.transformers.server.roles import Roles
from mooncask.engine_adapter.transformers.server.streams import LineStream
from mooncask.errors import Busy, MooncaskError

Call = TypeVar("Call", PrefillCall, DecodeCall)
Body = TypeVar("Body", PrefillCall, DecodeCall, RoleCall, PauseCall)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkerDoor:
    """Handlers over one worker's Roles. `vocabulary`: token ids from it on are refused."""

    def __init__(
        self,
        roles: Roles,
        registration: Callable[[], Registration],
        vocabulary: int,
        secret: str,
        callers: Callers,
    ) -> None:
        self._roles, self._registration, self._vocabulary = roles, registration, vocabulary
        self._callers = callers
        self._secret = secret

    def application(self) -> web.Application:
        """To be served with handler_cancellation, so that a connection that is gone ends its handler."""
        app = web.Application(client_max_size=LINE_BYTES_MAX, middlewares=[self._authorized])
        app.router.add_post("/v1/prefill", self._prefill)
        app.router.add_post("/v1/decode", self._decode)
        app.router.add_post("/v1/pause", self._pause)
        app.router.add_post("/v1/role", self._role)
        app.router.add_get("/v1/state", self._state)
        return app

    @web.middleware
    async def _authorized(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not bears(request.headers.get("Authorization", ""), self._secret):
            return _failed(401, FailureKind.REFUSED, "the secret is not this worker's")
        return await handler(request)

    async def _prefill(self, request: web.Request) -> web.StreamResponse:
        return await self._streamed(request, PrefillCall, self._roles.prefill)

    async def _decode(self, request: web.Request) -> web.StreamResponse:
        return await self._streamed(request, DecodeCall, self._roles.decode)

    async def _role(self, request: web.Request) -> web.StreamResponse:
        call = await _body(request, RoleCall)
        if isinstance(call, Failure):
            return _answer(400, call)
        try:
            await asyncio.to_thread(self._roles.set, call.role)
        except MooncaskError as exc:
            return _failed(400, FailureKind.REFUSED, exc.message, type(exc).__name__)
        return web.json_response({})

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        call = await _body(request, PauseCall)
        if isinstance(call, Failure):
            return _answer(400, call)
        paused = Paused(seconds=self._roles.pause(call.seconds))
        return web.Response(body=msgspec.json.encode(paused), content_type="application/json")

    async def _state(self, request: web.Request) -> web.StreamResponse:
        told = await asyncio.to_thread(self._registration)
        report = self._roles.report(told.name, told.incarnation)
        return web.Response(
            body=msgspec.json.encode(State(registration=told, report=report)), content_type="application/json"
        )

    async def _streamed(
        self,
        request: web.Request,
        kind: type[Call],
        begin: Callable[[Call, Callable[[StreamLine], None]], Callable[[], None]],
    ) -> web.StreamResponse:
        call = await _body(request, kind)
        if isinstance(call, Failure):
            return _answer(400, call)
        if max(call.tokens) >= self._vocabulary:
            text = f"token {max(call.tokens)}; this model's vocabulary has {self._vocabulary}"
            return _failed(400, FailureKind.REFUSED, text)
        stream = LineStream()
        try:
            cancel = begin(call, stream.tell)
        except Busy as exc:
            return _failed(503, FailureKind.BUSY, exc.message, "Busy")
        except MooncaskError as exc:
            return _failed(400, FailureKind.REFUSED, exc.message, type(exc).__name__)
        try:
            with self._callers.call(request.headers.get(CONDUCTOR_HEADER, ""), lambda: _cut_off(request)):
                return await _sent(request, stream)
        finally:
            cancel()


async def _sent(request: web.Request, stream: LineStream) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    encoder = msgspec.json.Encoder()
    async for lines in stream:
        await response.write(b"".join(encoder.encode(line) + b"\n" for line in lines) or b"\n")  # a sign of life
    await response.write_eof()
    return response


def _cut_off(request: web.Request) -> None:
    """Its handler ends as if the caller had closed the connection."""
    if request.transport is not None:
        request.transport.abort()


async def _body(request: web.Request, kind: type[Body]) -> Body | Failure:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except web.HTTPRequestEntityTooLarge:
        return Failure(kind=FailureKind.REFUSED, message=f"a call has at most {LINE_BYTES_MAX} bytes")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        return Failure(kind=FailureKind.REFUSED, message=f"not a {kind.__name__}: {exc}")


def _failed(status: int, kind: FailureKind, message: str, error: str = "") -> web.Response:
    return _answer(status, Failure(kind=kind, message=message, error=error))


def _answer(status: int, failure: Failure) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(failure) + b"\n", content_type="application/x-ndjson")
