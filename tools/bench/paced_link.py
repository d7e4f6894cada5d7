"""A worker's way to the store through a tier that takes only so many bytes a second: a token bucket, on a thread of its own.

The worker reserves and computes as always; what it stores is handed to the lane, layer by layer, and the lane copies each
piece when the bucket has the bytes for it. `finish` waits for the last one. Only a bench needs such a thing.

The bucket's clock is the prefill itself (`Progress`): it shows the seconds that the same prefill took alone to get as far as
this one is. So a tier of 100 % of what prefill makes takes just that, however busy the machine was in either run; by the wall's
clock one run in two would be a little too slow for its tier, by an amount that grows with the prompt.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, KvLayout
from mooncask.engine_adapter.transformers.store_link import PRIORITY_NEUTRAL, StoreAddress, StoreLink, StoreSession
from mooncask.engine_adapter.transformers.stored_chunk import StoredChunk

LOOK_SECONDS = 0.005
"""So often the lane looks at the clock while it waits: a prefill that is quicker than it was alone moves it on in steps."""


class Progress:
    """How far a prefill is, in the seconds that the same prefill took alone. Its thread says `passed`; any thread asks.

    alone[k] is when the k-th mark was passed alone. Between two marks time goes on as on the wall, but not past the next one;
    after the last it goes on. Without any marks it is the wall's clock.
    """

    def __init__(self, alone: Sequence[float] = ()) -> None:
        self._alone = alone
        self._now = (0, time.perf_counter())  # replaced as a whole: the other thread reads it at any moment

    def passed(self) -> None:
        if self._now[0] < len(self._alone):
            self._now = (self._now[0] + 1, time.perf_counter())

    def now(self) -> float:
        marks, since = self._now
        start = self._alone[marks - 1] if marks else 0.0
        passed = time.perf_counter() - since
        return min(start + passed, self._alone[marks]) if marks < len(self._alone) else start + passed


class Bucket:
    """A token bucket that holds nothing in reserve: pieces follow each other at the rate. Used by one thread.

    A piece goes through from when it came, or the one before it was through. What the thread does in between (copying) takes
    nothing of the rate, as it would take nothing of a link's.
    """

    def __init__(self, bytes_per_second: float, clock: Progress) -> None:
        self._rate, self._clock = bytes_per_second, clock
        self.through_at = 0.0
        """By the clock, when the last piece that was taken is through."""

    def take(self, size_bytes: int, came_at: float) -> None:
        """Returns when the piece has got through."""
        self.through_at = max(self.through_at, came_at) + size_bytes / self._rate
        while (left := self.through_at - self._clock.now()) > 0:
            time.sleep(min(left, LOOK_SECONDS))


@dataclass(frozen=True, slots=True)
class Piece:
    size_bytes: int
    came_at: float
    store: Callable[[], object]


class Lane:
    """A thread that stores pieces in their order, each when the bucket lets it. A context manager: leaving it ends the thread."""

    def __init__(self) -> None:
        self.pace(float("inf"), Progress())
        # Holds no more than a prompt's layers of chunks; of Python's queues the one whose put waits for nobody.
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mooncask-bench-lane", daemon=True)
        self._thread.start()

    def pace(self, bytes_per_second: float, clock: Progress) -> None:
        """For what comes from now on; nothing may be waiting."""
        self._clock, self._bucket = clock, Bucket(bytes_per_second, clock)

    @property
    def clock(self) -> Progress:
        return self._clock

    @property
    def through_at(self) -> float:
        """By the clock, when the tier had let everything through; while nothing is waiting."""
        return self._bucket.through_at

    def put(self, size_bytes: int, store: Callable[[], object]) -> None:
        self._pieces.put(Piece(size_bytes, self._clock.now(), store))

    def wait(self) -> None:
        """Until everything is through."""
        done = threading.Event()
        self.put(0, done.set)
        done.wait()

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            self._bucket.take(piece.size_bytes, piece.came_at)
            piece.store()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pieces.put(None)
        self._thread.join()


class PacedSession(StoreSession):
    """One prefill's use of the lane.

    What it took from the computing thread: `calling_seconds` in its calls (reserving, handing over), `tier_seconds` at the end
    until the tier had let everything through, `behind_seconds` then until it was copied and published.
    """

    def __init__(self, link: StoreLink, lane: Lane, storing: bool) -> None:
        super().__init__(link, wanted=True)
        self._lane, self._storing = lane, storing
        self.calling_seconds = self.tier_seconds = self.behind_seconds = 0.0
        self.bytes = 0

    def begin_chunk(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> StoredChunk | None:
        started = time.perf_counter()
        chunk = super().begin_chunk(keys, indices, buffer) if self._storing else None
        self.calling_seconds += time.perf_counter() - started
        return chunk

    def prepare_chunk(self, keys: list[bytes], indices: range, buffer: KvBuffer) -> None:
        started = time.perf_counter()
        if self._storing:
            super().prepare_chunk(keys, indices, buffer)
        self.calling_seconds += time.perf_counter() - started

    def advance(self, chunk: StoredChunk, layer: int) -> None:
        self._hand_over(chunk.layer_bytes, lambda: StoreSession.advance(self, chunk, layer))

    def commit(self, chunk: StoredChunk) -> int:
        """How many were published is known later, and nobody here asks."""
        self._hand_over(0, lambda: StoreSession.commit(self, chunk))
        return 0

    def finish(self) -> None:
        """The computing thread waits until everything is stored, as a prefill does before it tells anybody that it is done."""
        started, clock = time.perf_counter(), self._lane.clock.now()
        self._lane.wait()
        waited = time.perf_counter() - started
        self.tier_seconds = min(waited, max(0.0, self._lane.through_at - clock))
        self.behind_seconds = waited - self.tier_seconds

    def _hand_over(self, size_bytes: int, store: Callable[[], object]) -> None:
        started = time.perf_counter()
        self._lane.put(size_bytes, store)
        self.bytes += size_bytes
        self.calling_seconds += time.perf_counter() - started


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
