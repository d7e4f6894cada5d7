"""One attempt to write one part: its bytes go into chunks, which are blocks of the hidden namespace and safe when it ends.

What makes them a visible object (`writer.py`), or a part of an upload (`uploads.py`), comes afterwards.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import xxhash

from mooncask.daemon.objects.attributes import checksum_etag
from mooncask.daemon.objects.filling import Filling, ended, make_durable
from mooncask.daemon.objects.manifest import PartRow, chunk_key
from mooncask.errors import BadRequest
from mooncask.tiers.namespace import Namespace

if TYPE_CHECKING:
    from mooncask.daemon.service import Service

SETTLING_MAX = 2
"""Chunks that may be on their way to the disk while the next one fills."""


class ChunkWriter:
    """Of one task. `abort` may be called at any time; after `finish` it removes what was written."""

    def __init__(self, service: "Service", parts: Namespace, data: bytes, row: PartRow) -> None:
        self._service = service
        self._parts = parts
        self._data = data
        self._row = row
        self._filling: Filling | None = None
        self._begun = 0
        self._received = 0
        self._settling: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """The place for the first chunk: a refusal comes before any byte is read."""
        await self._next()

    async def write(self, piece: memoryview) -> None:
        """Returns when the bytes are copied. Raises Busy, NotEvictable, TierDegraded and the like."""
        self._received += piece.nbytes
        if self._received > self._row.size:
            raise BadRequest(f"more than the {self._row.size} bytes that were announced")
        while piece.nbytes:
            filling = self._filling or await self._next()
            share = min(filling.room, piece.nbytes)
            filling.take(piece[:share])
            piece = piece[share:]
            if not filling.room:
                await self._settle(filling)

    async def finish(self) -> None:
        """All chunks are published, and durable in write_through namespaces."""
        if self._received != self._row.size:
            raise BadRequest(f"{self._received} bytes came of {self._row.size}")
        await self._wait(0)

    def abort(self, background: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        """Gives back the place that is being filled; what was published goes in the background."""
        if self._filling is not None:
            self._filling.abort()
            self._filling = None
        background(self._remove())

    def keys(self) -> list[bytes]:
        """Of the chunks that were begun."""
        return [chunk_key(self._data, self._row.number, chunk) for chunk in range(self._begun)]

    def checksum_etag(self) -> str:
        """Of the chunks' own checksums, for an object of which no other digest was made. After `finish`."""
        checksums = [self._service.store.checksum(self._parts, key) or b"" for key in self.keys()]
        return checksum_etag(xxhash.xxh3_128_digest(b"".join(checksums)), len(checksums))

    async def _next(self) -> Filling:
        size = min(self._row.chunk_bytes, self._row.size - self._begun * self._row.chunk_bytes)
        key = chunk_key(self._data, self._row.number, self._begun)
        filling = await Filling.reserve(self._service, self._parts, key, size)
        assert filling is not None, "no two attempts have the same number"
        self._begun += 1
        self._filling = filling
        return filling

    async def _settle(self, filling: Filling) -> None:
        self._filling = None
        self._settling.append(asyncio.get_running_loop().create_task(self._publish(filling)))
        await self._wait(SETTLING_MAX)

    async def _publish(self, filling: Filling) -> None:
        try:
            await filling.publish()
            await make_durable(self._service, self._parts, filling.key)
            self._service.store.leave_memory(self._parts, filling.key)
        finally:
            filling.abort()

    async def _wait(self, most: int) -> None:
        """Until at most so many are under way. Raises the first error there was."""
        while len(self._settling) > most:
            first = self._settling[0]
            await asyncio.wait({first})
            self._settling.remove(first)
            first.result()

    async def _remove(self) -> None:
        """What was published, when nothing of it is under way any more."""
        await ended(self._settling)
        await self._service.store.evict(self._parts, self.keys())
