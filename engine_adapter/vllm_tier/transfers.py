"""Transfers between rows of the engine's memory and the store, in a few threads: submitted, never waited for, then collected.

The queue is bounded: a store that comes when it is full fails at once, and a load that waited longer than its deadline is a
miss without being tried. No vLLM here.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from mooncask.engine_adapter.block_store import BlockStore
from mooncask.engine_adapter.spans import Span


@dataclass(frozen=True, slots=True)
class Rows:
    """Memory as rows of equal length: row i is at `address + i * step`, `size` bytes of it are used."""

    address: int
    step: int
    size: int

    def span(self, row: int) -> Span:
        return Span(self.address + row * self.step, self.size)


@dataclass(frozen=True, slots=True)
class Done:
    """A transfer that ended. `moved[i]` says whether the i-th chunk was."""

    job: int
    is_load: bool
    moved: list[bool]
    seconds: float


class Transfers:
    """Submitted and collected by one thread. Every job that was submitted is collected once, whatever happens."""

    def __init__(self, rows: Rows, threads: int, jobs_max: int, deadline_seconds: float) -> None:
        self._rows = rows
        self._jobs_max, self._deadline_seconds = jobs_max, deadline_seconds
        self._pool = ThreadPoolExecutor(threads, "mooncask-tier")
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._open: set[Future[None]] = set()
        self._closing = threading.Event()

    @property
    def open(self) -> int:
        """Jobs that are under way or wait."""
        self._open = {future for future in self._open if not future.done()}
        return len(self._open)

    def load(self, store: BlockStore, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Blocks into rows."""
        end = time.monotonic() + self._deadline_seconds

        def move() -> list[bool]:
            left = end - time.monotonic()
            if left <= 0 or self._closing.is_set():
                return [False] * len(keys)
            return store.read(keys, [[self._rows.span(row)] for row in rows], left)

        self._submit(job, True, len(keys), move)

    def save(self, store: BlockStore, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Rows into blocks; fails at once when too much waits."""
        if self.open >= self._jobs_max:
            self._done.put(Done(job, False, [False] * len(keys), 0.0))
            return

        def move() -> list[bool]:
            if self._closing.is_set():
                return [False] * len(keys)
            return store.write(keys, [[self._rows.span(row)] for row in rows], seconds=self._deadline_seconds)

        self._submit(job, False, len(keys), move)

    def _submit(self, job: int, is_load: bool, count: int, move: Callable[[], list[bool]]) -> None:
        def run() -> None:
            began, moved = time.monotonic(), [False] * count
            try:
                moved = move()
            finally:
                self._done.put(Done(job, is_load, moved, time.monotonic() - began))

        self._open.add(self._pool.submit(run))

    def collect(self) -> list[Done]:
        """What ended since the last time."""
        found: list[Done] = []
        while True:
            try:
                found.append(self._done.get_nowait())
            except Empty:
                return found

    def drain(self) -> None:
        """Waits until nothing is under way. Each job ends by its deadline, so this does."""
        wait(self._open)

    def close(self) -> None:
        """As `drain`, but what has not begun fails."""
        self._closing.set()
        self._pool.shutdown(wait=True)
