"""What this node has seen of each other one: bytes, blocks, failures, pace. For people, for metrics, and for choosing."""

import time
from collections import OrderedDict
from dataclasses import dataclass

PEERS_MAX = 1024
PACE_UNKNOWN = 1e9
"""Bytes a second that are assumed until the first block has come."""
_WEIGHT = 0.2
"""Of the last transfer in the mean pace."""


@dataclass(slots=True)
class PeerFigures:
    """Sums since the start. `pace` is bytes a second of the last transfers, 0 = none yet."""

    name: str
    blocks_pulled: int = 0
    bytes_pulled: int = 0
    blocks_pushed: int = 0
    """Blocks that it pulled from here because this node asked it to."""
    bytes_pushed: int = 0
    failures: int = 0
    """Calls that failed or came too late."""
    not_there: int = 0
    """Blocks that the directory said it has, and it had not."""
    wrong: int = 0
    """Blocks whose bytes were not those of their checksum, or that were others than asked for."""
    pace: float = 0.0
    last_problem: str = ""
    last_problem_seconds: float = 0.0
    """Wall clock."""

    def pulled(self, blocks: int, size_bytes: int, seconds: float) -> None:
        self.blocks_pulled += blocks
        self.bytes_pulled += size_bytes
        pace = size_bytes / max(seconds, 1e-6)
        self.pace = pace if not self.pace else (1 - _WEIGHT) * self.pace + _WEIGHT * pace

    def pushed(self, blocks: int, size_bytes: int) -> None:
        self.blocks_pushed += blocks
        self.bytes_pushed += size_bytes

    def problem(self, text: str) -> None:
        self.last_problem, self.last_problem_seconds = text, time.time()


class PeerLedger:
    """By node name: a node keeps its figures when it starts anew. The longest unused are forgotten."""

    def __init__(self) -> None:
        self._figures: OrderedDict[str, PeerFigures] = OrderedDict()

    def of(self, name: str) -> PeerFigures:
        found = self._figures.pop(name, None) or PeerFigures(name)
        self._figures[name] = found
        if len(self._figures) > PEERS_MAX:
            self._figures.popitem(last=False)
        return found

    def all(self) -> list[PeerFigures]:
        return sorted(self._figures.values(), key=lambda figures: figures.name)

    def pace(self) -> float:
        """Bytes a second that a pull may be expected to have."""
        known = [figures.pace for figures in self._figures.values() if figures.pace]
        return sum(known) / len(known) if known else PACE_UNKNOWN
