"""Queues of keys, first to leave in front: what the eviction policies are built of.

`Order` answers "the first key that may leave" without asking the same refused keys again and again, `SizedOrder` also
adds up bytes, `Ghosts` remembers keys that have left. Not here: which queue a key belongs in (the policies).
"""

from collections import OrderedDict
from itertools import chain, islice
from typing import NamedTuple

from mooncask.tiers.policies.policy import MayLeave

ASK_AGAIN_MAX = 64
"""How many formerly refused keys one `take` asks again. Up to this many waiting ones the order is exact; beyond it
they take turns, so that n evictions past r leased blocks ask 64 n times and not r n times."""

QUICK_THEN_ALL = (False, True)
"""The values of `ask_all` that an eviction over several queues goes through."""


class Order:
    """Keys from the first to leave to the last; each carries its parent in the chain, or None.

        front [ refused ones, in order | ready, in order ] back

    A key that was refused moves to the left part and keeps its place there until it is used again, leaves, or is
    allowed to leave. When a child leaves, its waiting parent is asked first next time: it may be a leaf now.
    """

    __slots__ = ("_freed", "_ready", "_refused", "_turn")

    def __init__(self) -> None:
        self._ready: OrderedDict[int, int | None] = OrderedDict()
        self._refused: OrderedDict[int, int | None] = OrderedDict()
        self._freed: dict[int, None] = {}
        self._turn: list[int] = []

    def __len__(self) -> int:
        return len(self._ready) + len(self._refused)

    def __contains__(self, key: int) -> bool:
        return key in self._ready or key in self._refused

    def append(self, key: int, parent: int | None) -> None:
        """Put `key` at the back, whether it was here or not."""
        if key in self._ready:
            self._ready.move_to_end(key)
        elif self._refused:
            self._refused.pop(key, None)
        self._ready[key] = parent

    def discard(self, key: int) -> bool:
        """Take `key` out; whether it was here."""
        for part in (self._ready, self._refused):
            if key in part:
                self._release(part.pop(key))
                return True
        return False

    def parent(self, key: int) -> int | None:
        """The parent of a key that is here."""
        return self._ready[key] if key in self._ready else self._refused[key]

    def take(self, may_leave: MayLeave, ask_all: bool = False) -> int | None:
        """Take out the first key that may leave; None when none was found, with nothing changed in the order.

        None is certain only with `ask_all`; a policy of several queues first tries each of them without.
        """
        key = self.first(may_leave, ask_all)
        if key is not None:
            self.discard(key)
        return key

    def first(self, may_leave: MayLeave, ask_all: bool = False) -> int | None:
        """Like `take`, but the key is left where it is."""
        key = self._first_refused(may_leave) if self._refused else None
        if key is None:
            key = self._first_ready(may_leave)
        if key is None and ask_all and len(self._refused) > ASK_AGAIN_MAX:
            key = next((key for key in self._refused if may_leave(key)), None)
        return key

    def soonest(self, most: int) -> list[int]:
        """Up to `most` keys from the front, whether they may leave or not."""
        return list(islice(chain(self._refused, self._ready), most))

    def _first_ready(self, may_leave: MayLeave) -> int | None:
        ready = self._ready
        while ready:
            key = next(iter(ready))
            if may_leave(key):
                return key
            self._refused[key] = ready.pop(key)
        return None

    def _first_refused(self, may_leave: MayLeave) -> int | None:
        if len(self._refused) <= ASK_AGAIN_MAX:
            self._freed.clear()
            return next((key for key in self._refused if may_leave(key)), None)
        while self._freed:
            key, _ = self._freed.popitem()
            if key in self._refused and may_leave(key):
                return key
        for _ in range(ASK_AGAIN_MAX):
            if not self._turn:
                self._turn = list(reversed(self._refused))
            key = self._turn.pop()
            if key in self._refused and may_leave(key):
                return key
        return None

    def _release(self, parent: int | None) -> None:
        if parent is not None and parent in self._refused:
            self._freed[parent] = None


class Departed(NamedTuple):
    """A key that a `SizedOrder` gave up."""

    key: int
    parent: int | None
    size_bytes: int


class SizedOrder:
    """An `Order` that knows its keys' sizes; `size_bytes` is their sum."""

    __slots__ = ("_order", "_sizes", "size_bytes")

    def __init__(self) -> None:
        self._order = Order()
        self._sizes: dict[int, int] = {}
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def append(self, key: int, parent: int | None, size_bytes: int) -> None:
        """Put `key` at the back, whether it was here or not."""
        self.size_bytes += size_bytes - self._sizes.get(key, 0)
        self._sizes[key] = size_bytes
        self._order.append(key, parent)

    def discard(self, key: int) -> bool:
        """Take `key` out; whether it was here."""
        if key not in self._sizes:
            return False
        self._order.discard(key)
        self.size_bytes -= self._sizes.pop(key)
        return True

    def take(self, may_leave: MayLeave, ask_all: bool = False) -> Departed | None:
        """Take out the first key that may leave; None when none was found (see `Order.take`)."""
        key = self._order.first(may_leave, ask_all)
        if key is None:
            return None
        departed = Departed(key, self._order.parent(key), self._sizes[key])
        self.discard(key)
        return departed


class Ghosts:
    """Keys of blocks that have left, oldest first, with the bytes they had. They hold no data."""

    __slots__ = ("_sizes", "size_bytes")

    def __init__(self) -> None:
        self._sizes: OrderedDict[int, int] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def append(self, departed: Departed) -> None:
        """Remember a key that just left."""
        self.discard(departed.key)
        self._sizes[departed.key] = departed.size_bytes
        self.size_bytes += departed.size_bytes

    def discard(self, key: int) -> bool:
        """Forget `key`; whether it was remembered."""
        size_bytes = self._sizes.pop(key, None)
        if size_bytes is None:
            return False
        self.size_bytes -= size_bytes
        return True

    def shrink(self, size_bytes_max: float) -> None:
        """Forget the oldest until at most `size_bytes_max` are remembered."""
        while self._sizes and self.size_bytes > size_bytes_max:
            self.size_bytes -= self._sizes.popitem(last=False)[1]
