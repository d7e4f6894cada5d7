"""Whom to ask for which block: a pure decision."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence


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
