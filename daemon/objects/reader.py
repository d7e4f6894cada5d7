"""Reading one object, whatever becomes of its key meanwhile: its bytes as leased extents, a few ahead of who takes them."""

import asyncio
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from mooncask.daemon.objects.attributes import ObjectInfo
from mooncask.daemon.objects.filling import REQUEST_SECONDS
from mooncask.daemon.objects.manifest import ChunkSpan, Manifest
from mooncask.errors import Busy, NoSuchBlock
from mooncask.tiers.block import Extent, printable_key
from mooncask.tiers.namespace import Namespace

if TYPE_CHECKING:
    from mooncask.daemon.objects.store import Objects
    from mooncask.daemon.service import Service

AHEAD = 2
"""Chunks that come into DRAM while one is being taken."""
LOADS_MAX = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, stop) of a held extent. Who gets it has the reference, and gives it back with `store.drop(extent)`."""

    extent: Extent
    start: int
    stop: int


class ObjectReader:
    """Holds one version of an object: neither a delete nor a newer version takes its bytes away before `close`.

    Made by `Objects.open`. `pieces` may be called once for an object of one block, whose reference it hands on.
    """

    def __init__(
        self,
        objects: "Objects",
        namespace: Namespace,
        info: ObjectInfo,
        extent: Extent | None,
        manifest: Manifest | None,
        parts: Namespace | None,
    ) -> None:
        self.info = info
        self.manifest = manifest
        """Of a long object."""
        self._objects = objects
        self._namespace = namespace
        self._extent = extent
        self.parts = parts
        """Where its chunks are."""
        self._loads: list[Pieces] = []
        self._open = True

    def pieces(self, start: int = 0, stop: int | None = None) -> "Pieces":
        """The object's bytes [start, stop), in order."""
        end = self.info.size if stop is None else stop
        assert 0 <= start <= end <= self.info.size and self._open
        if self.manifest is None or self.parts is None:
            extent, self._extent = self._extent, None
            assert extent is not None, "pieces of one block were taken already"
            pieces = Pieces(self._objects.service, self._namespace, iter(()))
            pieces.first = Piece(extent, start, end)
        else:
            pieces = Pieces(self._objects.service, self.parts, self.manifest.pieces(start, end))
        self._loads.append(pieces)
        return pieces

    def copy(self, start: int, stop: int) -> bytes | None:
        """Bytes [start, stop) of an object of one block, in memory of their own; None for one of several."""
        return None if self._extent is None else bytes(self._objects.store.view(self._extent)[start:stop])

    def close(self) -> None:
        """Gives back all that was not taken."""
        if not self._open:
            return
        self._open = False
        if self._extent is not None:
            self._objects.store.drop(self._extent)
            self._extent = None
        for pieces in self._loads:
            pieces.close()
        if self.manifest is not None:
            self._objects.holds.drop(self.manifest.data)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Pieces:
    """An asynchronous iterator over pieces. Loads are not cancelled but abandoned: a cancelled one could lose a reference."""

    def __init__(self, service: "Service", namespace: Namespace, spans: Iterator[ChunkSpan]) -> None:
        self.first: Piece | None = None
        """What is in DRAM already."""
        self._service = service
        self._namespace = namespace
        self._spans = spans
        self._ahead: deque[tuple[ChunkSpan, asyncio.Task[Extent]]] = deque()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Piece:
        """Raises NoSuchBlock when a part has been lost meanwhile (a damaged one is quarantined), Busy when there is no room."""
        if self.first is not None:
            piece, self.first = self.first, None
            if piece.stop > piece.start:
                return piece
            self._service.store.drop(piece.extent)
        self._load_ahead(1 + AHEAD)
        if not self._ahead:
            raise StopAsyncIteration
        span, task = self._ahead[0]
        await asyncio.wait({task})
        self._ahead.popleft()
        return Piece(task.result(), span.start, span.stop)

    def close(self) -> None:
        if self.first is not None:
            self._service.store.drop(self.first.extent)
            self.first = None
        while self._ahead:
            self._ahead.popleft()[1].add_done_callback(self._abandoned)

    def _load_ahead(self, most: int) -> None:
        while len(self._ahead) < most and (span := next(self._spans, None)) is not None:
            task = asyncio.get_running_loop().create_task(self._load(span.key))
            self._service.loads.add(task)
            task.add_done_callback(self._service.loads.discard)
            self._ahead.append((span, task))

    async def _load(self, key: bytes) -> Extent:
        store, deadline = self._service.store, time.monotonic() + REQUEST_SECONDS
        for _ in range(LOADS_MAX):
            extent = await store.fetch(self._namespace, key, deadline)
            if extent is not None:
                return extent
            if not store.has(self._namespace, key):
                raise NoSuchBlock(self._namespace.spec.name, printable_key(key))
        raise Busy(f"part {printable_key(key)} did not come into DRAM", REQUEST_SECONDS)

    def _abandoned(self, task: "asyncio.Task[Extent]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._service.store.drop(task.result())
