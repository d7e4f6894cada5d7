"""MIN, the offline bound (Belady 1966, with bypass): no policy can hit more single blocks, since this one knows the future.

The block whose next use is farthest away leaves; a newcomer whose next use is farther away than that of every resident
block is not cached at all. The whole trace is held in memory.
"""

from collections.abc import Iterable
from heapq import heappop, heappush

from mooncask.conductor.replay.replay import BLOCK_TOKENS, ReplayResult, Tally, result
from mooncask.conductor.traces.request import Request


def replay_min(trace: Iterable[Request], capacity_blocks: int, *, block_tokens: int = BLOCK_TOKENS) -> ReplayResult:
    """Replay `trace` with the best choices possible; O(log n) an access."""
    requests = list(trace)
    next_uses = _next_uses(requests)
    cache, tally, position = _Farthest(capacity_blocks), Tally(), 0
    for request in requests:
        tally.count(request, cache.resident_prefix(request.hash_ids), block_tokens)
        for key in request.hash_ids:
            cache.use(key, next_uses[position])
            position += 1
    return result("min", capacity_blocks, tally, cache.evictions)


class _Farthest:
    """Resident blocks with their next use; `_heap` has the farthest on top, with entries that are out of date."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._next_use: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        self.evictions = 0

    def resident_prefix(self, keys: Iterable[int]) -> int:
        count = 0
        for key in keys:
            if key not in self._next_use:
                break
            count += 1
        return count

    def use(self, key: int, next_use: int | None) -> None:
        """Access `key`, which is used again at `next_use`, or never. A block with no future is let go at once."""
        if next_use is None:
            self._next_use.pop(key, None)
        elif key in self._next_use or len(self._next_use) < self._capacity or self._displace(next_use):
            self._next_use[key] = next_use
            heappush(self._heap, (-next_use, key))

    def _displace(self, next_use: int) -> bool:
        """Evict the block that is used last, unless `next_use` is later still."""
        while True:
            negated, key = self._heap[0]
            if self._next_use.get(key) == -negated:
                break
            heappop(self._heap)
        if -negated < next_use:
            return False
        heappop(self._heap)
        del self._next_use[key]
        self.evictions += 1
        return True


def _next_uses(requests: list[Request]) -> list[int | None]:
    """For each block access of the trace in order, the position of the next access to the same block."""
    upcoming: dict[int, int] = {}
    answers: list[int | None] = []
    keys = [key for request in requests for key in request.hash_ids]
    for position in range(len(keys) - 1, -1, -1):
        answers.append(upcoming.get(keys[position]))
        upcoming[keys[position]] = position
    answers.reverse()
    return answers
