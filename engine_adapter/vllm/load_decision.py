"""How much of a cached prefix is worth loading, from what this engine measured. The decision itself is the one of the
transformers workers (`transformers/loading.py`); any thread may ask here.
"""

import threading
from dataclasses import dataclass

from mooncask.client.operations import Match
from mooncask.engine_adapter.transformers.loading import Hit, LeftOut, LoadPolicy, Speeds, Work, decide, left_out
from mooncask.engine_adapter.vllm.messages import LoadDone, WorkerHello

PREFILL_TOKENS_MIN = 32
"""A step with fewer tokens says more about a pass's fixed cost than about the speed of prefill."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`blocks` of the prompt are there or worth loading; `rest` is what of the match is not, counted from its own start."""

    blocks: int
    rest: LeftOut | None = None


class LoadDecisions:
    def __init__(self, policy: str, shard: WorkerHello) -> None:
        self._policy = LoadPolicy(policy)
        self._shard = shard
        self._speeds = Speeds()
        self._lock = threading.Lock()

    def limit(self, tokens: int, start: int, match: Match) -> Limit:
        """How many blocks to have loaded in the end, of a prompt of `tokens` tokens whose first `start` blocks are there."""
        before = match.seconds[start - 1] if 0 < start <= len(match) else 0.0
        seconds = tuple(until - before for until in match.seconds[start:])
        hit = Hit(tuple(int(tier) for tier in match.tiers[start:]), seconds)
        work = Work(tokens - start * self._shard.block_tokens, self._shard.block_tokens, self._shard.block_bytes)
        with self._lock:
            decision = decide(work, hit, self._speeds, self._policy)
            rest = left_out(work, hit, self._speeds, decision)
            self._speeds.note(decision, hit)
        return Limit(start + decision.blocks, rest)

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        if tokens >= PREFILL_TOKENS_MIN:
            with self._lock:
                self._speeds.observe_prefill(tokens, seconds)

    def loaded(self, done: LoadDone) -> None:
        """A load ended. One that waited for a prefill engine says nothing about a tier."""
        if done.late:
            self.late(done.tier, done.bytes + self._shard.block_bytes, done.seconds)
        elif done.tier:
            with self._lock:
                self._speeds.observe_load({done.tier: done.bytes}, done.seconds)

    def late(self, tier: int, size_bytes: int, seconds: float) -> None:
        """`tier` did not deliver so many bytes in that time."""
        if tier:
            with self._lock:
                self._speeds.observe_late(tier, size_bytes, seconds)
