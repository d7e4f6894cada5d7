"""A worker's way to the store through a tier that takes only so many bytes a second: a token bucket, on a thread of its own.

The worker reserves and computes as always; what it stores is handed to the lane, layer by layer, and the lane copies each
piece when the bucket has the bytes for it. `finish` waits for the last one. Only a bench needs such a thing.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.store_link import PRIORITY_NEUTRAL, StoreAddress, StoreLink, StoreSession
from mooncask.engine_adapter.transformers.stored_chunk import StoredChunk

PIECES_MAX = 1 << 16
"""Layers of chunks that may wait; more than the longest prompt has."""


class Bucket:
    """A token bucket that holds nothing in reserve: pieces follow each other at the rate. Used by one thread."""

    def __init__(self, bytes_per_second: float) -> None:
        self._rate = bytes_per_second
        self._free_at = time.perf_counter()

    def take(self, size_bytes: int) -> None:
        """Returns when the piece has got through."""
        self._free_at = max(self._free_at, time.perf_counter()) + size_bytes / self._rate
        time.sleep(max(0.0, self._free_at - time.perf_counter()))


@dataclass(frozen=True, slots=True)
class Piece:
    size_bytes: int
    store: Callable[[], object]


class Lane:
    """A thread that stores pieces in their order, each when the bucket lets it. A context manager: leaving it ends the thread."""

    def __init__(self) -> None:
        self._bucket = Bucket(float("inf"))
        self._pieces: queue.Queue[Piece | None] = queue.Queue(PIECES_MAX)
        self._thread = threading.Thread(target=self._run, name="mooncask-bench-lane", daemon=True)
        self._thread.start()

    def pace(self, bytes_per_second: float) -> None:
        """For what comes from now on; nothing may be waiting."""
        self._bucket = Bucket(bytes_per_second)

    def put(self, piece: Piece) -> None:
        self._pieces.put(piece)

    def wait(self) -> None:
        """Until everything is through."""
        self._pieces.join()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._bucket.take(piece.size_bytes)
            piece.store()
            self._pieces.task_done()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pieces.put(None)
        self._thread.join()


class PacedSession(StoreSession):
    """One prefill's use of the lane. `caller_seconds` is what its calls took from the computing thread."""

    def __init__(self, link: StoreLink, lane: Lane, storing: bool) -> None:
        super().__init__(link, wanted=True)
        self._lane, self._storing = lane, storing
        self.caller_seconds = 0.0
        self.bytes = 0

    def begin_chunk(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> StoredChunk | None:
        started = time.perf_counter()
        chunk = super().begin_chunk(keys, indices, buffer) if self._storing else None
        self.caller_seconds += time.perf_counter() - started
        return chunk

    def advance(self, chunk: StoredChunk, layer: int) -> None:
        self._hand_over(chunk.layer_bytes, lambda: StoreSession.advance(self, chunk, layer))

    def commit(self, chunk: StoredChunk) -> int:
        """How many were published is known later, and nobody here asks."""
        self._hand_over(0, lambda: StoreSession.commit(self, chunk))
        return 0

    def finish(self) -> None:
        """The computing thread waits until everything is stored, as a prefill does before it tells anybody that it is done."""
        started = time.perf_counter()
        self._lane.wait()
        self.caller_seconds += time.perf_counter() - started

    def _hand_over(self, size_bytes: int, store: Callable[[], object]) -> None:
        started = time.perf_counter()
        self._lane.put(Piece(size_bytes, store))
        self.bytes += size_bytes
        self.caller_seconds += time.perf_counter() - started


class PacedLink(StoreLink):
    """Makes a PacedSession for every request; `latest` is the last one. With `storing` off nothing is stored at all."""

    def __init__(self, address: StoreAddress, name: str, family: dict[str, str], layout: KvLayout, lane: Lane) -> None:
        super().__init__(address, name, family, layout)
        self.lane = lane
        self.storing = True
        self.latest: PacedSession | None = None

    def session(self, wanted: bool = True, priority: int = PRIORITY_NEUTRAL) -> PacedSession:
        self.latest = PacedSession(self, self.lane, self.storing)
        return self.latest
