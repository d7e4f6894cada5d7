"""The KVCache balance scheduler at work in a simulated cluster: copies of hot chains, cold blocks swapped to the SSD.

Decisions are `scheduling/replication.py`'s; this carries them out on caches and links.
"""

from collections.abc import Callable, Sequence

from mooncask.conductor.models.link import Port, transfer
from mooncask.conductor.scheduling.replication import HotSpots, cold_blocks
from mooncask.conductor.simulator.cache import Found, NodeCache
from mooncask.conductor.simulator.events import EventQueue

COLD_CHECK_SECONDS = 30.0
COLD_IDLE_SECONDS = 120.0
COLD_WATERMARK = 0.9


class Balancer:
    """Told of every arrival, it copies hot prefixes; `swap_cold` is to be called every COLD_CHECK_SECONDS."""

    def __init__(
        self,
        events: EventQueue,
        caches: Sequence[NodeCache],
        senders: Sequence[Port],
        receivers: Sequence[Port],
        block_bytes: int,
        queue_seconds: Callable[[int], float],
    ) -> None:
        self._events, self._caches = events, caches
        self._senders, self._receivers = senders, receivers
        self._block_bytes, self._queue_seconds = block_bytes, queue_seconds
        self._hot = HotSpots()
        self._copying: set[tuple[int, int]] = set()
        self.copied_blocks = 0

    def arrived(self, keys: Sequence[int], found: Sequence[Found]) -> None:
        """A request with this chain came; `found` is what each node has of it."""
        longest = max(hit.computed for hit in found)
        if not longest:
            return
        now, prefix = self._events.now, list(keys[:longest])
        self._hot.read(prefix[-1], now)
        holders = [node for node, hit in enumerate(found) if hit.computed == longest]
        seconds = longest * self._block_bytes / self._senders[holders[0]].bytes_per_second
        queues = [self._queue_seconds(node) for node in range(len(found))]
        for copy in self._hot.copies(prefix[-1], now, seconds, holders, queues):
            self._begin(prefix, copy.source, copy.target)

    def _begin(self, prefix: list[int], source: int, target: int) -> None:
        mark = (prefix[-1], target)
        if mark in self._copying:
            return
        self._copying.add(mark)
        self._caches[source].hold(prefix)
        missing = len(prefix) - self._caches[target].find(prefix).computed
        size = missing * self._block_bytes
        done = transfer(size, self._senders[source], self._receivers[target], self._events.now)
        self._events.at(done, lambda: self._end(prefix, source, target, missing))

    def _end(self, prefix: list[int], source: int, target: int, missing: int) -> None:
        self._copying.discard((prefix[-1], target))
        self._caches[source].release(prefix)
        cache = self._caches[target]
        kept = prefix[: cache.claim(prefix, self._events.now)]
        cache.computed(kept)
        cache.release(kept)
        self.copied_blocks += missing

    def swap_cold(self) -> None:
        """Move blocks that were idle for long from fuller DRAMs to their SSDs."""
        now = self._events.now
        for cache in self._caches:
            for key in cold_blocks(cache.last_used(), now, cache.dram_share, COLD_IDLE_SECONDS, COLD_WATERMARK):
                cache.cool(key, now)
                if cache.dram_share <= COLD_WATERMARK:
                    break
