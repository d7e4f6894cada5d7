"""The JSON pages under /-/v1/: which page answers what, and how answers and errors are written. docs/HTTP.md lists them.

Errors are {"error": class, "message": text, "data": {...}} with the error's own HTTP status. What a page says is decided
in `daemon/insight/`; what a block is done to, in the store.
"""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from mooncask.client import control
from mooncask.daemon.http.pages.blocks import BlockPages
from mooncask.daemon.http.pages.chains import ChainPages
from mooncask.daemon.http.pages.coming import ComingPage
from mooncask.daemon.http.pages.daemon import DaemonPages
from mooncask.daemon.http.pages.nodes import NodePages
from mooncask.daemon.http.pages.page_request import PREFIX, PageRequest
from mooncask.daemon.http.pages.routes import PageRoute
from mooncask.daemon.session import LocalPlane
from mooncask.errors import BadRequest, MooncaskError, error_data

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class Pages:
    """One route for all of them, by method and name."""

    def __init__(self, plane: LocalPlane) -> None:
        self._pages: dict[tuple[str, str], Page] = {
            **BlockPages(plane).pages(),
            **ChainPages(plane).pages(),
            **DaemonPages(plane).pages(),
            **NodePages(plane).pages(),
            **ComingPage(plane.service).pages(),
        }

    def routes(self) -> list[PageRoute]:
        return [PageRoute(PREFIX + r"[\s\S]*", self._answer, methods=frozenset())]

    def known(self) -> list[tuple[str, str]]:
        """(method, page) of each."""
        return list(self._pages)

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            asked = PageRequest.of(request)
            page = self._pages.get((asked.method, asked.page))
            if page is None:
                return self._unknown(asked)
            return _json(200, await page(asked))
        except MooncaskError as error:
            return error_answer(error)

    def _unknown(self, asked: PageRequest) -> web.Response:
        methods = sorted(method for method, name in self._pages if name == asked.page)
        if methods:
            error = BadRequest(f"{asked.method} {PREFIX}{asked.page}: it takes {', '.join(methods)}")
            return error_answer(error, 405, {"Allow": ", ".join(methods)})
        known = ", ".join(sorted({name for _, name in self._pages}))
        return error_answer(BadRequest(f"no page {PREFIX}{asked.page[:80]}; there are {known}"), 404)


def error_answer(error: MooncaskError, status: int = 0, headers: dict[str, str] | None = None) -> web.Response:
    """The error as JSON; a `status` of 0 is the error's own."""
    body = {"error": type(error).__name__, "message": error.message, "data": error_data(error)}
    found = {"Retry-After": "1"} if error.http_status == 503 else {}
    return _json(status or error.http_status, body, {**found, **(headers or {})})


def _json(status: int, body: object, headers: dict[str, str] | None = None) -> web.Response:
    data = msgspec.json.encode(body)
    return web.Response(status=status, body=data, content_type="application/json", headers=headers)
