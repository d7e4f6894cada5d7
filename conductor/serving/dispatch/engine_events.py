"""Follows the KV events of vLLM engines (`--kv-events-config`), so that their own prefix caches count in placement.

A batch that was missed empties what is known of its engine: what is then told again is learned again. It needs pyzmq.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from mooncask.client.worker_api import Hashing
from mooncask.conductor.serving.dispatch.engine_caches import EngineCache, Event
from mooncask.errors import BadRequest, ConfigError

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger(__name__)

WAITING_MAX = 10_000
"""Batches that may wait to be read; more are dropped, and seen by their numbers."""
MESSAGE_BYTES_MAX = 64 << 20
SLICE = 64
"""Batches in a row before others get their turn."""


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    seconds: float
    events: list[msgspec.Raw]


_EVENT = msgspec.msgpack.Decoder(Event)


class EngineEvents:
    """The caches of the engines that are followed, by worker name. Belongs to one event loop."""

    def __init__(self) -> None:
        self.caches: dict[str, EngineCache] = {}
        self.lost = 0
        """Times that batches of an engine were missed."""

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
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.RCVHWM, WAITING_MAX)
            socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.setsockopt(zmq.SUBSCRIBE, b"")
            try:
                socket.connect(endpoint)
            except zmq.ZMQError as exc:
                raise ConfigError(f"workers.{worker}.kv_events", endpoint, f"is no ZeroMQ endpoint: {exc}") from exc
            reading = asyncio.create_task(self._read(worker, socket))
            try:
                yield
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)

    async def _read(self, worker: str, socket: "zmq.asyncio.Socket") -> None:
        decoder, expected, count = msgspec.msgpack.Decoder(_Batch), 0, 0
        while True:
            parts = await socket.recv_multipart()
            if len(parts) == 3 and len(parts[1]) == 8:
                expected = self._batch(worker, decoder, parts[1], parts[2], expected)
            count += 1
            if count % SLICE == 0:
                await asyncio.sleep(0)

    def _batch(
        self, worker: str, decoder: "msgspec.msgpack.Decoder[_Batch]", number: bytes, data: bytes, expected: int
    ) -> int:
        """The number that should come next."""
        cache, sequence = self.caches.get(worker), int.from_bytes(number, "big")
        if cache is None:
            return sequence + 1  # nobody knows how its keys are made yet
        if sequence != expected and len(cache):
            self.lost += 1
            log.info("engine events of %s: number %d came instead of %d", worker, sequence, expected)
            cache.clear()
        try:
            for raw in decoder.decode(data).events:
                with contextlib.suppress(msgspec.ValidationError):  # a kind that this version does not know
                    cache.apply(_EVENT.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, BadRequest) as exc:
            log.warning("engine events of %s are not as expected, and forgotten: %s", worker, exc)
            cache.clear()
        return sequence + 1
