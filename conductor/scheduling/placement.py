"""Where a request is prefilled: five policies, from random to KVCache-centric (FAST'25 algorithm 1).

Pure: the same facts, costs and random source give the same choice. Cost O(nodes) a request.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mooncask.conductor.scheduling.facts import PrefillChoice, PrefillCosts, PrefillFacts
from mooncask.errors import BadArgument


class Placement(Protocol):
    """Chooses a prefill node for a prompt of `tokens` tokens. `nodes` is not empty."""

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice: ...


def local_choice(tokens: int, node: int, facts: PrefillFacts, costs: PrefillCosts) -> PrefillChoice:
    """Prefill on `node` with what it holds itself, or what its store brings by itself where that is faster."""
    prefix, seconds = facts.prefix_tokens, facts.slowness * costs.prefill_seconds(tokens, facts.prefix_tokens)
    if facts.shared_tokens > prefix:
        brought = facts.shared_seconds + facts.slowness * costs.prefill_seconds(tokens, facts.shared_tokens)
        if brought < seconds:
            prefix, seconds = facts.shared_tokens, brought
    return PrefillChoice(node, prefix, None, 0, facts.queue_seconds + seconds)


def fetching_choice(
    tokens: int, node: int, nodes: Sequence[PrefillFacts], holder: int, costs: PrefillCosts
) -> PrefillChoice:
    """Prefill on `node` after fetching from `holder` what that one has beyond it."""
    missing = nodes[holder].offered_tokens - nodes[node].prefix_tokens
    seconds = costs.fetch_seconds(holder, node, missing) + nodes[node].queue_seconds
    seconds += nodes[node].slowness * costs.prefill_seconds(tokens, nodes[holder].offered_tokens)
    return PrefillChoice(node, nodes[holder].offered_tokens, holder, missing, seconds)


def best_holder(nodes: Sequence[PrefillFacts]) -> int:
    """The node that offers the longest prefix; among equals the least loaded."""
    return max(range(len(nodes)), key=lambda i: (nodes[i].offered_tokens, -nodes[i].queue_seconds, -i))


def with_shared(nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> list[PrefillFacts]:
    """The nodes of a pool whose stores bring each other's blocks by themselves: each could have the longest prefix offered."""
    holder = best_holder(nodes)
    longest = nodes[holder].offered_tokens
    return [
        replace(
            facts, shared_tokens=longest, shared_seconds=costs.fetch_seconds(holder, i, longest - facts.prefix_tokens)
        )
        if longest > facts.prefix_tokens
        else facts
        for i, facts in enumerate(nodes)
    ]


@dataclass(slots=True)
class RandomPlacement:
    source: random.Random

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice:
        node = self.source.randrange(len(nodes))
        return local_choice(tokens, node, nodes[node], costs)


@dataclass(slots=True)
class LoadBalancing:
    """The node that is free first; equal ones in turn. Blind to caches: it reuses what happens to be there."""

    _turn: int = 0

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice:
        count = len(nodes)
        node = min(range(count), key=lambda i: (nodes[i].queue_seconds, (i - self._turn) % count))
        self._turn = (node + 1) % count
        return local_choice(tokens, node, nodes[node], costs)


@dataclass(frozen=True, slots=True)
class CacheAware:
    """Algorithm 1 without transfers of its own: the least TTFT with each node's cache, and what its store brings unasked."""

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice:
        choices = (local_choice(tokens, i, facts, costs) for i, facts in enumerate(nodes))
        return min(choices, key=lambda choice: choice.ttft_seconds)


@dataclass(frozen=True, slots=True)
class KvCacheCentric:
    """Algorithm 1: fetch the longest prefix where it is `balancing_threshold` times longer than the local one.

    A prefix of 0 anywhere means ratio 1 (compute), a local 0 against more elsewhere an infinite one (fetch): the
    published algorithm leaves both open. The threshold is not published; results hardly depend on it between 1 and 4.
    """

    balancing_threshold: float = 1.5

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice:
        holder = best_holder(nodes)
        choices = (self._on(tokens, i, nodes, holder, costs) for i in range(len(nodes)))
        return min(choices, key=lambda choice: choice.ttft_seconds)

    def _on(
        self, tokens: int, node: int, nodes: Sequence[PrefillFacts], holder: int, costs: PrefillCosts
    ) -> PrefillChoice:
        if prefix_ratio(nodes[holder].offered_tokens, nodes[node].prefix_tokens) > self.balancing_threshold:
            return fetching_choice(tokens, node, nodes, holder, costs)
        return local_choice(tokens, node, nodes[node], costs)


@dataclass(frozen=True, slots=True)
class CostBased:
    """On each node the cheaper of fetching the longest prefix and computing what is missing; then the least TTFT.

    This is the paper's prose ("if the additional prefill time is shorter than the transfer time") read by cost.
    """

    def place(self, tokens: int, nodes: Sequence[PrefillFacts], costs: PrefillCosts) -> PrefillChoice:
        holder = best_holder(nodes)
        choices = [local_choice(tokens, i, facts, costs) for i, facts in enumerate(nodes)]
        longest = nodes[holder].offered_tokens
        fetchers = (i for i, facts in enumerate(nodes) if facts.prefix_tokens < longest)
        choices.extend(fetching_choice(tokens, i, nodes, holder, costs) for i in fetchers)
        return min(choices, key=lambda choice: choice.ttft_seconds)


def prefix_ratio(best: int, local: int) -> float:
    if best <= local:
        return 1.0
    return best / local if local else math.inf


PLACEMENTS = ("random", "load-balancing", "cache-aware", "kvcache-centric", "cost-based")


def make_placement(name: str, source: random.Random, balancing_threshold: float = 1.5) -> Placement:
    """The placement policy of that name; raises BadArgument for an unknown one."""
    match name:
        case "random":
            return RandomPlacement(source)
        case "load-balancing":
            return LoadBalancing()
        case "cache-aware":
            return CacheAware()
        case "kvcache-centric":
            return KvCacheCentric(balancing_threshold)
        case "cost-based":
            return CostBased()
    raise BadArgument("placement", repr(name), f"one of {', '.join(PLACEMENTS)}")
