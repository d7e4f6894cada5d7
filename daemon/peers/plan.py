"""Whom to ask for which block, and to whom to give one: pure decisions."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from mooncask.daemon.directory.directory import NodeRecord


def choose_holders(
    wanted: Mapping[bytes, Sequence[bytes]], tried: Mapping[bytes, Collection[bytes]], rank: Mapping[bytes, float]
) -> dict[bytes, list[bytes]]:
    """Holder -> the keys to ask it for; each key at one holder that was not tried for it yet, or at none.

    `wanted`: key -> who is said to have it. The holder with the lowest `rank` (0 where none is given) has the first choice,
    then the one that has most: a batch from one node is one round trip.
    """
    left = {key: [h for h in holders if h not in tried.get(key, ())] for key, holders in wanted.items()}
    counts = Counter(holder for holders in left.values() for holder in holders)
    chosen: dict[bytes, list[bytes]] = {}
    for holder in sorted(counts, key=lambda h: (rank.get(h, 0.0), -counts[h], h)):
        keys = [key for key, holders in left.items() if holder in holders]
        if keys:
            chosen[holder] = keys
        for key in keys:
            left[key] = []
    return chosen


def choose_takers(nodes: Sequence[NodeRecord], holders: Collection[bytes], most: int) -> list[NodeRecord]:
    """Up to `most` nodes that have it not: those with the most room left, to a tenth; of these those that load least."""
    free = [node for node in nodes if node.incarnation not in holders]
    return sorted(free, key=lambda node: (-_free_tenths(node), node.load, node.name))[: max(0, most)]


def _free_tenths(node: NodeRecord) -> int:
    left = max(0, node.capacity_bytes - node.used_bytes)
    return 10 * left // node.capacity_bytes if node.capacity_bytes else 0
