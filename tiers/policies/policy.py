"""The interface of eviction policies: pure objects without I/O, clock or lock, shared by the daemon and the simulator.

Leaf-first (a block leaves before the blocks it continues) is the caller's rule: it passes `may_leave`.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from mooncask.tiers.block import Access

MayLeave = Callable[[int], bool]
"""Answers whether the block with this key can be evicted now (not leased, not pinned, no live children where leaf-first)."""


class EvictionPolicy(Protocol):
    """Decides which block leaves. Knows exactly the keys that were inserted and neither removed nor evicted.

    Not safe for concurrent use. Cost: O(log n) or better a call, counting each key that `may_leave` refuses as a call.
    Room is made before the newcomer is named: `evict` until it fits, then `insert`. Some policies remember keys that
    were evicted (ghosts, a bounded number): a caller that gives a number to another block calls `remove` first.
    """

    def insert(self, access: Access) -> None:
        """A block enters the cache. Inserting a key that is already there is a touch."""
        ...

    def touch(self, access: Access) -> None:
        """A block that is in the cache was used. A key that is not there is ignored."""
        ...

    def remove(self, key: int) -> None:
        """The block left for another reason (deleted, expired): leave no trace of it. Unknown keys are ignored."""
        ...

    def evict(self, may_leave: MayLeave) -> int | None:
        """Choose the next victim, remove it and return its key; None when no block may leave.

        Blocks that `may_leave` refuses keep their place in the order.
        """
        ...

    def __len__(self) -> int:
        """How many blocks are in the cache."""
        ...

    def __contains__(self, key: int) -> bool: ...


@runtime_checkable
class Ordered(Protocol):
    """A policy that can tell beforehand in which order blocks leave, as far as they may."""

    def soonest(self, most: int) -> list[int]:
        """Up to `most` keys, the first to leave first. Changes nothing."""
        ...


@runtime_checkable
class Admitting(Protocol):
    """A policy that can say that what comes is worth less than what would have to leave for it.

    Only for callers that may leave a block out; a cache whose callers must be served asks `evict` at once.
    """

    def admits(self, access: Access, may_leave: MayLeave) -> bool:
        """Whether room should be made for this block, which is to be inserted next. Changes no order."""
        ...

    def left_out(self, access: Access) -> None:
        """The block was asked for and not kept: to be remembered as one that left at once. One that is here is ignored."""
        ...
