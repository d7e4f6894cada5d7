"""A link's data connections on the reading side: which job runs on which, and when a read is over. In the loop's thread."""

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from mooncask.daemon.transport.tcp.lane import Destination, Job, Lane
from mooncask.errors import Busy, DeadlineExceeded, PeerUnavailable

JOBS_WAITING_MAX = 4096


class Lanes:
    """Up to `connections` lanes, made when they are needed. A read uses all of them if it can, and waits its turn behind others."""

    def __init__(self, destination: Destination, connections: int) -> None:
        self.connections = connections
        self._to = destination
        self._all: set[Lane] = set()
        self._idle: list[Lane] = []
        self._waiting: deque[Job] = deque()
        self._ended = asyncio.Event()
        self._ended.set()
        self._closed = False
        self.bytes_received = 0

    async def carry(self, jobs: Sequence[Job], deadline: float) -> None:
        """All jobs' bytes. However it ends, none of them writes any more then. Raises DeadlineExceeded and what a job raised."""
        if len(self._waiting) + len(jobs) > JOBS_WAITING_MAX:
            raise Busy(f"{len(self._waiting)} reads from {self._to.peer.name} wait already")
        left, under_way = deque(jobs), set[Job]()
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                while left or under_way:
                    while left and len(under_way) < self.connections:
                        under_way.add(job := left.popleft())
                        self._submit(job)
                    await asyncio.wait([job.done for job in under_way], return_when=asyncio.FIRST_COMPLETED)
                    for job in [job for job in under_way if job.done.done()]:
                        under_way.discard(job)
                        job.done.result()
        except TimeoutError:
            raise DeadlineExceeded(f"read from peer {self._to.peer.name}", max(0.0, deadline - began)) from None
        finally:
            await self._still(under_way)

    async def _still(self, jobs: set[Job]) -> None:
        """Withdraws what is under way and returns when none of it can write; a cancellation waits for that too."""
        writing = [job.done for job in jobs if not job.done.done() and not self._withdraw(job)]
        cancelled: asyncio.CancelledError | None = None
        while writing:
            try:
                await asyncio.wait(writing)
            except asyncio.CancelledError as error:
                cancelled = error
            writing = [done for done in writing if not done.done()]
        for job in jobs:
            if job.done.done() and not job.done.cancelled():
                job.done.exception()  # seen: the first error is the one that is told
        if cancelled is not None:
            raise cancelled

    def _withdraw(self, job: Job) -> bool:
        if job.lane is not None:
            return job.lane.withdraw(job)
        self._waiting.remove(job)
        return True

    def retire_idle(self, idle_seconds: float) -> None:
        """Ends connections that nobody has used for so long."""
        now = time.monotonic()
        for lane in [lane for lane in self._idle if now - lane.idle_since > idle_seconds]:
            self._idle.remove(lane)
            lane.stop()

    async def close(self) -> None:
        """Jobs under way fail; returns when every thread has ended."""
        self._closed = True
        self._idle.clear()
        while self._waiting:
            self._fail(self._waiting.popleft())
        for lane in self._all:
            lane.stop()
        await self._ended.wait()

    # --- who runs what ---

    def _submit(self, job: Job) -> None:
        if self._closed:
            self._fail(job)
        elif self._idle:
            self._idle.pop().start(job)
        elif len(self._all) < self.connections:
            self._new_lane().start(job)
        else:
            self._waiting.append(job)

    def _new_lane(self) -> Lane:
        lane = Lane(self._to, self._job_done, self._lane_ended)
        self._all.add(lane)
        self._ended.clear()
        return lane

    def _job_done(self, lane: Lane, job: Job, error: Exception | None, usable: bool) -> None:
        job.targets = []  # nothing of ours keeps the memory
        if error is None and not job.withdrawn:
            self.bytes_received += job.size_bytes
        if not job.done.done():
            if error is None or job.withdrawn:
                job.done.set_result(None)
            elif self._closed:
                self._fail(job)  # a connection that was being made is refused then, since its link is over
            else:
                job.done.set_exception(error)
        if not usable or self._closed:
            return
        if self._waiting:
            lane.start(self._waiting.popleft())
        else:
            lane.idle_since = time.monotonic()
            self._idle.append(lane)

    def _lane_ended(self, lane: Lane) -> None:
        lane.join()
        self._all.discard(lane)
        if lane in self._idle:
            self._idle.remove(lane)
        if self._waiting and not self._closed:
            self._new_lane().start(self._waiting.popleft())
        if not self._all:
            self._ended.set()

    def _fail(self, job: Job) -> None:
        if not job.done.done():
            job.done.set_exception(PeerUnavailable(self._to.peer.name, "the link has ended"))
