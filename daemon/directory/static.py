"""A directory without a server: every node of a list is asked whether it has the blocks. For a handful of nodes.

Answers are remembered for a moment, so that the match before an acquire and the acquire ask once. A node that does not
answer in time is left alone for a while.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from mooncask.daemon.directory.directory import NodeRecord, Release
from mooncask.daemon.directory.have import HAVE, HAVE_KEYS_MAX, Has, Have, decoded
from mooncask.daemon.directory.suspects import Suspects
from mooncask.daemon.transport.transport import Link, LinkPool
from mooncask.errors import MooncaskError

FOUND_SECONDS = 2.0
MISSING_SECONDS = 0.1
REMEMBERED_MAX = 1 << 16
ASK_SECONDS_MAX = 2.0
"""What one node may take for its answer, however long the caller can wait."""

_Name = tuple[bytes, bytes, bytes]
"""(incarnation, namespace id, key)"""


class StaticDirectory:
    """See `Directory`."""

    kind = "static"

    def __init__(self, addresses: Sequence[str], pool: LinkPool, me: bytes = b"") -> None:
        """`me`: this node's incarnation."""
        self._me = me
        self.on_shared: Callable[[bytes, Sequence[bytes]], None] = lambda ns_id, keys: None
        self._addresses = tuple(addresses)
        self._pool = pool
        self._nodes: dict[bytes, NodeRecord] = {}
        """The incarnation that answered last at each address."""
        self._remembered: OrderedDict[_Name, tuple[bool, float]] = OrderedDict()
        self._suspects = Suspects()

    @property
    def state(self) -> str:
        return "ok"

    async def lookup(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[list[bytes]]:
        answers = await asyncio.gather(*(self._ask(address, ns_id, keys, deadline) for address in self._addresses))
        found: list[list[bytes]] = [[] for _ in keys]
        for answer in filter(None, answers):
            for index in answer.here:
                found[index].append(answer.incarnation)
        return found

    def node(self, incarnation: bytes) -> NodeRecord | None:
        return self._nodes.get(incarnation)

    async def nodes(self, deadline: float) -> list[NodeRecord]:
        now = time.monotonic()
        asked = [address for address in self._addresses if not self._suspects.avoids(address, now)]
        await asyncio.gather(*(self._reach(address, deadline) for address in asked))
        return list(self._nodes.values())

    def announce(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        """Nobody is told: the others ask."""

    def withdraw(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        """As `announce`."""

    def not_there(self, ns_id: bytes, keys: Sequence[bytes], incarnation: bytes) -> None:
        for key in keys:
            self._remember((incarnation, ns_id, key), False)

    async def release(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[Release]:
        """Nobody decides here for all: of those that have a block the one with the least incarnation keeps it."""
        found = [Release.LAST for _ in keys]
        for address in self._addresses:
            link = None if self._suspects.avoids(address, time.monotonic()) else await self._reach(address, deadline)
            if link is None or link.peer.incarnation >= self._me:
                continue
            try:
                for first in range(0, len(keys), HAVE_KEYS_MAX):
                    some = range(first, min(first + HAVE_KEYS_MAX, len(keys)))
                    for index in await self._ask_some(link, ns_id, keys, some, deadline):
                        found[index] = Release.ELSEWHERE
            except MooncaskError:
                self._failed(address)
        return found

    async def close(self) -> None:
        self._remembered.clear()

    # --- one node ---

    async def _ask(self, address: str, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> "_Answer | None":
        if self._suspects.avoids(address, time.monotonic()):
            return None
        deadline = min(deadline, time.monotonic() + ASK_SECONDS_MAX)
        link = await self._reach(address, deadline)
        if link is None:
            return None
        incarnation = link.peer.incarnation
        here, unknown = self._recall(incarnation, ns_id, keys)
        try:
            for first in range(0, len(unknown), HAVE_KEYS_MAX):
                here += await self._ask_some(link, ns_id, keys, unknown[first : first + HAVE_KEYS_MAX], deadline)
            self._suspects.answered(address)
        except MooncaskError:
            self._failed(address)
        return _Answer(incarnation, here)

    async def _ask_some(
        self, link: Link, ns_id: bytes, keys: Sequence[bytes], which: Sequence[int], deadline: float
    ) -> list[int]:
        question = msgspec.msgpack.encode(Have(ns_id, [keys[index] for index in which]))
        answer = decoded(await link.ask(HAVE, question, deadline), Has)
        here = [index for index, size in zip(which, answer.sizes, strict=False) if size]
        for index in which:
            self._remember((link.peer.incarnation, ns_id, keys[index]), False)
        for index in here:
            self._remember((link.peer.incarnation, ns_id, keys[index]), True)
        return here

    async def _reach(self, address: str, deadline: float) -> Link | None:
        try:
            link = await self._pool.link(address, deadline)
        except MooncaskError:
            self._failed(address)
            return None
        if link.peer.incarnation not in self._nodes:
            for old in [node.incarnation for node in self._nodes.values() if node.address == address]:
                del self._nodes[old]
            self._nodes[link.peer.incarnation] = NodeRecord(
                link.peer.name, link.peer.incarnation, address, (link.peer.transport,)
            )
        return link

    def _failed(self, address: str) -> None:
        self._suspects.failed(address, time.monotonic())
        for old in [node.incarnation for node in self._nodes.values() if node.address == address]:
            del self._nodes[old]

    # --- what was answered a moment ago ---

    def _recall(self, incarnation: bytes, ns_id: bytes, keys: Sequence[bytes]) -> tuple[list[int], list[int]]:
        """Indexes of the keys that are there, and of those that are to be asked for."""
        here, unknown, now = list[int](), list[int](), time.monotonic()
        for index, key in enumerate(keys):
            has, until = self._remembered.get((incarnation, ns_id, key), (False, 0.0))
            if until <= now:
                unknown.append(index)
            elif has:
                here.append(index)
        return here, unknown

    def _remember(self, name: _Name, has: bool) -> None:
        self._remembered.pop(name, None)
        self._remembered[name] = (has, time.monotonic() + (FOUND_SECONDS if has else MISSING_SECONDS))
        if len(self._remembered) > REMEMBERED_MAX:
            self._remembered.popitem(last=False)


class _Answer:
    """Indexes of the keys that one incarnation has."""

    __slots__ = ("here", "incarnation")

    def __init__(self, incarnation: bytes, here: list[int]) -> None:
        self.incarnation = incarnation
        self.here = here
