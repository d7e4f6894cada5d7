"""The ZeroMQ sockets: numbered batches on a PUB socket, and on a ROUTER socket those again that a subscriber missed.

A message is [topic, sequence as 8 bytes big endian, batch]. A subscriber that finds a gap sends [empty, sequence] to the
replay socket and gets [empty, sequence, batch] for each batch from there on that is still kept, then [empty, 2^64 - 1, empty].
Neither socket ever makes the daemon wait: who reads too slowly misses batches, and sees it by their numbers.
"""

import asyncio
import logging
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

from mooncask.daemon.config import KvEventsSection
from mooncask.errors import AddressInUse, ConfigError

if TYPE_CHECKING:
    import zmq
    import zmq.asyncio

log = logging.getLogger(__name__)

END = b"\xff" * 8
BATCHES_MAX = 10_000
"""Kept for replay, beside the bound in bytes; also how many may wait for one subscriber."""
REQUEST_BYTES_MAX = 64
LINGER_MS = 200
REPLAY_SLICE = 64
"""Batches of a replay that are sent before others get their turn."""


class Kept(NamedTuple):
    sequence: bytes
    payload: bytes


class Replay:
    """The latest batches, within a bound of bytes and of batches."""

    def __init__(self, bytes_max: int, batches_max: int = BATCHES_MAX) -> None:
        self._bytes_max, self._batches_max = bytes_max, batches_max
        self._kept: deque[Kept] = deque()
        self.bytes = 0

    def add(self, sequence: bytes, payload: bytes) -> None:
        self._kept.append(Kept(sequence, payload))
        self.bytes += len(payload)
        while self._kept and (self.bytes > self._bytes_max or len(self._kept) > self._batches_max):
            self.bytes -= len(self._kept.popleft().payload)

    def since(self, sequence: bytes) -> list[Kept]:
        return [kept for kept in self._kept if kept.sequence >= sequence]  # big endian: bytes sort as numbers


class Publisher:
    """Belongs to the event loop's thread."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", section: KvEventsSection, topic: bytes, counters: Counter[str]
    ) -> None:
        self._topic = topic
        self._counters = counters
        self._replay = Replay(section.replay)
        self._next = 0
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._pub: zmq.Socket[bytes] | None = None
        self._router: zmq.asyncio.Socket | None = None
        self.endpoint = self.replay_endpoint = ""
        """As they are bound, a chosen port filled in."""

    @staticmethod
    async def open(section: KvEventsSection, topic: bytes, counters: Counter[str]) -> "Publisher":
        """Raises AddressInUse, and ConfigError, also where ZeroMQ is not installed."""
        try:
            from zmq import Context
        except ImportError as exc:
            allowed = 'needs the package "pyzmq" (pip install "mooncask[events]")'
            raise ConfigError("kv_events.endpoint", f'"{section.endpoint}"', allowed) from exc
        publisher = Publisher(Context(), section, topic, counters)
        try:
            publisher._open(section)
        except BaseException:
            await publisher.close()
            raise
        return publisher

    def publish(self, payload: bytes) -> None:
        """Sends one encoded batch under the next number, and keeps it for replay."""
        from zmq import NOBLOCK

        assert self._pub is not None
        sequence = self._next.to_bytes(8, "big")
        self._next += 1
        self._replay.add(sequence, payload)
        self._pub.send_multipart((self._topic, sequence, payload), NOBLOCK)
        self._counters["kv_events_batches"] += 1

    def kept(self, since: int) -> list[Kept]:
        """The batches from that number on that can be sent again."""
        return self._replay.since(since.to_bytes(8, "big"))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for socket in (self._pub, self._router):
            if socket is not None:
                socket.close(LINGER_MS)
        await asyncio.to_thread(self._context.term)  # waits for what lingers

    def _open(self, section: KvEventsSection) -> None:
        import zmq
        import zmq.asyncio

        self._pub = pub = self._context.socket(zmq.PUB)
        pub.set_hwm(BATCHES_MAX)
        self.endpoint = _attach(pub, "kv_events.endpoint", section.endpoint, section.connect)
        if not section.replay_endpoint:
            return
        self._router = router = zmq.asyncio.Context(self._context).socket(zmq.ROUTER)
        router.set_hwm(BATCHES_MAX + 1)  # a whole replay with its end mark
        router.setsockopt(zmq.MAXMSGSIZE, REQUEST_BYTES_MAX)
        self.replay_endpoint = _attach(router, "kv_events.replay_endpoint", section.replay_endpoint)
        self._task = asyncio.get_running_loop().create_task(self._serve_replays(router))

    async def _serve_replays(self, router: "zmq.asyncio.Socket") -> None:
        from zmq import ZMQError

        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                self._counters["kv_events_replays_malformed"] += 1
                continue
            self._counters["kv_events_replays"] += 1
            try:
                await self._send_replay(router, frames[0], frames[2])
            except ZMQError as exc:
                log.warning("a replay of KV events failed: %s", exc)

    async def _send_replay(self, router: "zmq.asyncio.Socket", client: bytes, since: bytes) -> None:
        for number, kept in enumerate(self._replay.since(since)):
            await router.send_multipart((client, b"", *kept))
            if number % REPLAY_SLICE == 0:
                await asyncio.sleep(0)
        await router.send_multipart((client, b"", END, b""))


def _attach(socket: "zmq.Socket[bytes] | zmq.asyncio.Socket", key: str, endpoint: str, connect: bool = False) -> str:
    import zmq

    try:
        if connect:
            socket.connect(endpoint)
            return endpoint
        socket.bind(endpoint)
        return socket.getsockopt_string(zmq.LAST_ENDPOINT)
    except zmq.ZMQError as exc:
        if exc.errno == zmq.EADDRINUSE:
            raise AddressInUse(key, endpoint) from exc
        raise ConfigError(
            key, f'"{endpoint}"', f"must be an address to listen on or to reach ({exc.strerror})"
        ) from exc
