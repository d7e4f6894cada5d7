"""One prefill through the stages: chunk after chunk, stage s at chunk i while stage s + 1 is at chunk i - 1.

    begin (every stage loads its layers of the cached prefix) -> for each chunk: reserve, send to all stages,
    advance as each stage is done with it, commit when all are

At most one chunk more than there are stages is under way, and so much is reserved. Whatever goes wrong in a stage ends the job,
and all stages with it: they are gone before the reservations are given up, and their leases with them.
"""

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.engine_adapter.transformers.chunks import Chunk, chunks, completed_blocks
from mooncask.engine_adapter.transformers.engine import Options, Prefix, load_prefix
from mooncask.engine_adapter.transformers.loading import Hit, Speeds, Work
from mooncask.engine_adapter.transformers.pipeline.messages import Begin, Compute, Computed, Loaded, ToHead
from mooncask.engine_adapter.transformers.pipeline.shared_chunk import SharedChunk, reserve_chunk
from mooncask.engine_adapter.transformers.pipeline.stages import Stages
from mooncask.engine_adapter.transformers.prefill import nothing_to_do
from mooncask.engine_adapter.transformers.store_link import LoadOutcome, StoreSession
from mooncask.errors import MooncaskError, WorkerUnavailable


@dataclass(slots=True)
class _Flight:
    """A chunk on its way; `done`: the stages that have said so. A stage's word may come behind that of the next stage."""

    chunk: Chunk
    shared: SharedChunk | None
    done: set[int] = field(default_factory=set)
    faults: Counter[str] = field(default_factory=Counter)

    @property
    def stages_done(self) -> int:
        """How many from the first on."""
        return next(stage for stage in itertools.count() if stage not in self.done)


@dataclass(slots=True)
class StageTimes:
    """Of one job, by stage: CPU seconds of each chunk, and the most memory that it had."""

    cpu_seconds: list[list[float]]
    own_bytes: list[int]


class PipelineJob:
    """As `PrefillJob`, through stages. Used once."""

    def __init__(
        self,
        stages: Stages,
        options: Options,
        speeds: Speeds,
        session: StoreSession,
        tokens: list[int],
        keys: list[bytes],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stages, self._options, self._speeds = stages, options, speeds
        self._session, self._keys, self._wanted = session, keys, wanted
        self._tokens = tokens[: len(keys) * session.layout.block_tokens]
        self._number = time.monotonic_ns()
        self._flights: deque[_Flight] = deque()
        self.computed = self.stored = 0
        count = stages.plan.stages
        self.times = StageTimes([[] for _ in range(count)], [0] * count)

    def run(self, hit: Hit) -> Prefix:
        """What was loaded of the hit, when the rest is computed and stored, or nobody wants it any more. Raises WorkerUnavailable."""
        if len(hit) >= len(self._keys):
            return nothing_to_do(hit)
        self._stages.ready()
        with _Guard(self):
            layout = self._session.layout
            work = Work(len(self._tokens), layout.block_tokens, layout.block_bytes)
            prefix = load_prefix(self._session, self._keys, hit, work, self._speeds, self._options, self._load)
            if not prefix.decision.blocks:
                self._load([], 0.0)
            self._compute(self._tokens, prefix.outcome.blocks * layout.block_tokens)
        return prefix

    def run_without_store(self, tokens: list[int]) -> None:
        """Computes all of these tokens and stores nothing: to learn the speed. Raises WorkerUnavailable."""
        self._stages.ready()
        self._tokens = tokens
        with _Guard(self):
            self._load([], 0.0)
            self._compute(tokens, 0)

    def give_up(self) -> None:
        """After a failure: ends the stages, then the reservations, and begins to start new stages."""
        try:
            self._stages.restart()
        finally:
            while self._flights:
                if (shared := self._flights.popleft().shared) is not None:
                    shared.abort()

    # --- loading ---

    def _load(self, keys: list[bytes], seconds: float) -> LoadOutcome:
        """Every stage its layers of these blocks, at the same time; as many as the one has that got the fewest."""
        self._stages.send_all(Begin(self._number, len(self._tokens), keys, seconds))
        found: dict[int, Loaded] = {}
        while len(found) < self._stages.plan.stages:
            stage, message = self._stages.receive(seconds)
            if not isinstance(message, Loaded) or message.job != self._number:
                raise _unexpected(stage, message)
            found[stage] = message
            self._session.faults.update(message.faults)
        least = min(found.values(), key=lambda loaded: loaded.blocks)
        slowest = max(loaded.seconds for loaded in found.values())
        return LoadOutcome(least.blocks, Counter(least.bytes_by_tier), slowest)

    # --- computing ---

    def _compute(self, tokens: list[int], start: int) -> None:
        todo = deque(chunks(start, len(tokens), self._options.prefill_chunk))
        begun = time.perf_counter()
        while todo or self._flights:
            if not self._wanted() or not (self._session.usable or not self._keys):
                todo.clear()
            while todo and len(self._flights) <= self._stages.plan.stages:
                self._issue(todo.popleft(), tokens)
            if self._flights:
                self._hear()
        self._speeds.observe_prefill(self.computed, time.perf_counter() - begun)

    def _issue(self, chunk: Chunk, tokens: list[int]) -> None:
        step = self._session.layout.block_tokens
        shared = reserve_chunk(self._session, self._keys, completed_blocks(chunk, step))
        self._flights.append(_Flight(chunk, shared))
        blocks, token = (shared.blocks, shared.token) if shared is not None else ([], b"")
        for stage in range(self._stages.plan.stages):
            ids = [] if stage else tokens[chunk.start : chunk.stop]
            self._stages.send(stage, Compute(self._number, chunk.start, chunk.stop, ids, blocks, token))

    def _hear(self) -> None:
        """One word of one stage. A chunk is done by all before the next one is."""
        stage, message = self._stages.receive()
        flight = self._flight_of(stage, message)
        if not isinstance(message, Computed) or flight is None:
            raise _unexpected(stage, message)
        flight.done.add(stage)
        flight.faults.update(message.faults)
        self.times.cpu_seconds[stage].append(message.cpu_seconds)
        self.times.own_bytes[stage] = max(self.times.own_bytes[stage], message.own_bytes)
        if flight.stages_done < self._stages.plan.stages:
            self._advance(flight)
        else:
            self._settle(self._flights.popleft())

    def _flight_of(self, stage: int, message: ToHead) -> _Flight | None:
        if not isinstance(message, Computed) or message.job != self._number:
            return None
        found = (flight for flight in self._flights if flight.chunk.start == message.start)
        return next((flight for flight in found if stage not in flight.done), None)

    def _advance(self, flight: _Flight) -> None:
        if flight.shared is None or flight.faults or not flight.stages_done or not self._session.usable:
            return
        try:
            flight.shared.advance(self._stages.plan.ranges[flight.stages_done - 1].stop)
        except MooncaskError as exc:
            self._session.fault(exc)

    def _settle(self, flight: _Flight) -> None:
        """All stages are done with it: published if all of them have written."""
        self.computed += flight.chunk.tokens
        self._session.faults.update(flight.faults)
        if flight.shared is None:
            return
        if flight.faults:
            flight.shared.abort()
            return
        try:
            self.stored += flight.shared.commit()
        except MooncaskError as exc:
            self._session.fault(exc)


class _Guard:
    """Gives the job up when its block is left by any error."""

    def __init__(self, job: PipelineJob) -> None:
        self._job = job

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is not None:
            self._job.give_up()


def _unexpected(stage: int, message: object) -> WorkerUnavailable:
    return WorkerUnavailable(f"stage {stage}", f"it said {type(message).__name__} where something else was due")
