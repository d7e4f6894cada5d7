"""What routers are yet to be told, in order; neighbours of one chain become one event. Pure, and bounded.

Past its bounds all that waits is dropped and `AllBlocksCleared` is told instead: a router that missed a removal would send
requests to blocks that are gone, one that forgets a block only misses a hit.
"""

import sys
from array import array
from collections import deque
from typing import NamedTuple

from mooncask.daemon.kv_events.messages import AllBlocksCleared, BlockRemoved, BlockStored, Event

BLOCKS_MAX = 1 << 16
BYTES_MAX = 64 << 20
"""Token ids that may wait, at 4 bytes each."""


class Stored(NamedTuple):
    """`tokens` are u32, little endian; `parent` is None for a chain's first block."""

    block: int
    parent: int | None
    tokens: bytes


class News:
    """Appends are cheap: they happen while blocks are published and evicted."""

    def __init__(self, blocks_max: int = BLOCKS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._blocks_max, self._bytes_max = blocks_max, bytes_max
        self._waiting: deque[Stored | int] = deque()
        self._bytes = 0
        self._cleared = False
        self.dropped = 0
        """Blocks whose coming or going was not told."""

    def stored(self, block: Stored) -> None:
        self._make_room(len(block.tokens))
        self._waiting.append(block)
        self._bytes += len(block.tokens)

    def removed(self, block: int) -> None:
        self._make_room(0)
        self._waiting.append(block)

    def clear(self) -> None:
        """Nothing that was said so far holds any more."""
        self._waiting.clear()
        self._bytes, self._cleared = 0, True

    def take(self, most: int) -> list[Event]:
        """Events of up to `most` blocks, the oldest first; they wait no longer."""
        events: list[Event] = [AllBlocksCleared()] if self._cleared else []
        self._cleared = False
        run: list[Stored | int] = []
        for _ in range(min(most, len(self._waiting))):
            item = self._waiting.popleft()
            if isinstance(item, Stored):
                self._bytes -= len(item.tokens)
            if run and not _follows(run[-1], item):
                events.append(_event(run))
                run = []
            run.append(item)
        return [*events, _event(run)] if run else events

    def __len__(self) -> int:
        return len(self._waiting) + self._cleared

    def _make_room(self, size: int) -> None:
        if len(self._waiting) >= self._blocks_max or self._bytes + size > self._bytes_max:
            self.dropped += len(self._waiting)
            self.clear()


def _follows(before: Stored | int, item: Stored | int) -> bool:
    """Whether both belong into one event: removals do, and a block behind its parent."""
    if isinstance(before, Stored) and isinstance(item, Stored):
        return item.parent == before.block and len(item.tokens) == len(before.tokens)
    return not isinstance(before, Stored) and not isinstance(item, Stored)


def _event(run: list[Stored | int]) -> Event:
    stored = [item for item in run if isinstance(item, Stored)]
    if not stored:
        return BlockRemoved([item for item in run if not isinstance(item, Stored)])
    tokens = _tokens(b"".join(item.tokens for item in stored))
    return BlockStored([item.block for item in stored], stored[0].parent, tokens, len(stored[0].tokens) // 4)


def _tokens(data: bytes) -> list[int]:
    ids = array("I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()
