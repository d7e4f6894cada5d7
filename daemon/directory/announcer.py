"""What a directory is yet to be told: one entry a block, the last word counts. Pure; who sends it is `valkey.py`."""

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

QUEUE_MAX = 1 << 18
"""Blocks that wait; past that news is dropped, and all is told anew later."""


class Batch(NamedTuple):
    """Blocks of one namespace that this node has, or has no longer."""

    ns_id: bytes
    here: bool
    keys: list[bytes]


class Announcements:
    """Appends are cheap: this is called while a block is published."""

    def __init__(self, most: int = QUEUE_MAX) -> None:
        self._most = most
        self._waiting: OrderedDict[tuple[bytes, bytes], bool] = OrderedDict()
        self.dropped = 0

    def note(self, ns_id: bytes, keys: Sequence[bytes], *, here: bool) -> int:
        """How many of them found no room."""
        waiting, dropped = self._waiting, 0
        for key in keys:
            name = (ns_id, key)
            if name in waiting or len(waiting) < self._most:
                waiting[name] = here
            else:
                dropped += 1
        self.dropped += dropped
        return dropped

    def take(self, most: int) -> list[Batch]:
        """Up to `most` blocks, the oldest first, sorted into batches."""
        batches: dict[tuple[bytes, bool], Batch] = {}
        for _ in range(min(most, len(self._waiting))):
            (ns_id, key), here = self._waiting.popitem(last=False)
            batches.setdefault((ns_id, here), Batch(ns_id, here, [])).keys.append(key)
        return list(batches.values())

    def among(self, ns_id: bytes, keys: Sequence[bytes]) -> set[bytes]:
        """Which of these wait."""
        return {key for key in keys if (ns_id, key) in self._waiting}

    def clear(self) -> None:
        self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
