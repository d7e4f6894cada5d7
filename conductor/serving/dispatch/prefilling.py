"""One prefill that runs beside the decode which waits for its blocks."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from mooncask.client.worker_api import PrefillCall, PrefillDone, Started
from mooncask.conductor.serving.dispatch.books import PrefillEntry
from mooncask.conductor.serving.dispatch.pools import Worker
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)


class Prefilling:
    """`on_done` hears of the whole prefill, `on_failed` of what broke it; neither after `end`."""

    def __init__(
        self,
        client: WorkerClient,
        worker: Worker,
        call: PrefillCall,
        entry: PrefillEntry,
        on_done: Callable[[PrefillDone], None],
        on_failed: Callable[[Exception], None],
        seen: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`seen()`: whether the store has seen it begin, of a worker that says nothing before the end."""
        self._client, self.worker, self._call, self._entry = client, worker, call, entry
        self._on_done, self._on_failed = on_done, on_failed
        self._started = asyncio.Event()
        self._error: Exception | None = None
        self._tasks = [asyncio.create_task(self._run())]
        if seen is not None:
            self._tasks.append(asyncio.create_task(self._watch(seen)))

    async def begun(self) -> None:
        """Returns when its turn has come: who waits for its blocks will get them. Raises what broke it before that."""
        await self._started.wait()
        if self._error is not None:
            raise self._error

    async def end(self) -> None:
        """Stops it, if it still runs, and waits until it has stopped."""
        for task in self._tasks:
            task.cancel()
        for error in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(error, Exception):  # none that a worker could cause
                log.error("request %s: its prefill failed by a fault of this Conductor", self._call.id, exc_info=error)

    async def _watch(self, seen: Callable[[], Awaitable[bool]]) -> None:
        if await seen():
            self._begin()

    def _begin(self) -> None:
        if self._entry.started is None:
            self._entry.started = time.monotonic()
        self._started.set()

    async def _run(self) -> None:
        try:
            async with self._client.stream(self.worker, self._call) as lines:
                async for line in lines:
                    if isinstance(line, Started):
                        self._begin()
                    elif isinstance(line, PrefillDone):
                        self._on_done(line)
        except Exception as exc:
            self._error = exc
            self._on_failed(exc)
            if not isinstance(exc, MooncaskError):
                raise
        finally:
            self._started.set()
            for watch in self._tasks[1:]:  # others of the node may ask now
                watch.cancel()
