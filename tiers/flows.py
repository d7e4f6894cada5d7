"""How many blocks and bytes went which way since the start: counts only; rates are made by whoever compares two moments."""

from collections import Counter, defaultdict
from typing import NamedTuple


class Way(NamedTuple):
    """`kind` is what happened, `tier` where it came to, left or was found; empty where none is meant."""

    kind: str
    tier: str


class Flows:
    """Ever growing sums by way. Adding is on the way of every put and eviction: one look-up."""

    def __init__(self) -> None:
        self._sums: defaultdict[Way, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, way: Way, size_bytes: int, blocks: int = 1) -> None:
        sums = self._sums[way]
        sums[0] += blocks
        sums[1] += size_bytes

    @property
    def blocks(self) -> Counter[Way]:
        return Counter({way: sums[0] for way, sums in self._sums.items()})

    @property
    def bytes(self) -> Counter[Way]:
        return Counter({way: sums[1] for way, sums in self._sums.items()})


PUT = Way("put", "dram")
LOAD = Way("load", "dram")
PROMOTE_DRAM = Way("promote", "dram")
PROMOTE_HBM = Way("promote", "hbm")
DEMOTE = Way("demote", "dram")
WRITE = Way("write", "nvme")
EVICT_HBM = Way("evict", "hbm")
EVICT_DRAM = Way("evict", "dram")
EVICT_NVME = Way("evict", "nvme")
