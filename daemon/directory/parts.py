"""Which parts of a Cluster do not answer: the shards of a server that is gone are left alone, the others go on.

A part is what a location's braces name (`scripts.py`). Nothing waits for a part that was lost; the heartbeats ask whether it is
back. A server that is alone has no parts: what fails there is raised.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from mooncask.daemon.directory.scripts import Script
from mooncask.errors import PeerUnavailable

log = logging.getLogger(__name__)

PARTS_MAX = 4096
RUNS_MAX = 256
PATIENCE_SECONDS = 0.2
"""A call that had less time than this says nothing about who was asked."""


class Call(NamedTuple):
    """Locations of one shard: MGET, or a script with its arguments."""

    keys: Sequence[bytes]
    script: Script | None = None
    arguments: Sequence[bytes | int] = ()

    @property
    def part(self) -> bytes:
        location = self.keys[0]
        return location[: location.index(b"}") + 1]


class Server(Protocol):
    """Commands; each raises PeerUnavailable when it fails or is not answered by its deadline."""

    sharded: bool
    """Whether the keys of one call must be of one shard."""

    async def command(self, *arguments: bytes | str | int, deadline: float) -> Any: ...

    async def run(
        self, script: Script, keys: Sequence[bytes], arguments: Sequence[bytes | int], deadline: float
    ) -> Any: ...

    async def carry_out(self, calls: Sequence[Call], deadline: float) -> list[Any]:
        """Together, for less than one by one: for each its answer, or PeerUnavailable in the place of it. A call may be carried out
        twice when a connection ends meanwhile."""
        ...

    async def runs(self, deadline: float) -> set[str]:
        """Of a Cluster: the runs of those members that answer. A member that starts anew, or a replica that takes over, is another
        run."""
        ...

    async def renew(self) -> None:
        """Forgets what it knows of the server's members: those that it lost may all be back."""
        ...

    async def close(self) -> None: ...


class Parts:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._lost: set[bytes] = set()
        self._runs: set[str] = set()

    def __len__(self) -> int:
        """How many are lost."""
        return len(self._lost)

    async def carry_out(self, calls: Sequence[Call], deadline: float) -> list[Any]:
        """What each answers; None when its part does not. Raises PeerUnavailable for a server that is alone."""
        began = time.monotonic()
        if not self._server.sharded:
            answers = await self._server.carry_out(calls, deadline)
            for answer in answers:
                if isinstance(answer, PeerUnavailable):
                    raise answer
            return answers
        asked = [index for index, call in enumerate(calls) if call.part not in self._lost]
        found: list[Any] = [None] * len(calls)
        for index, answer in zip(
            asked, await self._server.carry_out([calls[index] for index in asked], deadline), strict=True
        ):
            if isinstance(answer, PeerUnavailable):
                self._failed(calls[index].part, answer, began)
            else:
                found[index] = answer
        return found

    def _failed(self, part: bytes, error: PeerUnavailable, began: float) -> None:
        """A call that began then. One that was in a hurry says nothing."""
        hurried = isinstance(error.__cause__, TimeoutError) and time.monotonic() - began < PATIENCE_SECONDS
        if not hurried and len(self._lost) < PARTS_MAX:
            if not self._lost:
                log.warning("a part of the directory does not answer: %s; the others are used", error.why[:200])
            self._lost.add(part)

    async def forgotten(self, deadline: float) -> bool:
        """Whether a member may have forgotten what it was told: who tells nothing meanwhile would not notice it."""
        runs = await self._server.runs(deadline) if self._server.sharded else set()
        new = runs - self._runs
        known, self._runs = bool(self._runs), (self._runs if len(self._runs) < RUNS_MAX else set()) | runs
        return known and bool(new)

    async def probe(self, deadline: float) -> bool:
        """Whether any that was lost is back."""
        parts = list(self._lost)
        await asyncio.gather(*(self._ask(part, deadline) for part in parts))
        return len(self._lost) < len(parts)

    async def _ask(self, part: bytes, deadline: float) -> None:
        try:
            await self._server.command("EXISTS", part, deadline=deadline)
        except PeerUnavailable:
            return
        self._lost.discard(part)
