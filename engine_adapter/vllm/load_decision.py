"""How much of a cached prefix is worth loading, from what this engine measured. The decision itself is the one of the
transformers workers (`transformers/loading.py`); any thread may ask here.
"""

import threading

from mooncask.client.operations import Match
from mooncask.engine_adapter.transformers.loading import Hit, LoadPolicy, Speeds, Work, decide
from mooncask.engine_adapter.vllm.messages import LoadDone, WorkerHello

PREFILL_TOKENS_MIN = 32
"""A step with fewer tokens says more about a pass's fixed cost than about the speed of prefill."""


class LoadDecisions:
    def __init__(self, policy: str, shard: WorkerHello) -> None:
        self._policy = LoadPolicy(policy)
        self._shard = shard
        self._speeds = Speeds()
        self._lock = threading.Lock()

    def limit(self, tokens: int, start: int, match: Match) -> int:
        """How many blocks to have loaded in the end, of a prompt of `tokens` tokens whose first `start` blocks are there."""
        hit = Hit(tuple(int(tier) for tier in match.tiers[start:]), tuple(match.seconds[start:]))
        work = Work(tokens - start * self._shard.block_tokens, self._shard.block_tokens, self._shard.block_bytes)
        with self._lock:
            decision = decide(work, hit, self._speeds, self._policy)
            self._speeds.note(decision, hit)
        return start + decision.blocks

    def computed(self, tokens: int, seconds: float) -> None:
        """A step computed so many tokens."""
        if tokens >= PREFILL_TOKENS_MIN:
            with self._lock:
                self._speeds.observe_prefill(tokens, seconds)

    def loaded(self, done: LoadDone) -> None:
        with self._lock:
            self._speeds.observe_load({done.tier: done.bytes}, done.seconds)
