"""Blocks that were here and that an engine computed all the same, since that was faster: told by the engines, for `why` and metrics."""

import time
from collections import Counter, OrderedDict
from typing import NamedTuple

from mooncask.daemon.insight.verdicts import clock_text

TOLD_MAX = 4096
"""Chains of which the latest word is kept."""


class Recomputed(NamedTuple):
    """The latest word on one chain: `blocks` from a key on. `told_seconds` is the wall clock."""

    blocks: int
    tier: str
    load_seconds: float
    compute_seconds: float
    told_seconds: float


class Recomputations:
    """What engines told; a later word on the same block takes the place of an earlier one."""

    def __init__(self, most: int = TOLD_MAX) -> None:
        self._most = most
        self._told: OrderedDict[tuple[int, bytes], Recomputed] = OrderedDict()
        self.blocks: Counter[str] = Counter()
        """By tier, since the start."""

    def note(
        self, namespace: int, key: bytes, blocks: int, tier: str, load_seconds: float, compute_seconds: float
    ) -> None:
        self.blocks[tier] += blocks
        self._told[namespace, key] = Recomputed(blocks, tier, load_seconds, compute_seconds, time.time())
        self._told.move_to_end((namespace, key))
        if len(self._told) > self._most:
            self._told.popitem(last=False)

    def of(self, namespace: int, key: bytes) -> Recomputed | None:
        """The latest word on blocks from `key` on."""
        return self._told.get((namespace, key))


def recomputed_text(index: int, told: Recomputed) -> str:
    """`told` of the chain's block `index` and those after it, as a sentence."""
    blocks = f"block {index}" if told.blocks == 1 else f"blocks {index} to {index + told.blocks - 1}"
    return (
        f"{blocks}: computed at {clock_text(told.told_seconds)} although in {told.tier}, since an engine expected "
        f"{told.load_seconds:.3g} s for loading and {told.compute_seconds:.3g} s for computing"
    )
