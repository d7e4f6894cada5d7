"""Blocks and bytes that readers found and missed, by tier, as sums that only grow: told of look-ups."""

from collections.abc import Sequence

from mooncask.daemon.insight.lookups import Lookup, LookupKind
from mooncask.daemon.insight.rates import RecentPrefixes
from mooncask.daemon.namespace_door import block_tokens
from mooncask.tiers.flows import Flows, Way
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

HIT_DRAM = Way("hit", "dram")
HIT_NVME = Way("hit", "nvme")
MISS = Way("miss", "")
BUCKET_SECONDS = 10.0
BUCKETS = 30
"""Hit rates of namespaces are over the last five minutes."""


class Traffic:
    """An observer of look-ups. A hit is a block that a reader was given or is being loaded for it; a match gives none.

    A miss is a block that was asked for, by whatever kind of look-up, and not here. It is counted in the mean size of its
    namespace's blocks. Hit rates are counted as `Service.match` does: tokens of contiguous prefixes of matches.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._size = store.catalogue.size
        self.flows = Flows()
        self.prefixes = RecentPrefixes(BUCKET_SECONDS, BUCKETS)

    def looked(self, lookups: Sequence[Lookup]) -> None:
        for lookup in lookups:
            if lookup.hits < len(lookup.keys):
                self._missed(lookup)
            if lookup.kind is LookupKind.MATCH:
                self._matched(lookup)
            elif lookup.hits:
                self._hit(lookup)

    def _matched(self, lookup: Lookup) -> None:
        tokens = block_tokens(lookup.namespace.spec.family)
        if tokens:
            number = lookup.namespace.id
            self.prefixes.add(number, tokens * len(lookup.keys), tokens * lookup.hits, lookup.seconds)

    def _missed(self, lookup: Lookup) -> None:
        missed = len(lookup.keys) - lookup.hits
        self.flows.add(MISS, missed * _mean_bytes(lookup.namespace), missed)

    def _hit(self, lookup: Lookup) -> None:
        in_memory = min(lookup.memory_hits, lookup.hits)
        if in_memory:
            self.flows.add(HIT_DRAM, self._bytes(lookup.namespace, lookup.keys[:in_memory]), in_memory)
        if in_memory < lookup.hits:
            loaded = lookup.keys[in_memory : lookup.hits]
            self.flows.add(HIT_NVME, self._bytes(lookup.namespace, loaded), len(loaded))

    def _bytes(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """Of these blocks, as far as they are still here. Where the first and the last are equal, all are taken to be."""
        first, last = (self._bytes_of(namespace, key) for key in (keys[0], keys[-1]))
        if first == last and namespace.spec.kind == "kv":
            return first * len(keys)
        return sum(self._bytes_of(namespace, key) for key in keys)

    def _bytes_of(self, namespace: Namespace, key: bytes) -> int:
        slot = namespace.index.get(key)
        return 0 if slot is None else self._size[slot]


def _mean_bytes(namespace: Namespace) -> int:
    return namespace.stored_bytes // namespace.blocks if namespace.blocks else 0
