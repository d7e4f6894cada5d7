"""Hot-spot replication and cold swap: which chains deserve more copies, which blocks can leave DRAM. Pure.

The paper replicates only as a side effect: whoever fetches keeps a copy (placement does that). This adds what it leaves to
`change_replica`: a chain whose readers would keep its holders' links busy gets more copies before they queue up.
"""

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Copy:
    """Bring the chain that ends at `key` from one node to another."""

    key: int
    source: int
    target: int


class HotSpots:
    """Decayed read rates of chains by the key of their last shared block.

    `half_life_seconds` is how fast interest is forgotten; a copy serves reads until they keep its link busy for more than
    `busy_share` of the time. Holds at most `keys_max` keys, coldest dropped first. O(1) a read, amortised O(log n).
    """

    def __init__(self, half_life_seconds: float = 10.0, busy_share: float = 0.3, keys_max: int = 100_000) -> None:
        self._decay = math.log(2) / half_life_seconds
        self._busy_share, self._keys_max = busy_share, keys_max
        self._rates: dict[int, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def read(self, key: int, now: float) -> None:
        """Somebody read this chain."""
        self._rates[key] = (self.rate(key, now) + self._decay, now)
        if len(self._rates) > self._keys_max:
            self._drop_coldest(now)

    def rate(self, key: int, now: float) -> float:
        """Reads a second, lately."""
        rate, at = self._rates.get(key, (0.0, now))
        return rate * math.exp(-self._decay * (now - at))

    def replicas_wanted(self, key: int, now: float, read_seconds: float, nodes: int) -> int:
        """Copies that keep each link's share below the limit, when one read occupies a link for `read_seconds`."""
        wanted = math.ceil(self.rate(key, now) * read_seconds / self._busy_share)
        return max(1, min(nodes, wanted))

    def copies(
        self, key: int, now: float, read_seconds: float, holders: Iterable[int], queue_seconds: list[float]
    ) -> list[Copy]:
        """The copies to make now: onto the least loaded nodes that have none. Empty when nobody holds the chain."""
        having = sorted(set(holders), key=lambda node: queue_seconds[node])
        if not having:
            return []
        missing = self.replicas_wanted(key, now, read_seconds, len(queue_seconds)) - len(having)
        free = [node for node in range(len(queue_seconds)) if node not in having]
        targets = heapq.nsmallest(max(0, missing), free, key=lambda node: (queue_seconds[node], node))
        return [Copy(key, having[i % len(having)], target) for i, target in enumerate(targets)]

    def _drop_coldest(self, now: float) -> None:
        kept = heapq.nlargest(self._keys_max * 9 // 10, self._rates, key=lambda key: self.rate(key, now))
        self._rates = {key: self._rates[key] for key in kept}


def cold_blocks(
    last_used: Iterable[tuple[int, float]], now: float, used_share: float, idle_seconds: float, watermark: float
) -> list[int]:
    """Blocks to swap from DRAM to SSD, longest unused first: those idle for `idle_seconds`, once DRAM is fuller than
    `watermark`. `last_used` gives (block, time of last use)."""
    if used_share <= watermark:
        return []
    idle = [(at, key) for key, at in last_used if now - at >= idle_seconds]
    return [key for _, key in sorted(idle)]
