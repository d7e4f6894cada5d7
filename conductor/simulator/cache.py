"""What one node keeps of KV: blocks in DRAM and, below it, on SSD, each with an eviction policy of `tiers/policies`.

Blocks that a queued or running request needs are held: they don't leave. Where everything is held, new blocks are not
kept. A block that leaves DRAM goes to the SSD if there is one; one found there is brought back. Not safe for concurrent
use; time comes from the caller.
"""

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.policies import make_policy

UNLIMITED = sys.maxsize


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks of the longest prefix that is here or being computed, by tier; `computed` of them are there already."""

    dram: int
    ssd: int
    computed: int

    @property
    def blocks(self) -> int:
        return self.dram + self.ssd


class NodeCache:
    def __init__(self, dram_blocks: int, ssd_blocks: int = 0, policy: str = "lru") -> None:
        self._capacity, self._ssd_capacity = dram_blocks, ssd_blocks
        self._dram = make_policy(policy, max(1, dram_blocks))
        self._ssd = make_policy(policy, max(1, ssd_blocks))
        self._places: dict[int, bool] = {}
        """Block: whether it lies in DRAM. The policies know the same keys; this answers faster."""
        self._held: Counter[int] = Counter()
        self._computing: set[int] = set()
        self._used: dict[int, float] = {}
        """Time of last use of each block in DRAM, oldest first."""

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: int) -> bool:
        return key in self._places

    @property
    def dram_blocks(self) -> int:
        return len(self._used)

    @property
    def ssd_blocks(self) -> int:
        return len(self._ssd)

    @property
    def dram_share(self) -> float:
        return len(self._used) / self._capacity if self._capacity else 0.0

    def last_used(self) -> Iterator[tuple[int, float]]:
        """Blocks in DRAM with the time of their last use, longest unused first."""
        return iter(list(self._used.items()))

    def find(self, keys: Sequence[int]) -> Found:
        """The longest prefix that is here or being computed. Does not modify."""
        places, computing = self._places, self._computing
        counts, computed = [0, 0], 0
        for key in keys:
            place = places.get(key)
            if place is None:
                break
            counts[place] += 1
            if computed == counts[0] + counts[1] - 1 and key not in computing:
                computed += 1
        return Found(counts[True], counts[False], computed)

    def claim(self, keys: Sequence[int], now: float, hint: Hint = NO_HINT) -> int:
        """Keep the blocks of a chain and hold them; new ones count as being computed until `computed` is told.

        Returns how many leading blocks are held; the rest found no room. Release exactly those.
        """
        for key in keys:
            self._held[key] += 1
        parent: int | None = None
        for depth, key in enumerate(keys):
            if not self._keep(Access(key, parent, depth, 1, now, hint)):
                self._release(keys[depth:])
                return depth
            parent = key
        return len(keys)

    def computed(self, keys: Sequence[int]) -> None:
        """The prefill that computes these is done."""
        for key in keys:
            self._computing.discard(key)

    def hold(self, keys: Sequence[int]) -> None:
        """Keep blocks that are here from leaving, for a transfer."""
        for key in keys:
            self._held[key] += 1

    def release(self, keys: Sequence[int]) -> None:
        self._release(keys)

    def cool(self, key: int, now: float) -> bool:
        """Cold swap: move a block from DRAM to SSD. False when it is not in DRAM, held, or there is no room."""
        if self._places.get(key) is not True or self._held[key] or not self._ssd_capacity:
            return False
        self._dram.remove(key)
        del self._places[key], self._used[key]
        return self._to_ssd(Access(key, time_seconds=now))

    def _release(self, keys: Sequence[int]) -> None:
        held = self._held
        for key in keys:
            held[key] -= 1
            if not held[key]:
                del held[key]

    def _may_leave(self, key: int) -> bool:
        return key not in self._held

    def _keep(self, access: Access) -> bool:
        place = self._places.get(access.key)
        if place is True:
            self._dram.touch(access)
            del self._used[access.key]
            self._used[access.key] = access.time_seconds
            return True
        if not self._make_room(access.time_seconds):
            return place is not None
        if place is None:
            self._computing.add(access.key)
        else:
            self._ssd.remove(access.key)
        self._dram.insert(access)
        self._places[access.key] = True
        self._used[access.key] = access.time_seconds
        return True

    def _make_room(self, now: float) -> bool:
        while len(self._used) >= self._capacity:
            victim = self._dram.evict(self._may_leave)
            if victim is None:
                return False
            del self._places[victim], self._used[victim]
            self._to_ssd(Access(victim, time_seconds=now))
        return True

    def _to_ssd(self, access: Access) -> bool:
        if not self._ssd_capacity:
            return False
        while len(self._ssd) >= self._ssd_capacity:
            victim = self._ssd.evict(self._may_leave)
            if victim is None:
                return False
            del self._places[victim]
        self._ssd.insert(access)
        self._places[access.key] = False
        return True
