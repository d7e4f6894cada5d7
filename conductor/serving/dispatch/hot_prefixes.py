"""Prefixes that many requests read are copied to the nodes of other prefill workers, in the background and within bounds.

A prompt's chain is counted at every doubling of its length (8, 16, 32 blocks ...) as far as some node holds it: what requests
have in common ends somewhere in it, whatever each goes on with. When and where to copy is the policy's to say
(`scheduling/replication.py`), the copying is the daemons' (`POST /-/v1/replicate`). Not here: what to do with copies that
nobody reads any more; they leave the tiers as all blocks do.
"""

import asyncio
import logging
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mooncask.client.control import Replicated
from mooncask.client.worker_api import Hashing, Node
from mooncask.conductor.scheduling.replication import HotSpots
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)

BLOCKS_MIN = 8
"""Shorter prefixes are computed as fast as they are fetched."""
KEYS_MAX = 20_000
SHOWN_MAX = 20
COPIES_KEPT = 200
AGAIN_SECONDS = 30.0
"""Before the same chain is copied to the same node again: it may have left, or been refused."""
COPY_SECONDS = 30.0


class Replicator(Protocol):
    """What asks a node's daemon to copy."""

    async def replicate(
        self, source: Node, target: str, hashing: Hashing, keys: Sequence[bytes], seconds: float
    ) -> Replicated:
        """Raises MooncaskError when the source does not do it."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """A prefill worker's node: how many blocks of the prompt it holds, and how busy its least busy worker is."""

    node: Node
    blocks: int
    queue_seconds: float


@dataclass(frozen=True, slots=True)
class CopyMade:
    """One copy as it ended. `at` in seconds since 1970."""

    at: float
    model: str
    key: str
    source: str
    target: str
    blocks: int
    copied: int = 0
    there: int = 0
    seconds: float = 0.0
    failure: str = ""


@dataclass(slots=True)
class Chain:
    """A prefix that was read lately; `holders` as of its last read."""

    model: str
    tokens: int
    holders: list[str] = field(default_factory=list)


class HotPrefixes:
    """Belongs to one event loop. `copies_max` run at a time; 0: none."""

    def __init__(self, replicator: Replicator, copies_max: int, busy_share: float) -> None:
        self._replicator, self._copies_max = replicator, copies_max
        self._spots = HotSpots(busy_share=busy_share, keys_max=KEYS_MAX)
        self._chains: OrderedDict[bytes, Chain] = OrderedDict()
        self._asked: OrderedDict[tuple[bytes, str], float] = OrderedDict()
        self._running: set[asyncio.Task[None]] = set()
        self.copies: deque[CopyMade] = deque(maxlen=COPIES_KEPT)

    def read(
        self, model: str, hashing: Hashing, keys: Sequence[bytes], places: Sequence[Place], read_seconds: float
    ) -> None:
        """A request reads this prompt's chain, of which a block takes `read_seconds` between two nodes."""
        if not self._copies_max or len(places) < 2:
            return
        now, held = time.monotonic(), max(place.blocks for place in places)
        lengths = [length for length in _doublings(len(keys)) if length <= held]
        for length in lengths:
            self._note(keys[length - 1], model, length * hashing.block_tokens, places, length, now)
        for length in reversed(lengths):  # the longest one first: it brings the others along
            if self._copy(model, hashing, keys[:length], places, read_seconds * length, now):
                return

    def rows(self) -> list[tuple[bytes, Chain, float]]:
        """The hottest chains with their reads a second; of chains within each other all."""
        now = time.monotonic()
        rated = [(key, chain, self._spots.rate(_number(key), now)) for key, chain in self._chains.items()]
        return sorted(rated, key=lambda row: -row[2])[:SHOWN_MAX]

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _note(self, key: bytes, model: str, tokens: int, places: Sequence[Place], length: int, now: float) -> None:
        self._spots.read(_number(key), now)
        holders = sorted({place.node.name for place in places if place.blocks >= length})
        self._chains[key] = Chain(model, tokens, holders)
        self._chains.move_to_end(key)
        while len(self._chains) > KEYS_MAX:
            self._chains.popitem(last=False)

    def _copy(
        self,
        model: str,
        hashing: Hashing,
        keys: Sequence[bytes],
        places: Sequence[Place],
        read_seconds: float,
        now: float,
    ) -> bool:
        """Begins what the policy wants; True when it wants a copy of this chain at all."""
        holders = [i for i, place in enumerate(places) if place.blocks >= len(keys)]
        queues = [place.queue_seconds for place in places]
        wanted = self._spots.copies(_number(keys[-1]), now, read_seconds, holders, queues)
        for copy in wanted:
            self._begin(model, hashing, keys, places[copy.source].node, places[copy.target].node, now)
        return bool(wanted)

    def _begin(
        self, model: str, hashing: Hashing, keys: Sequence[bytes], source: Node, target: Node, now: float
    ) -> None:
        name = keys[-1], target.name
        if len(self._running) >= self._copies_max or self._asked.get(name, 0.0) > now:
            return
        self._asked[name] = now + AGAIN_SECONDS
        self._asked.move_to_end(name)
        while len(self._asked) > KEYS_MAX:
            self._asked.popitem(last=False)
        task = asyncio.create_task(self._run(model, hashing, keys, source, target))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _run(self, model: str, hashing: Hashing, keys: Sequence[bytes], source: Node, target: Node) -> None:
        began, at, made, failure = time.monotonic(), time.time(), Replicated(target.name, len(keys)), ""
        try:
            made = await self._replicator.replicate(source, target.name, hashing, keys, COPY_SECONDS)
            failure = made.reason
        except MooncaskError as exc:
            failure = exc.message
        except Exception as exc:
            log.exception("a copy of %d blocks to node %s failed by a fault of this Conductor", len(keys), target.name)
            failure = repr(exc)
        seconds = time.monotonic() - began
        done = (made.copied, made.there, seconds, failure)
        self.copies.append(CopyMade(at, model, keys[-1].hex(), source.name, target.name, len(keys), *done))
        log.info(
            "hot prefix of %d blocks: %d copied from %s to %s%s",
            len(keys), made.copied, source.name, target.name, f"; {failure}" if failure else "",
        )  # fmt: skip


def _doublings(blocks: int) -> list[int]:
    """8, 16, 32 ..."""
    return [BLOCKS_MIN << i for i in range(32) if BLOCKS_MIN << i <= blocks]


def _number(key: bytes) -> int:
    return int.from_bytes(key[:8], "big")
