"""Blocks and bytes that readers found and missed, by tier, as sums that only grow: told of look-ups."""

import time
from collections import Counter
from collections.abc import Sequence

from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.daemon.insight.rates import RecentPrefixes
from mooncask.daemon.namespace_door import block_tokens
from mooncask.tiers.flows import Flows, Way
from mooncask.tiers.namespace import Namespace

HIT_DRAM = Way("hit", "dram")
HIT_NVME = Way("hit", "nvme")
MISS = Way("miss", "")
BUCKET_SECONDS = 10.0
BUCKETS = 30
"""Hit rates of namespaces are over the last five minutes."""


class Traffic:
    """An observer of look-ups. A hit is a block that a reader was given or is being loaded for it; a match gives none.

    A miss is a block that was asked for, by whatever kind of look-up, and not here. Bytes are counted in the mean size of the
    namespace's blocks: of one KV namespace all are equal. Hit rates are counted as `Service.match` does: tokens of contiguous
    prefixes of matches.
    """

    def __init__(self) -> None:
        self.flows = Flows()
        self.prefixes = RecentPrefixes(BUCKET_SECONDS, BUCKETS)
        self.tier_tokens: Counter[str] = Counter()
        """Tokens of matched prefixes by the tier that had them, memory as "dram"; "peer" and "cold": what other nodes and the bucket made possible."""

    def looked(self, lookups: Sequence[Lookup]) -> None:
        """Sums first by namespace: a batch is of many look-ups in few namespaces."""
        sums: dict[Namespace, _Sums] = {}
        for kind, namespace, keys, hits, _, _, _, memory_hits, _ in lookups:
            found = sums.get(namespace)
            if found is None:
                found = sums[namespace] = _Sums()
            asked = len(keys)
            found.missed += asked - hits
            if kind is LookupKind.MATCH:
                found.asked += asked
                found.matched += hits
                found.matched_memory += min(memory_hits, hits)
            else:
                found.hits += hits
                found.memory_hits += min(memory_hits, hits)
        for namespace, found in sums.items():
            self._add(namespace, found, lookups[-1].seconds)

    def matched_far(self, namespace: Namespace, blocks: int, tier: str = "peer") -> None:
        """The match itself was told of as a look-up; this is by how much its prefix goes on over other nodes' blocks or the
        bucket's."""
        tokens = block_tokens(namespace.spec.family) * blocks
        if tokens:
            self.prefixes.add(namespace.id, 0, tokens, time.monotonic())
            self.tier_tokens[tier] += tokens

    def _add(self, namespace: Namespace, sums: "_Sums", seconds: float) -> None:
        size = namespace.stored_bytes // namespace.blocks if namespace.blocks else 0
        below = sums.hits - sums.memory_hits
        for way, blocks in ((HIT_DRAM, sums.memory_hits), (HIT_NVME, below), (MISS, sums.missed)):
            if blocks:
                self.flows.add(way, blocks * size, blocks)
        tokens = block_tokens(namespace.spec.family)
        if tokens and sums.asked:
            self.prefixes.add(namespace.id, tokens * sums.asked, tokens * sums.matched, seconds)
            self.tier_tokens["dram"] += tokens * sums.matched_memory
            self.tier_tokens["nvme"] += tokens * (sums.matched - sums.matched_memory)


class _Sums:
    """Blocks of one namespace in one batch."""

    __slots__ = ("asked", "hits", "matched", "matched_memory", "memory_hits", "missed")

    def __init__(self) -> None:
        self.asked = self.hits = self.matched = self.matched_memory = self.memory_hits = self.missed = 0
