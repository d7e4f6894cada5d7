"""Commands to the members of a Cluster, each asked by itself.

The package's own way ends the connections to all members when one of them fails, so that a server that is gone takes the others'
answers along. Here a failure makes the Cluster's map be read anew, on connections of its own, and the command is tried once more.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from mooncask.daemon.directory.lines import Lines

LEARN_SECONDS = 1.0
"""Between two readings of the map."""
KEY_AT = {"EVALSHA": 3, "EVAL": 3}
"""Where a command has its first key; 1 for the others."""


class ClusterClient:
    """`connect` makes a client of the package, which knows who has each slot once it is initialized."""

    def __init__(
        self,
        connect: Callable[[], Any],
        slot_of: Callable[[Any], int],
        again: tuple[type[Exception], ...],
        lines_to: Callable[[Any], Lines],
    ) -> None:
        self._connect = connect
        self._slot_of = slot_of
        self._lines_to = lines_to
        self._lines: dict[str, Lines] = {}
        """To the members of the map, by name."""
        self._again: tuple[type[Exception], ...] = (*again, ConnectionError)
        self._client: Any = None
        self._retired: Any = None
        """The one before, whose commands may still be under way."""
        self._learning = asyncio.Lock()
        self._learned_seconds = 0.0

    def get_primaries(self) -> list[Any]:
        return [] if self._client is None else list(self._client.get_primaries())

    async def execute_command(self, *arguments: bytes | str | int) -> Any:
        slot = self._slot_of(arguments[KEY_AT.get(str(arguments[0]), 1)])
        client = self._client
        try:
            return await self._member(client, slot).execute_command(*arguments)
        except self._again:
            await self._learn(client)
        return await self._member(self._client, slot).execute_command(*arguments)

    def lines_for(self, keys: Sequence[bytes]) -> list[tuple[Lines, list[int]]]:
        """Who has these keys, with the places of each one's. Those of whom no member is known are left out."""
        found: dict[str, tuple[Lines, list[int]]] = {}
        for place, key in enumerate(keys):
            try:
                member = self._member(self._client, self._slot_of(key))
            except ConnectionError:
                continue
            if member.name not in found:
                lines = self._lines.get(member.name) or self._lines.setdefault(member.name, self._lines_to(member))
                found[member.name] = (lines, [])
            found[member.name][1].append(place)
        return list(found.values())

    def _member(self, client: Any, slot: int) -> Any:
        members = client.nodes_manager.slots_cache.get(slot) if client is not None else None
        if not members:
            raise ConnectionError(f"no member of the Cluster is known for slot {slot}")
        return members[0]

    async def _learn(self, known: Any) -> None:
        async with self._learning:
            if self._client is not known or (known and time.monotonic() - self._learned_seconds < LEARN_SECONDS):
                return
            self._learned_seconds = time.monotonic()
            new = self._connect()
            try:
                await new.initialize()
            except BaseException:
                await new.aclose()
                raise
            retired, self._retired, self._client = self._retired, self._client, new
            await self._close_lines()
            if retired is not None:
                await retired.aclose()

    async def _close_lines(self) -> None:
        lines, self._lines = list(self._lines.values()), {}
        for one in lines:
            await one.close()

    async def aclose(self) -> None:
        await self._close_lines()
        for client in (self._retired, self._client):
            if client is not None:
                await client.aclose()
        self._retired = self._client = None
