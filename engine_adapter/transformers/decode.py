"""The decode worker: answers a prompt whose KV is, as far as possible, in the store.

    match -> load full blocks -> compute the tail (at least one token) -> sample, one token a pass -> write back

It samples every token itself, so no sampling state crosses processes. Blocks that are missing, late or gone with the
daemon are computed here; the answer is the same.
"""

import time
from dataclasses import dataclass, field

import torch
from transformers import DynamicCache

from mooncask.engine_adapter.transformers.chunks import chunks, loadable_blocks
from mooncask.engine_adapter.transformers.engine import Engine, Prefix, ignore_layer
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer
from mooncask.engine_adapter.transformers.messages import DecodeResult, Request
from mooncask.engine_adapter.transformers.sampling import choose
from mooncask.engine_adapter.transformers.store_link import StoreSession


@dataclass(slots=True)
class _Answer:
    tokens: list[int] = field(default_factory=list)
    top2_gap: list[float] = field(default_factory=list)
    first_at: float = 0.0


class DecodeWorker:
    """One request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def run(self, request: Request) -> DecodeResult:
        """Raises BadRequest. What the store can't do is in the result's `faults` and computed instead."""
        self.engine.check(request, request.max_tokens)
        started = time.perf_counter()
        session = self.engine.link.session(request.use_store)
        buffer = self.engine.buffer_for(len(request.tokens) + request.max_tokens)
        prefix = self._load(session, request, buffer)
        start = prefix.outcome.blocks * self.engine.layout.block_tokens
        cache = self.engine.cache(buffer, start, ignore_layer)
        answer = self._generate(request, cache, self._compute_tail(request.tokens, start, cache))
        total = time.perf_counter() - started
        stored = self._write_back(session, request, answer.tokens, prefix.outcome.blocks, buffer)
        return DecodeResult(
            id=request.id,
            prompt_tokens=len(request.tokens),
            tokens=answer.tokens,
            top2_gap=answer.top2_gap,
            loaded=prefix.outcome.tokens(self.engine.layout),
            computed=len(request.tokens) - start,
            stored_blocks=stored,
            decision=prefix.report(),
            load_s=prefix.outcome.seconds,
            ttft_s=answer.first_at - started,
            total_s=total,
            faults=dict(session.faults),
        )

    def _load(self, session: StoreSession, request: Request, buffer: KvBuffer) -> Prefix:
        keys = session.keys(request.tokens, request.cache_salt)
        keys = keys[: loadable_blocks(len(request.tokens), self.engine.layout.block_tokens)]
        return self.engine.load_prefix(session, keys, session.match(keys), len(request.tokens), buffer)

    def _compute_tail(self, tokens: list[int], start: int, cache: DynamicCache) -> torch.Tensor:
        """The logits after the whole prompt, whose first `start` tokens are in the cache."""
        *before, last = chunks(start, len(tokens), self.engine.options.prefill_chunk)
        for chunk in before:
            self.engine.compute(tokens[chunk.start : chunk.stop], cache)
        return self.engine.compute(tokens[last.start : last.stop], cache)

    def _generate(self, request: Request, cache: DynamicCache, logits: torch.Tensor) -> _Answer:
        answer = _Answer()
        for position in range(request.max_tokens):
            choice = choose(logits.cpu().numpy(), request.temperature, request.seed, position)
            answer.tokens.append(choice.token)
            answer.top2_gap.append(choice.top2_gap)
            answer.first_at = answer.first_at or time.perf_counter()
            if choice.token in request.stop_tokens or position + 1 == request.max_tokens:
                break
            logits = self.engine.model.forward([choice.token], cache)
        return answer

    def _write_back(
        self, session: StoreSession, request: Request, answer: list[int], loaded_blocks: int, buffer: KvBuffer
    ) -> int:
        """Stores every full block that was computed here. The last answer token was never fed, so it has no KV."""
        if not request.write_back:
            return 0
        tokens = request.tokens + answer[:-1]
        keys = session.keys(tokens, request.cache_salt)
        return session.store(keys, range(loaded_blocks, len(keys)), buffer)
