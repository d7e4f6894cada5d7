"""One run of `mooncask bench layerwise`: how much of storing a prompt's KV can be seen when it is stored while it is computed.

A prefill worker in this process, one thread, stores through a tier that takes a share of what it produces (`paced_link.py`):

    alone     the prefill without storing: when it passed each layer, and with that the bytes of KV that it produces a second
    layered   the same while its layers are stored; visible = what storing took from the computing thread, and the wait at the end
    serial    the same bytes through the same tier after everything is computed: measured once at 100 %; what that took beyond the
              tier's own time is added to each tier's

All lengths are measured, then all once more, so that an hour in which the machine is busy is not one length's. Slower tiers
come last, once each: most of what they take is waiting.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache
from transformers.utils import logging as transformers_logging

from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink
from mooncask.errors import Busy
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.layerwise_result import FULL_SHARE, Layered, LayerwisePlan, Row
from mooncask.tools.bench.paced_link import Lane, PacedLink, PacedSession, Progress

DEADLINE_SECONDS = 30.0


def run(plan: LayerwisePlan, model: Path, folder: Path, progress: Callable[[str], None]) -> list[Row]:
    """`folder` is its own. Raises Busy when the store had no room, which would make storing look quick."""
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own
    loaded = load_model(model, "float32", plan.block_tokens)
    settings = {"dram_capacity": str(plan.dram_bytes), "http_enabled": "false", "ghosts_enabled": "false"}
    with DaemonProcess(folder, settings) as daemon, Lane() as lane:
        address = StoreAddress(str(daemon.socket), mode="memory", deadline_seconds=DEADLINE_SECONDS)
        link = PacedLink(address, "bench layerwise", loaded.family, loaded.layout, lane)
        try:
            engine = _MarkedEngine(loaded, link, Options(prefill_chunk=plan.prefill_chunk))
            engine.warm_up()
            return _Bench(engine, link, progress).rows(plan)
        finally:
            link.close()


class _MarkedEngine(Engine):
    """Says of every layer of every pass when it was written: to `marks`, and to the clock of the prefill that runs."""

    def __init__(self, model: Model, link: StoreLink, options: Options) -> None:
        super().__init__(model, link, options)
        self.clock = Progress()
        self.marks: list[float] = []

    def cache(self, buffer: KvBuffer, filled_tokens: int, written: Callable[[int], None]) -> DynamicCache:
        def marked(layer: int) -> None:
            self.passed()
            written(layer)

        return super().cache(buffer, filled_tokens, marked)

    def passed(self) -> None:
        self.marks.append(time.thread_time())
        self.clock.passed()


@dataclass(slots=True)
class _Case:
    """What is known so far of one length and share."""

    kv_bytes: int
    over_seconds: float = 0.0
    """At 100 %: what storing everything afterwards took beyond the tier's own time."""
    runs: list[Layered] = field(default_factory=list)


class _Bench:
    def __init__(self, engine: _MarkedEngine, link: PacedLink, progress: Callable[[str], None]) -> None:
        self._engine, self._link, self._progress = engine, link, progress
        self._seed = 0
        self._cases: dict[tuple[int, float], _Case] = {}

    def rows(self, plan: LayerwisePlan) -> list[Row]:
        self._engine.buffer_for(max(plan.tokens))
        self._layered(min(plan.tokens), float("inf"), ())  # the ways to the store are used once before anything counts
        for repeat in range(plan.repeats):
            for tokens in plan.tokens:
                self._progress(f"{tokens} tokens, {repeat + 1} of {plan.repeats}")
                self._measure(tokens, [FULL_SHARE])
        slower = [share for share in plan.shares if share != FULL_SHARE]
        for tokens in plan.tokens if slower else ():
            self._progress(f"{tokens} tokens, slower tiers")
            self._measure(tokens, slower)
        return [self._row(tokens, share) for tokens in plan.tokens for share in plan.shares]

    def _row(self, tokens: int, share: float) -> Row:
        full, runs = self._cases[tokens, FULL_SHARE], tuple(self._cases[tokens, share].runs)
        serial = full.over_seconds + statistics.median(run.alone_seconds for run in runs) / share
        return Row(tokens, share, full.kv_bytes, serial, runs)

    def _measure(self, tokens: int, shares: Sequence[float]) -> None:
        """One prefill alone, one for each share, and what storing afterwards takes where that is not known yet."""
        alone = self._alone(tokens)
        size = tokens // self._engine.layout.block_tokens * self._engine.layout.block_bytes
        for share in shares:
            case = self._cases.setdefault((tokens, share), _Case(size))
            rate = share * size / alone[-1]
            total, session = self._layered(tokens, rate, alone)
            if session.bytes != size:
                raise Busy(f"{session.bytes} of {size} bytes found room in the store: give the bench more memory")
            storing = (session.calling_seconds, session.tier_seconds, session.behind_seconds)
            case.runs.append(Layered(alone[-1], total - sum(storing), *storing))
            if share == FULL_SHARE and not case.over_seconds:
                case.over_seconds = self._serial(tokens, rate) - alone[-1]

    def _alone(self, tokens: int) -> list[float]:
        """When a prefill that stores nothing has passed each layer of each chunk, and its end: in its thread's own seconds, as on
        a core that nobody else wants. A moment in which another process had the core would be one without KV."""
        self._link.storing = False
        started = time.thread_time()
        self._begin(Progress())
        PrefillWorker(self._engine).run(self._request(tokens))
        self._engine.passed()
        return [mark - started for mark in self._engine.marks]

    def _layered(self, tokens: int, rate: float, alone: Sequence[float]) -> tuple[float, PacedSession]:
        """Seconds of a prefill until everything is stored."""
        self._link.storing = True
        clock = Progress(alone)
        self._link.lane.pace(rate, clock)
        self._begin(clock)
        started = time.perf_counter()
        PrefillWorker(self._engine).run(self._request(tokens))
        self._engine.passed()
        session = self._latest()
        session.finish()
        return time.perf_counter() - started, session

    def _begin(self, clock: Progress) -> None:
        self._engine.clock, self._engine.marks = clock, []

    def _serial(self, tokens: int, rate: float) -> float:
        """Seconds for the last prompt's KV, which is in the engine's buffer, through the tier: under other keys, all at once."""
        self._link.storing = True
        session = self._link.session()
        keys = session.keys(self._request(tokens).tokens, "")
        self._link.lane.pace(rate, Progress())
        started = time.perf_counter()
        chunk = session.begin_chunk(keys, range(len(keys)), self._engine.buffer_for(tokens))
        if chunk is None:
            raise Busy("the store has no room for the whole prompt: give the bench more memory")
        for layer in range(self._engine.layout.layers):
            session.advance(chunk, layer)
        session.commit(chunk)
        session.finish()
        return time.perf_counter() - started

    def _request(self, tokens: int) -> Request:
        """A prompt that nobody has asked before."""
        self._seed += 1
        ids = np.random.default_rng(self._seed).integers(1, self._engine.model.vocabulary, tokens)
        return Request(str(self._seed), [int(token) for token in ids])

    def _latest(self) -> PacedSession:
        assert self._link.latest is not None
        return self._link.latest
