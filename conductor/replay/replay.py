"""One trace through one cache of blocks: what share of the block accesses would have been hits.

Definitions, used for every number of this project that is called a hit rate:

- A block access is one entry of one request's `hash_ids`; a cache's unit is one block, whatever its tokens.
- A hit is a block in the longest resident prefix of the request when it arrives, looked up before anything of the
  request is inserted. A resident block behind a gap is no hit (for lru, lfu, sieve and the offline bound, counting it
  anyway changes nothing in the first four digits).
- Then the blocks are accessed from the first to the last: a resident one is touched, another is inserted, after an
  eviction when the cache is full. Nothing is in flight: the whole request is there when the next one arrives.
- Token-weighted: tokens of hit blocks as a share of all input tokens; the last block counts the tokens it has.
- Leaf-first: a block leaves only when no resident block continues it, and the request's own chain is held while it is
  inserted; when nothing may leave, or the policy does not admit the next block (`Admitting`), the rest of the request is not
  cached. Without it (the default) the policy alone decides, as in the papers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mooncask.conductor.replay.chains import Chains
from mooncask.conductor.traces.request import Request
from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.policies.policy import Admitting, EvictionPolicy

BLOCK_TOKENS = 512
"""Tokens a block in the public traces."""


def block_tokens_of(trace: Sequence[Request]) -> int:
    """Tokens a block: what the trace itself says where all blocks are whole, as in a daemon's recording; else 512."""
    found = {divmod(request.input_length, len(request.hash_ids)) for request in trace}
    tokens, rest = found.pop() if len(found) == 1 else (BLOCK_TOKENS, 0)
    return BLOCK_TOKENS if rest else tokens


@dataclass(slots=True)
class Tally:
    """Hits counted so far."""

    requests: int = 0
    accesses: int = 0
    hits: int = 0
    tokens: int = 0
    hit_tokens: int = 0

    def count(self, request: Request, hits: int, block_tokens: int) -> None:
        """Add one request of which the first `hits` blocks were resident."""
        self.requests += 1
        self.accesses += len(request.hash_ids)
        self.hits += hits
        self.tokens += request.input_length
        self.hit_tokens += min(hits * block_tokens, request.input_length)


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay found. `evictions` counts blocks that left to make room."""

    policy: str
    capacity_blocks: int
    requests: int
    accesses: int
    hits: int
    tokens: int
    hit_tokens: int
    evictions: int

    @property
    def hit_rate(self) -> float:
        """Share of the block accesses that hit; 0 for an empty trace."""
        return self.hits / self.accesses if self.accesses else 0.0

    @property
    def token_weighted_hit_rate(self) -> float:
        """Share of the input tokens that hit; 0 for an empty trace."""
        return self.hit_tokens / self.tokens if self.tokens else 0.0


def result(policy: str, capacity_blocks: int, tally: Tally, evictions: int) -> ReplayResult:
    """The tally as a result."""
    return ReplayResult(
        policy, capacity_blocks, tally.requests, tally.accesses, tally.hits, tally.tokens, tally.hit_tokens, evictions
    )


class Cache:
    """A set of at most `capacity_blocks` resident blocks that `policy` rules over."""

    def __init__(self, capacity_blocks: int, policy: EvictionPolicy, leaf_first: bool = False) -> None:
        self._capacity = capacity_blocks
        self._policy = policy
        self._chains = Chains() if leaf_first else None
        self._admitting = policy if leaf_first and isinstance(policy, Admitting) else None
        self.evictions = 0

    def resident_prefix(self, keys: Iterable[int]) -> int:
        """How many of the first `keys` are resident before the first that is not. Changes nothing."""
        policy, count = self._policy, 0
        for key in keys:
            if key not in policy:
                break
            count += 1
        return count

    def use(self, request: Request, with_hints: bool) -> None:
        """Access all blocks of a request in order."""
        hint = _hint(request) if with_hints else NO_HINT
        seconds, parent, policy = request.seconds, None, self._policy
        if self._chains:
            self._chains.hold(request.hash_ids)
        for depth, key in enumerate(request.hash_ids):
            access = Access(key, parent, depth, 1, seconds, hint)
            if key in policy:
                policy.touch(access)
            elif len(policy) < self._capacity or self._make_room(access):
                policy.insert(access)
                if self._chains:
                    self._chains.add(key, parent)
            else:
                self._leave_out(request, depth, hint)
                break
            parent = key

    def _leave_out(self, request: Request, first: int, hint: Hint) -> None:
        """The blocks from `first` on are not cached; a policy that admits learns of them all the same."""
        if self._admitting is None:
            return
        keys = request.hash_ids
        for depth in range(first, len(keys)):
            parent = keys[depth - 1] if depth else None
            self._admitting.left_out(Access(keys[depth], parent, depth, 1, request.seconds, hint))

    def _make_room(self, access: Access) -> bool:
        if self._admitting and self._chains and not self._admitting.admits(access, self._chains.may_leave):
            return False
        key = self._policy.evict(self._chains.may_leave if self._chains else _anything)
        if key is None:
            return False
        self.evictions += 1
        if self._chains:
            self._chains.discard(key)
        return True


def replay(
    trace: Iterable[Request],
    capacity_blocks: int,
    policy: EvictionPolicy,
    *,
    name: str = "",
    leaf_first: bool = False,
    with_hints: bool = False,
    block_tokens: int = BLOCK_TOKENS,
) -> ReplayResult:
    """Replay `trace` through an empty cache; the policy must be new. `with_hints` tells it conversation and turn."""
    cache, tally = Cache(capacity_blocks, policy, leaf_first), Tally()
    for request in trace:
        tally.count(request, cache.resident_prefix(request.hash_ids), block_tokens)
        cache.use(request, with_hints)
    return result(name or type(policy).__name__.lower(), capacity_blocks, tally, cache.evictions)


def _hint(request: Request) -> Hint:
    return Hint(conversation=request.conversation, turn=request.turn) if request.conversation else NO_HINT


def _anything(key: int) -> bool:
    return True
