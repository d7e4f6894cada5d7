"""Follows the KV events of vLLM engines (`--kv-events-config`), so that their own prefix caches count in placement.

A batch that was missed empties what is known of its engine: what is then told again is learned again. It needs pyzmq.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.dispatch.engine_caches import EngineCache
from mooncask.conductor.serving.kv_events.events import Event
from mooncask.conductor.serving.kv_events.following import Following
from mooncask.errors import BadRequest, ConfigError


class EngineEvents:
    """The caches of the engines that are followed, by worker name. Belongs to one event loop."""

    def __init__(self) -> None:
        self.caches: dict[str, EngineCache] = {}
        self._followings: list[Following] = []

    @property
    def lost(self) -> int:
        """Times that batches of an engine were missed."""
        return sum(following.gaps for following in self._followings)

    def described(self, worker: str, hashing: Hashing) -> None:
        """Its keys are made like this from now on; another way than before begins anew."""
        known = self.caches.get(worker)
        if known is None or known.hashing != hashing:
            self.caches[worker] = EngineCache(hashing)

    def prefixes(self, keys: list[bytes]) -> dict[str, int]:
        """By worker: how many of these first blocks its engine holds itself."""
        return {worker: cache.prefix(keys) for worker, cache in self.caches.items() if len(cache)}

    @contextlib.asynccontextmanager
    async def following(self, worker: str, endpoint: str) -> AsyncIterator[None]:
        """What the engine publishes at `endpoint` is applied meanwhile. Raises ConfigError for an endpoint that is none, or
        without pyzmq."""
        try:
            import zmq
            import zmq.asyncio
        except ImportError as exc:
            needed = 'needs the package "pyzmq" (pip install "mooncask[events]")'
            raise ConfigError(f"workers.{worker}.kv_events", endpoint, needed) from exc
        with zmq.asyncio.Context() as context:
            following = Following(context, endpoint, "", lambda event: self._heard(worker, event))
            reading = asyncio.create_task(following.run())
            subscribed = asyncio.create_task(following.subscribed.wait())
            self._followings.append(following)
            try:
                await asyncio.wait((reading, subscribed), return_when=asyncio.FIRST_COMPLETED)
                if reading.done() and (error := reading.exception()) is not None:
                    raise ConfigError(f"workers.{worker}.kv_events", endpoint, f"can't be followed: {error}") from error
                yield
            finally:
                self._followings.remove(following)
                for task in (reading, subscribed):
                    task.cancel()
                await asyncio.gather(reading, subscribed, return_exceptions=True)

    def _heard(self, worker: str, event: Event) -> None:
        """Until it is known how its keys are made, what it tells is of no use."""
        cache = self.caches.get(worker)
        if cache is not None:
            try:
                cache.apply(event)
            except BadRequest:  # tokens that are none
                cache.clear()
