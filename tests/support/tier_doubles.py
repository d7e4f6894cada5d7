"""Tiers that wrap a tier, and an executor under the test's control. Each is a small real thing: bytes go through it."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from enum import Enum
from typing import Any

from mooncask.errors import CorruptBlock, TierDegraded
from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.tier import Tier


class WrappedTier:
    """Passes every call on; the others here change one thing each."""

    def __init__(self, inner: Tier) -> None:
        self.inner = inner
        self.name: TierName = inner.name
        self.capacity_bytes = inner.capacity_bytes

    @property
    def used_bytes(self) -> int:
        return self.inner.used_bytes

    def reserve(self, size: int) -> Extent | None:
        return self.inner.reserve(size)

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        await self.inner.commit(extent, record, payload)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        await self.inner.read(extent, record, into)

    def free(self, extent: Extent) -> None:
        self.inner.free(extent)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        return self.inner.keys()

    async def close(self) -> None:
        await self.inner.close()


class CountingTier(WrappedTier):
    """Counts calls by method and payload bytes by direction: `calls["read"]`, `moved["commit"]`."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.calls: Counter[str] = Counter()
        self.moved: Counter[str] = Counter()

    def reserve(self, size: int) -> Extent | None:
        self.calls["reserve"] += 1
        return super().reserve(size)

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        self.calls["commit"] += 1
        self.moved["commit"] += record.size
        await super().commit(extent, record, payload)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        self.calls["read"] += 1
        self.moved["read"] += record.size
        await super().read(extent, record, into)

    def free(self, extent: Extent) -> None:
        self.calls["free"] += 1
        super().free(extent)


class FaultKind(Enum):
    """What goes wrong in one call."""

    FULL = "reserve finds no room"
    WRITE_REFUSED = "commit raises TierDegraded and writes nothing"
    READ_FLIPPED = "read delivers a flipped bit and raises CorruptBlock"
    STALLED = "commit or read waits until `resume` is set"
    CANCELLED = "the caller is cancelled in commit or read"


class FaultyTier(WrappedTier):
    """Fails in the calls that the test planned, and works otherwise.

    `stalled` is set when a call begins to stall and `resume` lets it go on: no test has to sleep to meet it there.
    """

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self._plan: dict[tuple[str, int], FaultKind] = {}
        self._calls: Counter[str] = Counter()
        self.resume = asyncio.Event()
        self.stalled = asyncio.Event()

    def fail(self, method: str, kind: FaultKind, call: int = 1) -> None:
        """Let the `call`-th of the coming calls of `method` (reserve, commit, read) fail; 1 is the next one."""
        self._plan[method, self._calls[method] + call] = kind

    def reserve(self, size: int) -> Extent | None:
        return None if self._strike("reserve") is FaultKind.FULL else super().reserve(size)

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        kind = await self._strike_or_wait("commit")
        if kind is FaultKind.WRITE_REFUSED:
            raise TierDegraded(self.name.name.lower(), "input/output error, as planned by the test")
        await super().commit(extent, record, payload)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        kind = await self._strike_or_wait("read")
        await super().read(extent, record, into)
        if kind is FaultKind.READ_FLIPPED:
            into[record.size // 2] ^= 1
            raise CorruptBlock(record.name, self.name.name.lower(), "flipped bit, as planned by the test")

    def _strike(self, method: str) -> FaultKind | None:
        self._calls[method] += 1
        return self._plan.pop((method, self._calls[method]), None)

    async def _strike_or_wait(self, method: str) -> FaultKind | None:
        kind = self._strike(method)
        if kind is FaultKind.STALLED:
            self.stalled.set()
            await self.resume.wait()
        if kind is FaultKind.CANCELLED:
            raise asyncio.CancelledError
        return kind


class HeldExecutor(Executor):
    """Runs nothing until told to, and then in the test's own thread: `run_next` for the oldest work, `run_all` for all."""

    def __init__(self) -> None:
        self._held: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def __len__(self) -> int:
        return len(self._held)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._held.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run_next(self) -> bool:
        """Run the oldest work; False when it had been withdrawn."""
        future, work = self._held.popleft()
        if not future.set_running_or_notify_cancel():
            return False
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - the future carries it, as any executor's does
            future.set_exception(error)
        return True

    def run_all(self) -> None:
        while self._held:
            self.run_next()


class PacedTier(WrappedTier):
    """Reads no faster than `bytes_per_second`, by a token bucket that holds no more than one block."""

    def __init__(self, inner: Tier, bytes_per_second: float) -> None:
        super().__init__(inner)
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + record.size / self.bytes_per_second
        await asyncio.sleep(self._free_at - now)
        await super().read(extent, record, into)
