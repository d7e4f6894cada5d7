"""Which blocks go into the bucket, and which packs need not stay there. Pure decisions."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mooncask.daemon.cold.index import Pack
from mooncask.tiers.leaving import Candidate

WINDOW_SHARE = 0.25
"""Of the last tier's blocks, those that leave first are looked at."""
WINDOW_MIN = 1024
WINDOW_MAX = 1 << 16


@dataclass(frozen=True, slots=True)
class Rules:
    """What is to go. `spill` and the others as in [cold]."""

    spill: str
    spill_at: float
    hits_min: int
    age_min_seconds: float

    def active(self, fill: float) -> bool:
        return self.spill == "all" or (self.spill == "leaving" and fill >= self.spill_at)

    def window(self, blocks: int) -> int:
        """How many blocks to look at in one round."""
        if self.spill == "all":
            return max(WINDOW_MIN, min(blocks, WINDOW_MAX))
        return max(WINDOW_MIN, min(int(blocks * WINDOW_SHARE), WINDOW_MAX))

    def wants(self, block: Candidate, wall_seconds: float) -> bool:
        """Pinned contexts in any case: somebody has said that they matter."""
        if block.pins:
            return True
        return block.hits >= self.hits_min and wall_seconds - block.created >= self.age_min_seconds


def others_will(own: bytes, holders: Collection[bytes]) -> bool:
    """Whether another node that has the block will put it there, should it ever have to: of all that have it, the one with the
    lowest incarnation does."""
    return any(holder < own for holder in holders)


def dead_packs(
    own: Iterable[Pack], busy: Collection[object], capacity_bytes: int, keep_seconds: float, wall_seconds: float
) -> list[Pack]:
    """Those of this node's packs that are of no use any more: all their blocks are dead or found in other packs, not used for
    `keep_seconds`, or the longest unused of more than `capacity_bytes`; 0 = no such limit. `busy` are not looked at."""
    packs = [pack for pack in own if pack.name not in busy]
    dead = {pack.name for pack in packs if not pack.live and not pack.left_out}
    if keep_seconds:
        dead |= {pack.name for pack in packs if _used(pack) < wall_seconds - keep_seconds}
    size = sum(pack.size for pack in packs if pack.name not in dead)
    for pack in sorted(packs, key=lambda pack: (_used(pack), pack.name)):
        if not capacity_bytes or size <= capacity_bytes:
            break
        if pack.name not in dead:
            dead.add(pack.name)
            size -= pack.size
    return [pack for pack in packs if pack.name in dead]


def dead_nodes(alive: Mapping[str, float], bucket_seconds: float, dead_after_seconds: float) -> list[str]:
    """Nodes of which no run has been heard of for so long. `alive`: node -> its last sign of life by the bucket's clock."""
    return sorted(node for node, seen in alive.items() if bucket_seconds - seen > dead_after_seconds)


def to_merge(sizes: Sequence[int], files_max: int, size_max: int) -> list[int]:
    """Which of a run's index objects become one: the small ones, once there are many. Indexes into `sizes`, the oldest first."""
    small = [i for i, size in enumerate(sizes) if size < size_max]
    if len(small) <= files_max:
        return []
    chosen, total = list[int](), 0
    for i in small:
        if total + sizes[i] > size_max and len(chosen) > 1:
            break
        chosen.append(i)
        total += sizes[i]
    return chosen


def _used(pack: Pack) -> float:
    return max(pack.used_seconds, float(pack.created))
