"""One sampled cache, as a tier would be with so many bytes under such a policy: what is in it, and what it would hit. Pure.

Leaf-first as the tiers are: a block leaves only when no sampled one continues it. Not here: which blocks are sampled
(`ghosts.py`).
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mooncask.tiers.block import Access
from mooncask.tiers.policies import make_policy

REBUILT_AT_ONCE = 64
"""Blocks that go over to a cache of another rate in one piece of work."""


class Question(NamedTuple):
    """One ghost: how many bytes it would have and under which policy."""

    name: str
    capacity_bytes: int
    policy: str


@dataclass(slots=True)
class Windowed:
    """A sum over the half window that runs and the one before."""

    now: float = 0.0
    before: float = 0.0

    def turn(self) -> None:
        self.now, self.before = 0.0, self.now

    @property
    def total(self) -> float:
        return self.now + self.before


class GhostCache:
    """One sampled cache under a policy of its own. Everything belongs to one thread."""

    def __init__(self, question: Question, rate: float) -> None:
        """`rate`: the share of all blocks that is sampled."""
        self.question = question
        self.capacity = max(1, round(question.capacity_bytes * rate))
        self.policy = make_policy(question.policy, self.capacity)
        self.hit_tokens = Windowed()
        self.sizes: OrderedDict[int, int] = OrderedDict()
        """Of the blocks that are here, the latest used last."""
        self._used = 0
        self._parent: dict[int, int] = {}
        self._children: dict[int, int] = {}

    def prefix(self, ids: Sequence[int]) -> int:
        """How many of a chain's blocks are here, without a gap from its beginning."""
        sizes, count = self.sizes, 0
        for each in ids:
            if each not in sizes:
                break
            count += 1
        return count

    def use(self, accesses: Sequence[Access]) -> None:
        """Those that are here are touched last block first, as the tiers do; then the others enter in order."""
        missing = []
        for access in reversed(accesses):
            if access.key in self.sizes:
                self.sizes.move_to_end(access.key)
                self.policy.touch(access)
            else:
                missing.append(access)
        for access in reversed(missing):
            self._enter(access)

    def _enter(self, access: Access) -> None:
        size = access.size_bytes
        while self._used + size > self.capacity:
            victim = self.policy.evict(self._may_leave)
            if victim is None:
                return
            self._forget(victim)
        key, parent = access.key, access.parent
        self.policy.insert(access)
        self.sizes[key] = size
        self._used += size
        if parent is not None and parent in self.sizes:
            self._parent[key] = parent
            self._children[parent] = self._children.get(parent, 0) + 1

    def _may_leave(self, key: int) -> bool:
        return key not in self._children

    def _forget(self, key: int) -> None:
        self._used -= self.sizes.pop(key)
        parent = self._parent.pop(key, None)
        if parent is None:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
        else:
            del self._children[parent]

    def refill(self, new: "GhostCache", kept: Callable[[int], bool], now: float) -> Iterator[None]:
        """Fills `new` with the blocks that are kept, in the order of their use, in pieces of work."""
        new.hit_tokens = self.hit_tokens
        for number, (key, size) in enumerate(list(self.sizes.items())):
            if kept(key):
                new.use([Access(key, self._parent.get(key), 0, size, now)])
            if number % REBUILT_AT_ONCE == 0:
                yield
