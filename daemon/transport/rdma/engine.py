"""The thread that makes all calls to the device, and the queue pairs as the event loop sees them.

    loop ──(commands)──> thread: make, connect, post, poll, destroy ──(call_soon_threadsafe)──> loop

It sleeps in its queue while nothing is under way, and for at most PAUSE_SECONDS_MAX at a time while something is: completions
have no descriptor to wait for in pyverbs 44, and a wait in a verb would hold the interpreter's lock.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from mooncask.daemon.transport.rdma.exchange import End
from mooncask.daemon.transport.rdma.regions import WorkRequest
from mooncask.daemon.transport.rdma.verbs import PROBLEMS, Device, QueuePair, VerbsError

log = logging.getLogger(__name__)

PAUSE_SECONDS = 20e-6
PAUSE_SECONDS_MAX = 0.5e-3
SILENCE_SECONDS = 2.0
"""A device that has work and ends none of it for so long does nothing any more: it gives up by itself after half a second, and a
megabyte does not take so long."""

T = TypeVar("T")


class PairLost(Exception):
    """The queue pair is gone, and with it what was under way; nothing of that will be written any more.

    `blameless`: not the peer, the network or the request is at fault, but another reader who gave up.
    """

    def __init__(self, why: str, *, blameless: bool = False) -> None:
        super().__init__(why)
        self.why, self.blameless = why, blameless


class Engine:
    """One thread. Commands are done in the order in which they are given."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._loop = asyncio.get_running_loop()
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy: set[Pair] = set()
        self._thread = threading.Thread(target=self._run, name="mooncask-rdma", daemon=True)
        self._thread.start()

    # --- the loop's thread ---

    def soon(self, command: Callable[[], None]) -> None:
        self._commands.put(command)

    async def call(self, work: Callable[[], T]) -> T:
        """`work()` in the thread. Cancelled, it is done all the same, and nobody learns the result."""
        done: asyncio.Future[T] = self._loop.create_future()

        def command() -> None:
            try:
                result = work()
            except (VerbsError, PairLost) as error:
                self.tell(_settle, done, error)
            except Exception as error:
                log.exception("a fault of this daemon in its RDMA thread")
                self.tell(_settle, done, error)
            else:
                self.tell(_answer, done, result)

        self.soon(command)
        return await done

    async def close(self) -> None:
        """After every pair was closed. Returns when the thread has ended and the device is closed."""
        self._commands.put(None)
        await asyncio.to_thread(self._thread.join)

    # --- its own thread ---

    def note(self, pair: "Pair") -> None:
        """The pair has, or no longer has, something to poll for."""
        if pair.under_way:
            self._busy.add(pair)
        else:
            self._busy.discard(pair)

    def tell(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is there to be told
            self._loop.call_soon_threadsafe(call, *arguments)

    def _run(self) -> None:
        pause = PAUSE_SECONDS
        try:
            while True:
                with contextlib.suppress(queue.Empty):
                    # Never with a timeout: one of microseconds, over before it has begun, makes SimpleQueue wait for ever.
                    command = self._commands.get(block=not self._busy)
                    if command is None:
                        return
                    self._do(command)
                    pause = PAUSE_SECONDS
                if not self._busy:
                    continue
                if [pair for pair in list(self._busy) if pair.poll()]:
                    pause = PAUSE_SECONDS
                else:
                    time.sleep(pause)
                    pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            self.device.close()

    def _do(self, command: Callable[[], None]) -> None:
        """The thread outlives whatever goes wrong: without it nobody could be told that memory is free again."""
        try:
            command()
        except Exception:
            log.exception("a fault of this daemon in its RDMA thread")


class Pair:
    """A queue pair of this end. Its coroutines belong to the loop, the rest to the engine's thread."""

    def __init__(self, engine: Engine, *, readable: bool) -> None:
        self._engine = engine
        self._readable = readable
        self._pair: QueuePair | None = None
        self._lost: PairLost | None = None
        self._jobs: dict[Job, None] = {}
        self._posted: dict[int, Job] = {}
        self._next = 0
        self._heard_seconds = 0.0

    # --- the loop's thread ---

    async def open(self) -> End:
        """Raises VerbsError."""
        return await self._engine.call(self._open)

    async def connect(self, theirs: End) -> None:
        """Raises VerbsError and PairLost."""
        await self._engine.call(lambda: self._living().connect(theirs))

    async def read(self, requests: Sequence[WorkRequest], deadline: float) -> None:
        """All of them. However it ends, none of them writes any more then. Raises PairLost, and TimeoutError at the deadline."""
        job = Job(requests)
        self._engine.soon(lambda: self._start(job))
        try:
            async with asyncio.timeout_at(deadline):
                await job.done
        except BaseException:
            await self._still(job)
            raise

    async def close(self) -> None:
        """Destroys it: whatever either end does with it fails. Idempotent; a cancelled one is done all the same."""
        await self._engine.call(lambda: self._destroy(PairLost("it was closed here")))

    async def _still(self, job: "Job") -> None:
        """Returns when the job writes no more; a cancellation waits for that too."""
        withdrawn = asyncio.ensure_future(self._engine.call(lambda: self._withdraw(job)))
        cancelled: asyncio.CancelledError | None = None
        while not withdrawn.done():
            try:
                await asyncio.wait([withdrawn])
            except asyncio.CancelledError as error:
                cancelled = error
        withdrawn.result()
        if cancelled is not None:
            raise cancelled

    # --- the engine's thread ---

    @property
    def under_way(self) -> bool:
        return bool(self._posted)

    def _open(self) -> End:
        if self._lost is not None:
            raise self._lost
        self._pair = self._engine.device.queue_pair(readable=self._readable)
        return self._pair.end

    def _living(self) -> QueuePair:
        if self._pair is None:
            raise self._lost or PairLost("it was never made")
        return self._pair

    def _start(self, job: "Job") -> None:
        self._jobs[job] = None
        if self._pair is None:
            self._finish(job, self._lost or PairLost("it was never made"))
        else:
            self._pump()

    def _withdraw(self, job: "Job") -> None:
        """What the device has not got yet it never gets; for what it has got the queue pair goes."""
        if job not in self._jobs:
            return
        job.waiting.clear()
        if job.with_device:
            self._destroy(PairLost("a reader gave up, and its work requests had to end", blameless=True))
        else:
            self._finish(job, None)

    def _pump(self) -> None:
        """Gives the device as much as it takes, first come, first served."""
        pair = self._living()
        if not self._posted:
            self._heard_seconds = time.monotonic()
        try:
            for job in self._jobs:
                while job.waiting and len(self._posted) < pair.reads:
                    self._next += 1
                    pair.post_read(self._next, job.waiting[0])
                    job.waiting.popleft()
                    job.with_device += 1
                    self._posted[self._next] = job
        except VerbsError as error:
            self._destroy(PairLost(str(error)))
        self._engine.note(self)

    def poll(self) -> bool:
        """Whether anything has ended."""
        try:
            found = self._living().poll()
        except VerbsError as error:
            self._destroy(PairLost(str(error)))
            return True
        for completion in found:
            if completion.status:
                why = PROBLEMS.get(completion.status, f"work completion status {completion.status}")
                self._destroy(PairLost(why))
                return True
            self._completed(self._posted.pop(completion.number))
        if found:
            self._heard_seconds = time.monotonic()
            self._pump()
        elif time.monotonic() - self._heard_seconds > SILENCE_SECONDS:
            self._destroy(PairLost(f"the device has ended nothing for {SILENCE_SECONDS:g} s"))
            return True
        return bool(found)

    def _completed(self, job: "Job") -> None:
        job.with_device -= 1
        if not job.with_device and not job.waiting:
            self._finish(job, None)

    def _destroy(self, why: PairLost) -> None:
        if self._lost is None:
            self._lost = why
        if self._pair is not None:
            self._pair.close()  # before anybody is told that nothing writes any more
            self._pair = None
        self._posted.clear()
        self._engine.note(self)
        for job in list(self._jobs):
            self._finish(job, why)

    def _finish(self, job: "Job", error: PairLost | None) -> None:
        del self._jobs[job]
        job.waiting.clear()
        if error is None:
            self._engine.tell(_answer, job.done, None)
        else:
            self._engine.tell(_settle, job.done, PairLost(error.why, blameless=error.blameless))


class Job:
    """One read: work requests that the device has not got yet, and how many it has."""

    def __init__(self, requests: Sequence[WorkRequest]) -> None:
        self.waiting = deque(requests)
        self.with_device = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


def _answer(done: "asyncio.Future[T]", result: T) -> None:
    if not done.done():
        done.set_result(result)


def _settle(done: "asyncio.Future[T]", error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
