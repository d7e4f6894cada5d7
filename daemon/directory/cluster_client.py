"""Commands to the members of a Cluster, each asked by itself.

The package's own way ends the connections to all members when one of them fails, so that a server that is gone takes the others'
answers along. Here a failure makes the Cluster's map be read anew, on connections of its own, and the command is tried once more.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

LEARN_SECONDS = 1.0
"""Between two readings of the map."""
KEY_AT = {"EVALSHA": 3, "EVAL": 3}
"""Where a command has its first key; 1 for the others."""


class ClusterClient:
    """`connect` makes a client of the package, which knows who has each slot once it is initialized."""

    def __init__(
        self, connect: Callable[[], Any], slot_of: Callable[[Any], int], again: tuple[type[Exception], ...]
    ) -> None:
        self._connect = connect
        self._slot_of = slot_of
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
            if retired is not None:
                await retired.aclose()

    async def aclose(self) -> None:
        for client in (self._retired, self._client):
            if client is not None:
                await client.aclose()
        self._retired = self._client = None
