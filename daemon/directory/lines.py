"""Batches of commands to one server, each over a connection that it has for itself meanwhile, and all of it written before the
first answer is read.

A command by itself costs a node several times what it costs as one of many. And since a server reads from each of its connections
in turn, what is short does not wait for all of another node's batch.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

Words = Sequence[bytes | str | int]


class Lines:
    """`connect` makes a connection of the package, which connects when it is used first; `pack` makes a command's bytes; `refused` is
    what is raised for an answer that is an error."""

    def __init__(
        self,
        connect: Callable[[], Any],
        pack: Callable[[Words], bytes],
        broken: tuple[type[Exception], ...],
        refused: type[Exception],
    ) -> None:
        self._connect = connect
        self._pack = pack
        self._broken = broken
        self._refused = refused
        self._free: list[Any] = []
        self._closed = False

    async def ask(self, commands: Sequence[Words]) -> list[Any]:
        """An answer to each, which may be the server's error. Raises `broken` when there is no connection; a connection that was kept
        may have been closed by the server, so the commands are then said again over another one."""
        said = b"".join(map(self._pack, commands))
        while self._free:
            try:
                return await self._ask(self._free.pop(), said, len(commands))
            except self._broken:
                continue
        return await self._ask(self._connect(), said, len(commands))

    async def _ask(self, connection: Any, said: bytes, count: int) -> list[Any]:
        kept = False
        try:
            await connection.send_packed_command(said, check_health=False)
            answers = [await self._answer(connection) for _ in range(count)]
            kept = not self._closed
        finally:
            if kept:
                self._free.append(connection)
            else:
                await connection.disconnect(nowait=True)
        return answers

    async def _answer(self, connection: Any) -> Any:
        try:
            return await connection.read_response()
        except self._refused as error:
            return error

    async def close(self) -> None:
        """Connections in use end with their batches."""
        self._closed = True
        free, self._free = self._free, []
        await asyncio.gather(*(connection.disconnect() for connection in free), return_exceptions=True)
