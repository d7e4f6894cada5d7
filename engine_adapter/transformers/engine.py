"""What prefill and decode share: one model, one KV buffer, measured speeds, and loading a prefix into the buffer."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from transformers import DynamicCache

from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, cache_over
from mooncask.engine_adapter.transformers.loading import Hit, LoadDecision, LoadPolicy, Speeds, Work, decide, left_out
from mooncask.engine_adapter.transformers.messages import Decision, Request
from mooncask.engine_adapter.transformers.model import Model
from mooncask.engine_adapter.transformers.store_link import LoadOutcome, StoreLink, StoreSession
from mooncask.errors import BadRequest

BUFFER_STEP_TOKENS = 512
"""Buffers grow by whole steps, so that prompts of similar lengths share one."""
LOAD_SECONDS_MIN = 0.1
"""A load is given at least this long, however fast computing would be."""
WARM_UP_TOKENS_MAX = 256
WARM_BUFFER_TOKENS = 2048
"""Room that a worker has from the start, so that its first long prompt need not wait for fresh memory."""


@dataclass(frozen=True, slots=True)
class Options:
    prefill_chunk: int = 256
    load_policy: LoadPolicy = LoadPolicy.AUTO
    load_seconds_max: float = 10.0


@dataclass(frozen=True, slots=True)
class Prefix:
    """What was decided about a prefix and what came of it."""

    hit: Hit
    decision: LoadDecision
    outcome: LoadOutcome

    def report(self) -> Decision:
        d = self.decision
        return Decision(len(self.hit), d.blocks, d.load_seconds, d.compute_seconds, d.recompute_seconds, d.reason)


Load = Callable[[list[bytes], float], LoadOutcome]
"""Brings these blocks, from the first on, to where they are needed, within so many seconds."""


class Engine:
    """One request at a time."""

    def __init__(self, model: Model, link: StoreLink, options: Options) -> None:
        self.model, self.link, self.options = model, link, options
        self.layout = model.layout
        self.speeds = Speeds()
        self._buffer: KvBuffer | None = None

    def check(self, request: Request, answer_tokens: int) -> None:
        """Raises BadRequest for what the model can't do."""
        total = len(request.tokens) + answer_tokens
        if total > self.model.positions_max:
            raise BadRequest(
                f"{total} tokens with the answer; {self.model.name} has {self.model.positions_max} positions"
            )
        if (highest := max(request.tokens)) >= self.model.vocabulary:
            raise BadRequest(f"token {highest}; the vocabulary of {self.model.name} has {self.model.vocabulary}")

    def buffer_for(self, tokens: int) -> KvBuffer:
        """A buffer of at least `tokens` tokens; what it held for the last request is overwritten."""
        if self._buffer is None or self._buffer.capacity_tokens < tokens:
            steps = -(-tokens // BUFFER_STEP_TOKENS)
            self._buffer = None  # before the new one is made: never two at a time
            self._buffer = KvBuffer(self.layout, steps * BUFFER_STEP_TOKENS, str(self.model.module.device))
        return self._buffer

    def close(self) -> None:
        self.link.close()

    def cache(self, buffer: KvBuffer, filled_tokens: int, written: Callable[[int], None]) -> DynamicCache:
        return cache_over(buffer, filled_tokens, written)

    def load_prefix(self, session: StoreSession, keys: list[bytes], hit: Hit, tokens: int, buffer: KvBuffer) -> Prefix:
        """Loads as much of the hit as is worth it, of a request that needs KV for `tokens` tokens."""
        work = Work(tokens, self.layout.block_tokens, self.layout.block_bytes)
        load = lambda some, seconds: session.load(some, buffer, seconds)
        return load_prefix(session, keys, hit, work, self.speeds, self.options, load)

    def compute(self, tokens: list[int], cache: DynamicCache) -> torch.Tensor:
        """One forward pass over `tokens`, appended to the cache: the last token's logits. Measures the speed."""
        started = time.perf_counter()
        logits = self.model.forward(tokens, cache)
        self.speeds.observe_prefill(len(tokens), time.perf_counter() - started)
        return logits

    def warm_up(self) -> None:
        """The first passes are slow and say nothing; the one after them gives the first idea of the prefill speed."""
        tokens = min(self.options.prefill_chunk, WARM_UP_TOKENS_MAX, self.model.positions_max)
        buffer = self.buffer_for(min(WARM_BUFFER_TOKENS, self.model.positions_max))
        for _ in range(2):
            self.speeds = Speeds()
            self.compute([0] * tokens, self.cache(buffer, 0, ignore_layer))


def load_prefix(
    session: StoreSession, keys: list[bytes], hit: Hit, work: Work, speeds: Speeds, options: Options, load: Load
) -> Prefix:
    """Decides how much of the hit is worth loading, loads it by `load`, and learns from how long that took."""
    decision = decide(work, hit, speeds, options.load_policy)
    rest = left_out(work, hit, speeds, decision)
    if rest is not None:
        session.tell_recomputed(keys[rest.first], rest)
    speeds.note(decision, hit)
    outcome = LoadOutcome()
    if decision.blocks:
        deadline = _deadline(decision, options)
        outcome = load(keys[: decision.blocks], deadline)
        _learn(speeds, outcome, hit.tiers[: decision.blocks], work.block_bytes, deadline)
    return Prefix(hit, decision, outcome)


def _learn(
    speeds: Speeds, outcome: LoadOutcome, tiers: tuple[int, ...], block_bytes: int, deadline_seconds: float
) -> None:
    """From one load of blocks in `tiers`. What did not come in time says something too, or it would be waited for anew."""
    if outcome.blocks == len(tiers) or outcome.seconds < 0.95 * deadline_seconds:
        speeds.observe_load(dict(outcome.bytes_by_tier), outcome.seconds)
        return
    late = tiers[outcome.blocks]
    speeds.observe_late(late, outcome.bytes_by_tier[late] + block_bytes, outcome.seconds)


def _deadline(decision: LoadDecision, options: Options) -> float:
    """Loading that takes longer than computing all of it again is given up."""
    if options.load_policy is LoadPolicy.ALWAYS or not decision.recompute_seconds:
        return options.load_seconds_max
    return min(options.load_seconds_max, max(LOAD_SECONDS_MIN, decision.recompute_seconds))


def ignore_layer(layer: int) -> None:
    """For caches whose layers are not stored while they are computed."""
