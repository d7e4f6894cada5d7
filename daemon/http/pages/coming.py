"""POST /-/v1/coming: waits until somebody has begun to make a block, for who wants to send others after it."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from mooncask.client import control
from mooncask.client.coming import ComingAnswer, ComingRequest, ComingState
from mooncask.daemon.arrivals import Key
from mooncask.daemon.http.pages.page_request import PageRequest
from mooncask.daemon.insight.blocks import key_of
from mooncask.daemon.service import Service
from mooncask.errors import BadRequest, Busy
from mooncask.tiers.namespace import Namespace

SECONDS_MAX = 60.0
WAITING_MAX = 64
"""Each is a request under way, of which the daemon has only so many for everybody (http.requests_max)."""

LEFT_SECONDS = 1.0
"""So soon the place of one who has gone away is another's."""

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class ComingPage:
    """Only the caller's own namespaces; what other nodes have or make is asked there."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._waiting = 0

    def pages(self) -> dict[tuple[str, str], Page]:
        return {("POST", "coming"): self._coming}

    async def _coming(self, asked: PageRequest) -> control.Answer:
        request = await asked.form(ComingRequest, self._service.config.http)
        if not 0 <= request.seconds <= SECONDS_MAX:
            raise BadRequest(f"seconds = {request.seconds:g}: from 0 to {SECONDS_MAX:g}")
        namespace = self._service.door.find(asked.caller.tenant, request.namespace)
        key = key_of(namespace, request.key)
        if request.seconds and self._waiting >= WAITING_MAX:
            raise Busy(f"{WAITING_MAX} questions wait for blocks already")
        self._waiting += 1
        try:
            await self._wait(namespace, key, request.seconds, lambda: asked.request.transport is None)
        finally:
            self._waiting -= 1
        return ComingAnswer(state=self._state(namespace, key))

    async def _wait(self, namespace: Namespace, key: bytes, seconds: float, has_left: Callable[[], bool]) -> None:
        until = time.monotonic() + seconds
        while self._state(namespace, key) is ComingState.NOBODY and not has_left():
            if (left := until - time.monotonic()) <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, LEFT_SECONDS)):
                    await self._service.watches.change([Key(namespace.id, key)])

    def _state(self, namespace: Namespace, key: bytes) -> ComingState:
        name, arrivals = Key(namespace.id, key), self._service.arrivals
        if self._service.store.has(namespace, key):
            return ComingState.HERE
        if arrivals.is_written(name):
            return ComingState.WRITING
        return ComingState.EXPECTED if arrivals.is_promised(name) else ComingState.NOBODY
