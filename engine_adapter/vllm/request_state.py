"""What the scheduler side knows of one request, and which of its blocks are to be loaded and saved. Pure.

Positions are in blocks of the request's own chain, block 0 first; what is in `table` are the engine's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from mooncask.engine_adapter.vllm.key_chain import KeyChain
from mooncask.engine_adapter.vllm.kv_groups import BlockTable, KvGroups


class EngineRequest(Protocol):
    """What is used of vLLM's Request."""

    @property
    def request_id(self) -> str: ...
    @property
    def all_token_ids(self) -> Sequence[int]: ...
    @property
    def num_prompt_tokens(self) -> int: ...
    @property
    def num_preemptions(self) -> int: ...
    @property
    def cache_salt(self) -> str | None: ...
    @property
    def kv_transfer_params(self) -> Mapping[str, Any] | None: ...
    @property
    def skip_reading_prefix_cache(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Blocks [start, stop)."""

    start: int
    stop: int


@dataclass(slots=True)
class RequestState:
    request: EngineRequest
    groups: KvGroups
    chain: KeyChain | None = None
    """None until the daemon said where chains begin: a request may be older than the connection."""
    table: list[list[int]] = field(default_factory=list)
    """Its blocks in the engine, by KV cache group."""
    computed: int = 0
    """Tokens that have KV when the last step that it was in is done."""
    saved: int = 0
    """Blocks from the first on that need no saving: saved, being saved, or known to be in the store."""
    tried_at: int = -1
    """`num_preemptions` when a load was planned: one that failed is not tried again."""
    waits_since: float = 0.0
    """When it was first held back for want of a connection."""
    promised: Span | None = None
    """What was matched last, until the engine has places for it."""
    loading: Span | None = None
    """Until all workers have reported it."""
    saving: dict[int, int] = field(default_factory=dict)
    """By a save's number: the workers that are not done with it."""
    bypass: str = ""
    """Why the store is not used for this request."""
    handover_id: str = ""
    """Of the hand-over that it loads."""
    wait_seconds: float = 0.0
    """Of a hand-over that is still being computed: how long its next blocks are waited for."""
    announced_until: float = 0.0
    """When its blocks are to be announced again, on the monotonic clock; 0: they were not."""
    announced: list[bytes] = field(default_factory=list)
    """Keys that were announced last."""
    layerwise: bool = False
    """What was promised is loaded within a step, layer by layer."""
    loaders: int = 0
    """Workers whose load of it is not over."""
    outdated: bool = False
    """Some of its KV is of before the engine was told to forget what it stored: nothing of it is saved."""

    @property
    def block_tokens(self) -> int:
        return self.groups.block_tokens

    def keys(self) -> list[bytes]:
        """Keys of all full blocks of what is known of the request: prompt and, after a preemption, what was generated."""
        if self.chain is None:
            return []
        tokens = self.request.all_token_ids
        return self.chain.extend(tokens, len(tokens))

    @property
    def may_load(self) -> bool:
        return self.tried_at != self.request.num_preemptions and not self.request.skip_reading_prefix_cache

    def plan_load(self, blocks: int) -> Span:
        """The engine has places for the first `blocks` blocks of what was promised."""
        assert self.promised is not None and self.promised.start + blocks <= self.promised.stop
        self.tried_at = self.request.num_preemptions
        self.loading = Span(self.promised.start, self.promised.start + blocks)
        self.promised = None
        self.saved = max(self.saved, self.loading.stop)
        return self.loading

    def loaded(self, blocks: int) -> None:
        """Of the load under way, the first `blocks` blocks came to a worker; the others are computed, and saved again."""
        if self.loading is not None and self.loading.start + blocks < self.loading.stop:
            self.saved = min(self.saved, self.loading.start + blocks)

    def in_step(self, tokens: int, new_blocks: BlockTable, all_new: bool) -> None:
        """It is in a step, after which `tokens` tokens have KV; it has these blocks, or these more (`all_new` false)."""
        if all_new:
            self.table = [list(ids) for ids in new_blocks]
        else:
            for ids, more in zip(self.table, new_blocks, strict=False):  # none: an empty list for all groups
                ids.extend(more)
        self.computed = tokens

    def plan_save(self, before: int, generated: bool) -> Span:
        """Blocks that are full after the step and were not saved; they count as saved now.

        Only tokens that are known count: drafts and tokens still being sampled may yet be others. Of what had KV `before` the
        step, blocks that a group has dropped are passed over: they were saved when they were computed, or came from a cache.
        """
        if self.outdated:
            return Span(self.saved, self.saved)
        known = len(self.request.all_token_ids) if generated else self.request.num_prompt_tokens
        places = min((len(ids) for ids in self.table), default=0)
        full = min(self.computed // self.block_tokens, known // self.block_tokens, places)
        start, stop = self.saved, max(self.saved, full)
        if self.groups.slide:
            start = min(stop, max(start, self.groups.whole_from(self.table, before)))
        self.saved = stop
        return Span(start, stop)

    @property
    def leaving(self) -> int:
        """Blocks before this one may be somebody else's in the next step."""
        return self.groups.kept_from(self.computed)

    def published_tokens(self, span: Span) -> list[list[int]]:
        """Each block's tokens; none for a request that more than its tokens tells from others."""
        if self.request.cache_salt or self.chain is None or not self.chain.extras.plain:
            return []
        step, tokens = self.block_tokens, self.request.all_token_ids
        return [list(tokens[i * step : (i + 1) * step]) for i in range(span.start, span.stop)]

    def preempted(self) -> None:
        """Its blocks are gone; saves under way are given up."""
        self.table, self.computed, self.saved, self.loading, self.promised = [], 0, 0, None, None
        self.saving.clear()
        self.outdated = False

    def forget(self) -> None:
        """The engine's KV of the past is not its own any more: the chain begins anew, when all of it is computed again."""
        self.outdated = self.outdated or bool(self.table or self.loading)
        self.chain, self.saved, self.promised = None, 0, None
