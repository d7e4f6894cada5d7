"""Follows one engine's KV events over ZeroMQ: in order, with what was missed asked for again.

A message is [topic, number as 8 bytes big endian, batch]. Behind a gap that nobody can fill, and when the numbers begin
again since the engine has started anew, nothing that was said before is believed any more.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import xxhash

from mooncask.conductor.serving.kv_events.events import BadEvents, Cleared, Event, decode

if TYPE_CHECKING:
    import zmq.asyncio

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 64 << 20
WAITING_MAX = 10_000
"""Batches that wait to be read; what comes beyond is missed, and found to be."""
SLICE = 64
"""Batches in a row before others get their turn."""
REPLAY_SECONDS = 5.0
END = (1 << 64) - 1
"""The number behind the last batch of a replay."""

Heard = Callable[[Event], None]


@dataclass(slots=True)
class Following:
    """`heard` gets every event, in order. `run` goes on until it is cancelled. Belongs to one event loop."""

    context: "zmq.asyncio.Context"
    endpoint: str
    replay_endpoint: str
    heard: Heard
    gaps: int = 0
    bad: int = 0
    batches: int = 0
    subscribed: asyncio.Event = field(default_factory=asyncio.Event)
    _next: int | None = None
    """The number of the batch that comes next."""
    _last: int | None = None
    """The last one that the engine published itself."""
    _replayed: dict[int, int] = field(default_factory=dict)
    """Digests of what replays told: the engine may publish it as well, or be another one by then."""

    async def run(self) -> None:
        import zmq

        with contextlib.closing(self.context.socket(zmq.SUB)) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.RCVHWM, WAITING_MAX)
            socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.connect(self.endpoint)
            socket.subscribe(b"")
            if self.replay_endpoint:
                await self._replay(0)
            self.subscribed.set()
            for count in itertools.count(1):
                await self._message(await socket.recv_multipart())
                if count % SLICE == 0:  # what waits already is read without a wait
                    await asyncio.sleep(0)

    async def _message(self, parts: Sequence[bytes]) -> None:
        if len(parts) != 3 or len(parts[1]) != 8:
            self.bad += 1
            return
        number, last = int.from_bytes(parts[1], "big"), self._last
        self._last = number
        if self._next is not None and number < self._next:
            if (last is None or number > last) and self._replayed.get(number) == _digest(parts[2]):
                return
            self._forget("it has started anew")
            self._next = 0
        self._replayed.clear()
        if self._next is not None and number > self._next:
            await self._fill(self._next, number)
        if self._next is None or number >= self._next:
            self._batch(number, parts[2])

    async def _fill(self, missing: int, number: int) -> None:
        """Batches from `missing` to before `number`, from the replay; without them nothing is believed."""
        self.gaps += 1
        if self.replay_endpoint:
            await self._replay(missing)
        if self._next is None or self._next < number:
            self._forget(f"batches {missing} to {number - 1} are lost")
            self._next = number

    async def _replay(self, since: int) -> None:
        """What is kept from there on; on a fault what came before it."""
        import zmq

        with contextlib.closing(self.context.socket(zmq.DEALER)) as socket:
            socket.set(zmq.LINGER, 0)
            socket.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            socket.connect(self.replay_endpoint)
            await socket.send_multipart((b"", since.to_bytes(8, "big")))
            try:
                while True:
                    parts = await asyncio.wait_for(socket.recv_multipart(), REPLAY_SECONDS)
                    number = int.from_bytes(parts[-2], "big")
                    if number == END:
                        return
                    if self._next is not None and number > self._next:
                        return  # the first of them are not kept any more
                    if self._next is None or number == self._next:
                        self._replayed[number] = _digest(parts[-1])
                        self._batch(number, parts[-1])
            except (TimeoutError, IndexError):
                log.warning("%s does not tell again what was missed", self.replay_endpoint)

    def _batch(self, number: int, payload: bytes) -> None:
        self._next = number + 1
        try:
            events = decode(payload)
        except BadEvents as exc:
            self.bad += 1
            self._forget(f"batch {number} can't be read: {exc}")
            return
        self.batches += 1
        for event in events:
            self.heard(event)

    def _forget(self, why: str) -> None:
        log.info("KV events of %s: %s; what it holds is learned anew", self.endpoint, why)
        self.heard(Cleared())


def _digest(payload: bytes) -> int:
    return xxhash.xxh3_64_intdigest(payload)
