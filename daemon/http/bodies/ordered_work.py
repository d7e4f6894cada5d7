"""Work on items in the order in which they came, off the event loop: one batch at a time, in a thread of the loop's pool.

For what needs one result over a whole stream, such as a hash. It owns no thread: one is taken while there is something to do.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

BATCH_BYTES = 256 << 10
"""Less than this waits for more: handing a batch to a thread and hearing of its end costs about 50 us."""
QUEUED_BYTES_MAX = 4 << 20
INLINE_BYTES_MAX = 16 << 10
"""Up to this the rest is done on the loop: the slowest hash takes 25 us for it, less than the way to a thread."""


class OrderedWork(Generic[Item]):
    """Calls `work` with lists of items. Belongs to one task of the event loop; `work` runs in a thread, never twice at once."""

    def __init__(self, work: Callable[[list[Item]], None]) -> None:
        self._work = work
        self._items: list[Item] = []
        self._waiting_bytes = 0
        self._running_bytes = 0
        self._running: asyncio.Future[None] | None = None
        self._error: BaseException | None = None

    @property
    def queued_bytes(self) -> int:
        return self._waiting_bytes + self._running_bytes

    def add(self, item: Item, size_bytes: int) -> None:
        self._items.append(item)
        self._waiting_bytes += size_bytes
        if self._waiting_bytes >= BATCH_BYTES and self._running is None:
            self._start()

    async def room(self) -> None:
        """Waits until no more than QUEUED_BYTES_MAX are queued."""
        while self.queued_bytes > QUEUED_BYTES_MAX:
            await self._step()

    async def finish(self) -> None:
        """All that was added is done. Raises what `work` raised."""
        if self._running is None and self._waiting_bytes <= INLINE_BYTES_MAX:
            items, self._items, self._waiting_bytes = self._items, [], 0
            if items and self._error is None:
                self._work(items)
        while self._items or self._running is not None:
            await self._step()
        if self._error is not None:
            raise self._error

    async def cancel(self) -> None:
        """What has not begun is forgotten; waits for the batch that a thread is at, so that its memory may be used again.

        A cancelled wait changes nothing for the thread: it ends its batch and touches no other.
        """
        self._items, self._waiting_bytes = [], 0
        while self._running is not None:
            await self._step()

    async def _step(self) -> None:
        if self._running is None:
            self._start()
        assert self._running is not None
        # Not awaited itself: a cancelled waiter must not make a batch look ended that a thread still works on.
        await asyncio.wait({self._running})

    def _start(self) -> None:
        items, self._items = self._items, []
        self._running_bytes, self._waiting_bytes = self._waiting_bytes, 0
        self._running = asyncio.get_running_loop().run_in_executor(None, self._work, items)
        self._running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Future[None]) -> None:
        self._running, self._running_bytes = None, 0
        self._error = asyncio.CancelledError() if running.cancelled() else running.exception()
        if self._error is not None:
            self._items, self._waiting_bytes = [], 0
        elif self._waiting_bytes >= BATCH_BYTES:
            self._start()
