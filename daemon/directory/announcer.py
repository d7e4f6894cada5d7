"""What a directory is yet to be told: one entry a block, the last word counts. Pure; who sends it is `valkey.py`."""

from collections.abc import Sequence
from itertools import islice
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
        self._waiting: dict[bytes, dict[bytes, bool]] = {}
        """By namespace. None is empty."""
        self._count = 0
        self.dropped = 0

    def note(self, ns_id: bytes, keys: Sequence[bytes], *, here: bool) -> int:
        """How many of them found no room."""
        if not keys:
            return 0
        waiting = self._waiting.setdefault(ns_id, {})
        before, dropped = len(waiting), 0
        if self._count + len(keys) <= self._most:
            waiting.update(dict.fromkeys(keys, here))
        else:
            dropped = self._note_what_fits(waiting, keys, here)
        self._count += len(waiting) - before
        if not waiting:
            del self._waiting[ns_id]
        self.dropped += dropped
        return dropped

    def _note_what_fits(self, waiting: dict[bytes, bool], keys: Sequence[bytes], here: bool) -> int:
        room, dropped = self._most - self._count + len(waiting), 0
        for key in keys:
            if key in waiting or len(waiting) < room:
                waiting[key] = here
            else:
                dropped += 1
        return dropped

    def take(self, most: int) -> list[Batch]:
        """Up to `most` blocks, sorted into batches: a namespace's oldest first, and the namespaces in turn."""
        batches: list[Batch] = []
        while most > 0 and self._waiting:
            ns_id = next(iter(self._waiting))
            some = self._taken(ns_id, most)
            most -= len(some)
            self._count -= len(some)
            for here in (True, False):
                keys = [key for key, is_here in some.items() if is_here is here]
                if keys:
                    batches.append(Batch(ns_id, here, keys))
        return batches

    def _taken(self, ns_id: bytes, most: int) -> dict[bytes, bool]:
        waiting = self._waiting.pop(ns_id)
        if len(waiting) <= most:
            return waiting
        some = dict(islice(waiting.items(), most))
        for key in some:
            del waiting[key]
        self._waiting[ns_id] = waiting
        return some

    def among(self, ns_id: bytes, keys: Sequence[bytes]) -> set[bytes]:
        """Which of these wait."""
        waiting = self._waiting.get(ns_id, {})
        return {key for key in keys if key in waiting}

    def clear(self) -> None:
        self._waiting.clear()
        self._count = 0

    def __len__(self) -> int:
        return self._count
