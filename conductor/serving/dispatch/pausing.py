"""Decode on a node stands still for a moment where a prefill beside it would be late otherwise: `scheduling/pause.py` on live facts.

Only where a prefill and a decode worker share a node, and, since nobody says what devices they have, only where the
configuration says so. How much slower a prefill is beside a decoding batch is learned. Not here: the decision itself; the
standing still, which a worker bounds by itself.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from mooncask.client.worker_api import Role, WorkerKind
from mooncask.conductor.models.learned import RecursiveLeastSquares
from mooncask.conductor.scheduling.pause import Pause, PauseSettings, Running, Waiting, make_pause
from mooncask.conductor.serving.dispatch.books import Books, PrefillEntry
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.dispatch.pools import Pools, Worker

log = logging.getLogger(__name__)

SLOWDOWN_MAX = 8.0
RATIO_MIN, RATIO_MAX = 0.1, 20.0
"""Against what a warm-up promised, a prefill is never taken to be faster or slower."""
UNSEEN_SECONDS_MAX = 1.0
"""Between two looks at a node; of a longer gap nobody knows what was in it."""
LEVEL_SECONDS_MIN = 0.01
"""A shorter pause saves nothing that could be measured."""

Tell = Callable[[Worker, float], Awaitable[float]]
"""Has a worker stand still for so many seconds, 0: no longer; what of it it does. Raises nothing."""


class Slowdown:
    """What a prefill takes against the worker's pace in its warm-up, by the share of its time in which decode ran beside it.

    Not against what is predicted: that learns of both together, and where decode always runs it would teach that nothing is
    slowed down.
    """

    def __init__(self, start: float) -> None:
        self._squares = RecursiveLeastSquares([1.0, start - 1.0], confidence=2.0)

    def observe(self, seconds: float, warm_seconds: float, busy_share: float) -> None:
        if warm_seconds > 0 and seconds >= 0:
            self._squares.observe((1.0, busy_share), min(RATIO_MAX, seconds / warm_seconds))

    @property
    def alone(self) -> float:
        """What it takes without a neighbour, against the warm-up."""
        return min(RATIO_MAX, max(RATIO_MIN, self._squares.weights[0]))

    @property
    def factor(self) -> float:
        """How many times longer it takes beside a decoding batch; at least 1."""
        return min(SLOWDOWN_MAX, max(1.0, sum(self._squares.weights) / self.alone))


@dataclass(slots=True)
class _Beside:
    """One prefill, and how long decode has run beside it."""

    worker: Worker
    entry: PrefillEntry
    late_at: float
    decision: Decision
    busy_seconds: float = 0.0

    @property
    def node(self) -> str:
        return self.worker.registration.node.name

    def warm_seconds(self, tokens: int) -> float:
        """Of so many tokens at the pace of the warm-up; 0.0 for a worker that had none."""
        pace = self.worker.registration.prefill_tokens_per_second
        return tokens / pace if pace else 0.0


@dataclass(slots=True)
class _Still:
    """A node on which decode stands still."""

    workers: Sequence[Worker]
    decision: Decision
    since: float
    until: float


@dataclass(slots=True)
class Pausing:
    """Of one Conductor. With the policy `never` nothing is done or learned. Belongs to the event loop's thread."""

    pools: Pools
    books: Books
    settings: PauseSettings
    tell: Tell
    clock: Callable[[], float] = time.monotonic
    pauses: int = 0
    paused_seconds: float = 0.0
    slowdown: Slowdown = field(init=False)
    _policy: Pause = field(init=False)
    _prefills: dict[str, _Beside] = field(default_factory=dict)
    """By request, in the order in which they were placed."""
    _still: dict[str, _Still] = field(default_factory=dict)
    _seen: dict[str, float] = field(default_factory=dict)
    """By node: when it was looked at last, and that only while something is prefilled there."""
    _telling: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slowdown = Slowdown(self.settings.slowdown)
        self._policy = make_pause(self.settings)

    @property
    def on(self) -> bool:
        return self.settings.policy != "never"

    # --- what happens ---

    def placed(self, request: str, worker: Worker, entry: PrefillEntry, late_at: float, decision: Decision) -> None:
        """A prefill that is late at `late_at`, on the monotonic clock."""
        if self.on and worker.registration.node.name:
            self._prefills[request] = _Beside(worker, entry, late_at, decision)

    def done(self, request: str, seconds: float, tokens: int) -> None:
        """Its prefill was whole after so long, of which so many tokens were computed."""
        beside = self._prefills.get(request)
        if beside is not None:
            self._tick(beside.node, self.clock())
            self.slowdown.observe(
                seconds, beside.warm_seconds(tokens), min(1.0, beside.busy_seconds / max(seconds, 1e-9))
            )
        self.ended(request)

    def ended(self, request: str) -> None:
        """However it ended: whoever stands still for it goes on."""
        beside = self._prefills.pop(request, None)
        if beside is None:
            return
        still = self._still.get(beside.node)
        if still is not None and still.decision is beside.decision:
            self._go_on(beside.node, self.clock())
        self.look(beside.node)
        if all(other.node != beside.node for other in self._prefills.values()):
            self._seen.pop(beside.node, None)

    def look(self, node: str) -> None:
        """Decides on this node anew; to be called when something has changed there, and now and then."""
        if not self.on or not any(beside.node == node for beside in self._prefills.values()):
            return
        now = self.clock()
        self._tick(node, now)
        still = self._still.get(node)
        if still is not None and now < still.until:
            return
        if still is not None:
            self._count(node, now)
        decodes = [worker for worker in self.pools.all() if _decodes_beside(worker, node, now)]
        running = self._running(decodes, now)
        if not running or any(self.books.others_on(worker) for worker in decodes):
            return  # of other Conductors' answers nobody here knows what they can spare
        found = [(self._policy.seconds(w, running, self.slowdown.factor), d) for w, d in self._waiting(node, now)]
        wanted = [(seconds, decision) for seconds, decision in found if seconds >= LEVEL_SECONDS_MIN]
        if wanted:
            self._stand_still(node, decodes, *min(wanted, key=lambda one: one[0]), now)

    async def close(self) -> None:
        for task in self._telling:
            task.cancel()
        await asyncio.gather(*self._telling, return_exceptions=True)

    # --- facts ---

    def _running(self, decodes: Sequence[Worker], now: float) -> list[Running]:
        names = {worker.name for worker in decodes}
        return [
            Running(entry.output_tokens, now - entry.started, entry.tbt_seconds)
            for entry in self.books.decodes.values()
            if entry.worker in names and entry.started is not None
        ]

    def _waiting(self, node: str, now: float) -> list[tuple[Waiting, Decision]]:
        """Of each prefill there: its work and that of those before it on the same worker."""
        work: dict[str, float] = {}
        found = []
        for beside in self._prefills.values():
            if beside.node == node:
                name = beside.worker.name
                work[name] = work.get(name, 0.0) + self._left(beside, now)
                found.append((Waiting(work[name], beside.late_at - now), beside.decision))
        return found

    def _left(self, beside: _Beside, now: float) -> float:
        """Seconds of work that it would take alone: not more than is predicted, for that is of both."""
        whole = beside.entry.seconds
        if warm := beside.warm_seconds(beside.entry.tokens):
            whole = min(whole, warm * self.slowdown.alone)
        if beside.entry.started is None:
            return whole
        passed = now - beside.entry.started
        busy = min(passed, beside.busy_seconds)
        return max(0.0, whole - (passed - busy) - busy / self.slowdown.factor)

    def _tick(self, node: str, now: float) -> None:
        """Time in which decode ran there counts for the prefills that ran as well, as it is seen now."""
        before = self._seen.get(node, now)
        self._seen[node] = now
        still = self._still.get(node)
        moved = now - max(before, min(now, still.until) if still is not None else before)
        decoding = any(
            entry.started is not None
            for worker in self.pools.all()
            if _decodes_beside(worker, node, now)
            for entry in self.books.decodes.values()
            if entry.worker == worker.name
        )
        if decoding:
            for beside in self._prefills.values():
                if beside.node == node and beside.entry.started is not None:
                    running = now - max(beside.entry.started, before)
                    beside.busy_seconds += max(0.0, min(moved, running, UNSEEN_SECONDS_MAX))

    # --- standing still ---

    def _stand_still(
        self, node: str, decodes: Sequence[Worker], seconds: float, decision: Decision, now: float
    ) -> None:
        still = self._still[node] = _Still(decodes, decision, now, now + seconds)
        self._do(self._begin(node, still, seconds))

    async def _begin(self, node: str, still: _Still, seconds: float) -> None:
        granted = await asyncio.gather(*(self.tell(worker, seconds) for worker in still.workers))
        still.until = min(still.until, still.since + max(granted, default=0.0))
        if self._still.get(node) is not still:  # its prefill has ended meanwhile
            await self._end(still)

    def _go_on(self, node: str, now: float) -> None:
        still = self._count(node, now)
        if now < still.until:
            self._do(self._end(still))

    async def _end(self, still: _Still) -> None:
        await asyncio.gather(*(self.tell(worker, 0.0) for worker in still.workers))

    def _count(self, node: str, now: float) -> _Still:
        """It is over, or is ended now."""
        still = self._still.pop(node)
        seconds = max(0.0, min(now, still.until) - still.since)
        if seconds:
            self.pauses, self.paused_seconds = self.pauses + 1, self.paused_seconds + seconds
            still.decision.paused_seconds += seconds
        return still

    def _do(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _decodes_beside(worker: Worker, node: str, now: float) -> bool:
    """Servers of other kinds can't be told to stand still."""
    told = worker.registration
    return (
        worker.role is Role.DECODE and told.node.name == node and told.kind is WorkerKind.MOONCASK and worker.alive(now)
    )
