"""A prefill node or a pipelined group of them: strictly first come, first served.

The order is what makes a prefix that an earlier request of the queue computes safe to count on. A request whose prefix
is still being fetched holds up those behind it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from mooncask.conductor.models.cost import PrefillModel
from mooncask.conductor.models.pipeline import LayerWise, Pipeline, through_pipeline
from mooncask.conductor.simulator.events import EventQueue


@dataclass(slots=True, eq=False)
class PrefillJob:
    """One request on its way through a node. `load_seconds` is what loading its prefix to the GPUs takes."""

    request: int
    tokens: int
    prefix_tokens: int
    load_seconds: float
    fetched: bool = True
    """Whether what was to be fetched has arrived."""
    started_at: float = 0.0
    compute_seconds: float = 0.0
    done_at: float = 0.0


Told = Callable[[PrefillJob], None]


class PrefillNode:
    """Calls `turn` before a job begins, which may yet change its prefix; `started` when it begins (its `done_at` known then) and
    `finished` when its first token is there."""

    def __init__(
        self,
        events: EventQueue,
        model: PrefillModel,
        pipeline: Pipeline,
        overlap: LayerWise,
        started: Told,
        finished: Told,
        turn: Told = lambda job: None,
    ) -> None:
        self._events, self._model, self._overlap, self._turn = events, model, overlap, turn
        self._pipeline = pipeline
        self._stage_free = [0.0] * pipeline.stages
        self._started, self._finished = started, finished
        self.queue: deque[PrefillJob] = deque()

    def place(self, job: PrefillJob) -> None:
        self.queue.append(job)
        self.try_start()

    def try_start(self) -> None:
        """Begin the first job if its prefix is here and the first stage is free. Call again when a prefix arrived."""
        if self.queue and self.queue[0].fetched and self._stage_free[0] <= self._events.now:
            self._run(self.queue.popleft())

    def _run(self, job: PrefillJob) -> None:
        now = self._events.now
        self._turn(job)
        chunks = self._pipeline.chunks(self._model, job.tokens, job.prefix_tokens)
        job.compute_seconds = sum(chunks)
        chunks[0] += self._overlap.execution_seconds(job.load_seconds, job.compute_seconds) - job.compute_seconds
        self._stage_free = through_pipeline(chunks, self._stage_free, now, self._pipeline.hop_seconds)
        job.started_at, job.done_at = now, self._stage_free[-1]
        self._started(job)
        self._events.at(self._stage_free[0], self.try_start)
        self._events.at(job.done_at, lambda: self._finished(job))
