"""Writes on their way to the disk: as many at a time as there are I/O threads, neighbours in one call.

Small blocks that follow each other in a segment go out in one pwritev: at 256 KiB handing each to a thread by itself
costs as much as half its writing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mooncask.tiers.nvme.file_layer import write_fully
from mooncask.tiers.nvme.record import Place
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.waiting import outlast
from mooncask.tiers.nvme.workers import Workers

COALESCE_BYTES = 1 << 20
"""At most this much in one call, unless a single record is longer; well under IOV_MAX pieces even of 8 KiB records."""

Pieces = Callable[[], list[memoryview]]
"""Makes a record's buffers, in the worker thread: packing the header and, where need be, copying the payload."""


@dataclass(slots=True, eq=False)
class _Write:
    place: Place
    length: int
    pieces: Pieces
    done: "asyncio.Future[None]"


class WriteQueue:
    """For the event loop's thread; the writing is done by the workers."""

    def __init__(self, files: SegmentFiles, workers: Workers) -> None:
        self._files = files
        self._workers = workers
        self._queue: deque[_Write] = deque()
        self._running = 0
        self._starting = False

    async def write(self, place: Place, length: int, pieces: Pieces) -> None:
        """Writes a record; not yet durable. Raises OSError.

        Cancelling withdraws a write that has not begun and waits for one that has.
        """
        write = _Write(place, length, pieces, asyncio.get_running_loop().create_future())
        self._queue.append(write)
        self._start_soon()
        await outlast(write.done, lambda: self._withdraw(write))

    def _withdraw(self, write: _Write) -> None:
        if write in self._queue:
            self._queue.remove(write)
            write.done.cancel()

    def _start_soon(self) -> None:
        """Once the loop has run all who are about to write: neighbours find each other in the queue."""
        if not self._starting:
            self._starting = True
            asyncio.get_running_loop().call_soon(self._start)

    def _start(self) -> None:
        self._starting = False
        while self._queue and self._running < self._workers.io_threads:
            batch = self._take()
            self._running += 1
            job = self._workers.io.submit(self._work, batch)
            asyncio.wrap_future(job).add_done_callback(partial(self._ended, batch))

    def _take(self) -> list[_Write]:
        batch = [self._queue.popleft()]
        total = batch[0].length
        while self._queue and _follows(batch[-1], self._queue[0]) and total + self._queue[0].length <= COALESCE_BYTES:
            batch.append(self._queue.popleft())
            total += batch[-1].length
        return batch

    def _work(self, batch: Sequence[_Write]) -> None:
        pieces = [piece for write in batch for piece in write.pieces()]
        first = batch[0].place
        with self._files.descriptor(first.segment) as fd:
            write_fully(self._files.files, fd, pieces, first.offset)

    def _ended(self, batch: Sequence[_Write], job: "asyncio.Future[None]") -> None:
        self._running -= 1
        error = job.exception()
        for write in batch:
            if error is None:
                write.done.set_result(None)
            else:
                write.done.set_exception(error)
        self._start()


def _follows(before: _Write, after: _Write) -> bool:
    return after.place.segment == before.place.segment and after.place.offset == before.place.offset + before.length
