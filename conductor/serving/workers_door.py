"""Where workers register and report: `client/worker_api.py` is the contract. Only who knows the secret is heard."""

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import msgspec
from aiohttp import web
from msgspec.structs import replace

from mooncask.client.bearer import bears
from mooncask.client.worker_api import LINE_BYTES_MAX, Leave, Registration, Report
from mooncask.conductor.serving.dispatch.costs import PoolCosts
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.errors import MooncaskError

Told = TypeVar("Told", Registration, Report, Leave)
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkersDoor:
    """Handlers over the Conductor's Pools. `conductor`: the name that its calls carry."""

    def __init__(
        self, pools: Pools, secret: str, costs: Mapping[str, PoolCosts] | None = None, conductor: str = ""
    ) -> None:
        self._conductor = conductor
        self._pools, self._secret, self._costs = pools, secret, {} if costs is None else costs

    def application(self) -> web.Application:
        app = web.Application(client_max_size=LINE_BYTES_MAX, middlewares=[self._checked])
        app.router.add_post("/internal/v1/register", self._register)
        app.router.add_post("/internal/v1/report", self._report)
        app.router.add_post("/internal/v1/leave", self._leave)
        app.router.add_get("/internal/v1/costs", self._learned)
        return app

    @web.middleware
    async def _checked(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if not bears(request.headers.get("Authorization", ""), self._secret):
            return _error(401, "the secret is not this Conductor's")
        try:
            return await handler(request)
        except msgspec.DecodeError as exc:
            return _error(400, f"not what is expected here: {exc}")
        except MooncaskError as exc:
            return _error(exc.http_status, exc.message)

    async def _register(self, request: web.Request) -> web.StreamResponse:
        self._pools.register(await _body(request, Registration), time.monotonic())
        return web.json_response({})

    async def _report(self, request: web.Request) -> web.StreamResponse:
        answer = self._pools.report(await _body(request, Report), time.monotonic())
        named = replace(answer, conductor=self._conductor)
        return web.Response(body=msgspec.json.encode(named), content_type="application/json")

    async def _leave(self, request: web.Request) -> web.StreamResponse:
        self._pools.leave(await _body(request, Leave))
        return web.json_response({})

    async def _learned(self, request: web.Request) -> web.StreamResponse:
        """By model: what its prefills and steps cost, as far as that is known by now; what the simulator can be fed with."""
        told = {model: costs.learned() for model, costs in self._costs.items()}
        return web.Response(body=msgspec.json.encode(told), content_type="application/json")


async def _body(request: web.Request, kind: type[Told]) -> Told:
    return msgspec.json.decode(await request.read(), type=kind)


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
