"""One run of `mooncask bench layerwise`: how much of storing a prompt's KV can be seen when it is stored while it is computed.

A prefill worker in this process, one thread, stores through a tier that takes a share of what it produces (`paced_link.py`):

    compute   the prefill alone: seconds, and with them the bytes of KV that it produces a second
    layered   the same while its layers are stored; visible = what storing took from the computing thread, and the wait at the end
    serial    the same bytes through the same tier after everything is computed

Each is measured one after the other for one prompt length and share, so that ratios are of neighbours in time.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.store_link import StoreAddress
from mooncask.errors import Busy
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.layerwise_result import LayerwisePlan, Row
from mooncask.tools.bench.paced_link import Lane, PacedLink, PacedSession

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
            engine = Engine(loaded, link, Options(prefill_chunk=plan.prefill_chunk))
            engine.warm_up()
            return _Bench(engine, link, progress).rows(plan)
        finally:
            link.close()


@dataclass(slots=True)
class _Run:
    """One prefill: seconds of it all, without those that storing took, and the bytes that were stored."""

    total_seconds: float
    visible_seconds: float
    bytes: int

    @property
    def compute_seconds(self) -> float:
        return self.total_seconds - self.visible_seconds


class _Bench:
    def __init__(self, engine: Engine, link: PacedLink, progress: Callable[[str], None]) -> None:
        self._engine, self._link, self._progress = engine, link, progress
        self._seed = 0

    def rows(self, plan: LayerwisePlan) -> list[Row]:
        self._prefill(min(plan.tokens), storing=False)  # memory of this length is touched once before anything counts
        return [self._row(tokens, share) for tokens in plan.tokens for share in plan.shares]

    def _row(self, tokens: int, share: float) -> Row:
        self._progress(f"{tokens} tokens, a tier of {share:.0%} of what prefill produces")
        alone = self._prefill(tokens, storing=False)
        size = tokens // self._engine.layout.block_tokens * self._engine.layout.block_bytes
        rate = share * size / alone.total_seconds
        self._link.lane.pace(rate)
        layered = self._prefill(tokens, storing=True)
        if layered.bytes != size:
            raise Busy(f"{layered.bytes} of {size} bytes found room in the store: give the bench more memory")
        self._link.lane.pace(rate)
        return Row(
            tokens=tokens,
            share=share,
            kv_bytes=size,
            rate_bytes=rate,
            alone_seconds=alone.total_seconds,
            compute_seconds=layered.compute_seconds,
            visible_seconds=layered.visible_seconds,
            serial_seconds=self._serial(tokens),
        )

    def _prefill(self, tokens: int, storing: bool) -> _Run:
        self._link.storing = storing
        started = time.perf_counter()
        PrefillWorker(self._engine).run(self._request(tokens))
        session = self._latest()
        session.finish()
        total = time.perf_counter() - started
        return _Run(total, session.caller_seconds if storing else 0.0, session.bytes)

    def _serial(self, tokens: int) -> float:
        """Seconds for the last prompt's KV, which is in the engine's buffer, through the tier: under other keys, all at once."""
        self._link.storing = True
        session = self._link.session()
        keys = session.keys(self._request(tokens).tokens, "")
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
