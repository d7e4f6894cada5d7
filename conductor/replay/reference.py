"""Two policies of the papers that serve only for comparison: their state grows with the trace, so no daemon runs them.

`lfu-history` keeps the count of a block that left. `length-aware` (arXiv 2407.00079, table 1) is lfu that among equal
counts first evicts the block that stands latest in its prompt.
"""

from heapq import heapify, heappop, heappush

from mooncask.tiers.block import Access
from mooncask.tiers.policies.policy import MayLeave

Rank = tuple[int, int, int]


class Ranked:
    """Evicts the block of lowest rank: (uses, -depth if `latest_first` else 0, time of last use). O(log n) a call."""

    def __init__(self, *, keep_history: bool, latest_first: bool) -> None:
        self._keep_history, self._latest_first = keep_history, latest_first
        self._uses: dict[int, int] = {}
        self._rank: dict[int, Rank] = {}
        self._heap: list[tuple[Rank, int]] = []
        self._clock = 0

    def insert(self, access: Access) -> None:
        if access.key in self._rank or self._keep_history:
            self._uses[access.key] = self._uses.get(access.key, 0) + 1
        else:
            self._uses[access.key] = 1
        self._clock += 1
        depth = access.depth if self._latest_first else 0
        rank = self._rank[access.key] = (self._uses[access.key], -depth, self._clock)
        heappush(self._heap, (rank, access.key))
        if len(self._heap) > 4 * len(self._rank) + 64:
            self._heap = [(rank, key) for key, rank in self._rank.items()]
            heapify(self._heap)

    def touch(self, access: Access) -> None:
        if access.key in self._rank:
            self.insert(access)

    def remove(self, key: int) -> None:
        self._rank.pop(key, None)
        self._uses.pop(key, None)

    def evict(self, may_leave: MayLeave) -> int | None:
        refused: list[tuple[Rank, int]] = []
        victim = None
        while self._heap and victim is None:
            rank, key = heappop(self._heap)
            if self._rank.get(key) == rank:
                if may_leave(key):
                    victim = key
                else:
                    refused.append((rank, key))
        for entry in refused:
            heappush(self._heap, entry)
        if victim is not None:
            del self._rank[victim]
        return victim

    def __len__(self) -> int:
        return len(self._rank)

    def __contains__(self, key: int) -> bool:
        return key in self._rank
