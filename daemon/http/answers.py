"""Every answer that is an error, in S3's XML; one place translates them all."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from mooncask.daemon.http.expectation import is_waiting
from mooncask.daemon.http.refused import Refused
from mooncask.daemon.http.s3.xml import error_document, error_of
from mooncask.errors import Busy, MooncaskError, OutOfBounds

log = logging.getLogger(__name__)

Requests = Counter[tuple[str, int]]
"""(method, status) -> how many."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answered = Callable[[web.Request, web.StreamResponse, float], None]

_METHODS = frozenset({"GET", "PUT", "HEAD", "DELETE", "POST"})
_REQUEST_ID = web.RequestKey("mooncask.request_id", str)
_RETRY_SECONDS = "1"
CLIENT_GONE = 499
"""Nobody sees this status but the metrics."""


class Answers:
    """Counts requests, bounds how many are under way, and turns whatever goes wrong into XML."""

    def __init__(self, handler: Handler, requests_max: Callable[[], int], answered: Answered) -> None:
        """`handler` answers, or raises; `answered(request, response, seconds)` is called once a request."""
        self._handler = handler
        self._answered = answered
        self.requests: Requests = Counter()
        self._open: dict[int, web.Request] = {}
        self._requests_max = requests_max
        self._first_id = secrets.randbits(63)
        self._count = 0
        self._idle: asyncio.Event | None = None
        """There only while somebody waits for it."""

    async def finish(self, seconds: float) -> None:
        """Requests under way may end within `seconds`; then their connections are cut."""
        self._idle = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._open:
                    self._idle.clear()
                    await self._idle.wait()
        for request in list(self._open.values()):
            if request.transport is not None:
                request.transport.abort()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request, web.Request), "the server makes no others"
        self._open[id(request)] = request
        request_id = request[_REQUEST_ID] = f"{self._first_id + self._count:016X}"
        self._count += 1
        began = time.perf_counter()
        try:
            response = await self._answer(request, request_id)
        finally:
            del self._open[id(request)]
            if self._idle is not None and not self._open:
                self._idle.set()
        if not response.prepared:
            sign(request, response)
            if is_waiting(request):
                response.force_close()
        self.requests[(request.method if request.method in _METHODS else "other", response.status)] += 1
        self._answered(request, response, time.perf_counter() - began)
        return response

    async def _answer(self, request: web.Request, request_id: str) -> web.StreamResponse:
        try:
            requests_max = self._requests_max()
            if len(self._open) > requests_max:
                raise Busy(f"{requests_max} HTTP requests are under way (http.requests_max)")
            return await self._handler(request)
        except MooncaskError as error:
            response = _error(request, error.http_status, error_of(error, request.path, request_id))
            if isinstance(error, OutOfBounds):
                response.headers[hdrs.CONTENT_RANGE] = f"bytes */{error.size_bytes}"
            return response
        except Refused as error:
            document = error_document(error.code, str(error), request.path, request_id, error.details)
            return _error(request, error.status, document)
        except web.HTTPException as error:
            document = error_document(error.reason.replace(" ", ""), error.reason, request.path, request_id)
            return _error(request, error.status, document)
        except ConnectionError as error:
            # The client went away: there is nobody to answer. The error's traceback refers to frames that hold memory of
            # the arena, and they to the error: without this only the garbage collector would give it back.
            error.__traceback__ = None
            log.debug("%s %s: the client went away", request.method, request.path)
            return web.Response(status=CLIENT_GONE)
        except Exception:
            log.exception("%s %s failed by a fault of this daemon", request.method, request.path)
            document = error_document("InternalError", "a fault of this daemon; its log says where", "", request_id)
            return _error(request, 500, document)


def sign(request: web.Request, response: web.StreamResponse) -> None:
    """What every answer carries; for whoever begins to send one before `Answers` has it."""
    response.headers[hdrs.SERVER] = "mooncask"
    response.headers["x-amz-request-id"] = request.get(_REQUEST_ID, "")


def _error(request: web.Request, status: int, document: bytes) -> web.Response:
    headers = {hdrs.RETRY_AFTER: _RETRY_SECONDS} if status == 503 else None
    body = b"" if request.method == hdrs.METH_HEAD else document
    return web.Response(status=status, body=body, content_type="application/xml", headers=headers)
