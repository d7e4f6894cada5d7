"""How many blocks and bytes went which way since the start: counts only; rates are made by whoever compares two moments."""

from collections import Counter
from typing import NamedTuple


class Way(NamedTuple):
    """`kind` is what happened, `tier` where it came to, left or was found; empty where none is meant."""

    kind: str
    tier: str


class Flows:
    """Ever growing sums by way."""

    def __init__(self) -> None:
        self.blocks: Counter[Way] = Counter()
        self.bytes: Counter[Way] = Counter()

    def add(self, way: Way, size_bytes: int, blocks: int = 1) -> None:
        self.blocks[way] += blocks
        self.bytes[way] += size_bytes


PUT = Way("put", "dram")
LOAD = Way("load", "dram")
PROMOTE_DRAM = Way("promote", "dram")
PROMOTE_HBM = Way("promote", "hbm")
DEMOTE = Way("demote", "dram")
WRITE = Way("write", "nvme")
EVICT_HBM = Way("evict", "hbm")
EVICT_DRAM = Way("evict", "dram")
EVICT_NVME = Way("evict", "nvme")
