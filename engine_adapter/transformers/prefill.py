"""The prefill worker: brings the KV of a prompt's full blocks into the store, and never delivers a token.

    match -> load the prefix -> for each chunk: compute (storing layer by layer, reserving for the next chunk), commit

The tokens after the last full block are left to decode, which computes them anyway to choose the first answer token.
"""

import time
from collections.abc import Callable
from typing import Protocol

from mooncask.engine_adapter.transformers.chunks import Chunk, chunks, completed_blocks
from mooncask.engine_adapter.transformers.engine import Engine, Prefix
from mooncask.engine_adapter.transformers.kv_layout import KvLayout
from mooncask.engine_adapter.transformers.loading import NO_HIT, Hit, LoadDecision
from mooncask.engine_adapter.transformers.messages import PrefillResult, Request
from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.store_link import LoadOutcome, StoreLink, StoreSession
from mooncask.engine_adapter.transformers.stored_chunk import StoredChunk


class RunningPrefill(Protocol):
    """One prefill: tokens computed and blocks published so far, and what runs it."""

    computed: int
    stored: int

    def run(self, hit: Hit) -> Prefix:
        """As `PrefillJob.run`."""
        ...


class Prefilling(Protocol):
    """What runs prefills, one at a time: a whole model, or stages that have its layers together."""

    @property
    def model(self) -> Model: ...
    @property
    def layout(self) -> KvLayout: ...
    @property
    def link(self) -> StoreLink: ...

    def job(
        self, session: StoreSession, tokens: list[int], keys: list[bytes], wanted: Callable[[], bool]
    ) -> RunningPrefill:
        """A prefill of these tokens, whose full blocks have these keys, while it is `wanted`."""
        ...


class PrefillWorker:
    """One request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, request: Request) -> PrefillResult:
        """Raises BadRequest. What the store can't do is in the result's `faults`; then computing stops early, for nobody
        could read it."""
        self.engine.check(request, answer_tokens=0)
        started = time.perf_counter()
        session = self.engine.link.session(request.use_store)
        keys = session.keys(request.tokens, request.cache_salt)
        hit = session.match(keys)
        job = PrefillJob(self.engine, session, request.tokens, keys)
        prefix = job.run(hit)
        return PrefillResult(
            id=request.id,
            prompt_tokens=len(request.tokens),
            loaded=prefix.outcome.tokens(self.engine.layout),
            computed=job.computed,
            stored_blocks=job.stored,
            decision=prefix.report(),
            load_s=prefix.outcome.seconds,
            total_s=time.perf_counter() - started,
            faults=dict(session.faults),
        )


class PrefillJob:
    """The part of one request that loads and computes: its tokens up to the last full block, while it is `wanted`."""

    def __init__(
        self,
        engine: Engine,
        session: StoreSession,
        tokens: list[int],
        keys: list[bytes],
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.engine, self.session, self.keys, self._wanted = engine, session, keys, wanted
        self.tokens = tokens[: len(keys) * engine.layout.block_tokens]
        self.buffer = engine.buffer_for(len(self.tokens))
        self.computed = self.stored = 0
        self._chunk: StoredChunk | None = None

    def run(self, hit: Hit) -> Prefix:
        """What was loaded of the hit, when the rest is computed and stored, or nobody wants it any more."""
        if len(hit) >= len(self.keys):
            return nothing_to_do(hit)
        prefix = self.engine.load_prefix(self.session, self.keys, hit, len(self.tokens), self.buffer)
        self._compute(prefix.outcome.blocks)
        return prefix

    def _compute(self, loaded_blocks: int) -> None:
        start = loaded_blocks * self.engine.layout.block_tokens
        cache = self.engine.cache(self.buffer, start, self._layer_written)
        todo = chunks(start, len(self.tokens), self.engine.options.prefill_chunk)
        for chunk, following in zip(todo, [*todo[1:], None], strict=True):
            if not self.session.usable or not self._wanted():
                return
            self._chunk = self.session.begin_chunk(self.keys, self._blocks(chunk), self.buffer)
            if following is not None:
                self.session.prepare_chunk(self.keys, self._blocks(following), self.buffer)
            self.engine.compute(self.tokens[chunk.start : chunk.stop], cache)
            self.computed += chunk.tokens
            if self._chunk is not None:
                self.stored += self.session.commit(self._chunk)

    def _blocks(self, chunk: Chunk) -> range:
        return completed_blocks(chunk, self.engine.layout.block_tokens)

    def _layer_written(self, layer: int) -> None:
        if self._chunk is not None:
            self.session.advance(self._chunk, layer)


def nothing_to_do(hit: Hit) -> Prefix:
    """For a prompt whose full blocks are all there."""
    reason = "everything is cached" if hit is not NO_HIT and len(hit) else "there is no full block, or no store"
    return Prefix(hit, LoadDecision(0, 0.0, 0.0, 0.0, reason), LoadOutcome())


class WholeModel:
    """Runs prefills on an engine, in the caller's thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.model, self.layout, self.link = engine.model, engine.layout, engine.link

    def job(
        self, session: StoreSession, tokens: list[int], keys: list[bytes], wanted: Callable[[], bool]
    ) -> PrefillJob:
        return PrefillJob(self._engine, session, tokens, keys, wanted)
