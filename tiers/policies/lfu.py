"""Least frequently used: the block with the fewest uses since it entered leaves, the least recently used among equals.

A block's count starts at 1 and dies with the block. Counts do not age; for data whose popularity drifts, take `arc` or
`s3fifo`.
"""

from bisect import insort
from itertools import product

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import QUICK_THEN_ALL, Order
from mooncask.tiers.policies.policy import MayLeave


class LFU:
    """Evicts the least frequently used block. O(1) a call, plus the number of distinct counts below the victim's.

    One `Order` a count; `_counts` lists the counts in use in ascending order.
    """

    __slots__ = ("_count_of", "_counts", "_orders")

    def __init__(self) -> None:
        self._count_of: dict[int, int] = {}
        self._orders: dict[int, Order] = {}
        self._counts: list[int] = []

    def insert(self, access: Access) -> None:
        if access.key in self._count_of:
            self.touch(access)
        else:
            self._place(access, 1)

    def touch(self, access: Access) -> None:
        count = self._count_of.get(access.key)
        if count is not None:
            self._displace(access.key, count)
            self._place(access, count + 1)

    def remove(self, key: int) -> None:
        count = self._count_of.pop(key, None)
        if count is not None:
            self._displace(key, count)

    def evict(self, may_leave: MayLeave) -> int | None:
        for ask_all, count in product(QUICK_THEN_ALL, self._counts):
            key = self._orders[count].take(may_leave, ask_all)
            if key is not None:
                del self._count_of[key]
                self._forget_if_empty(count)
                return key
        return None

    def __len__(self) -> int:
        return len(self._count_of)

    def __contains__(self, key: int) -> bool:
        return key in self._count_of

    def _place(self, access: Access, count: int) -> None:
        order = self._orders.get(count)
        if order is None:
            order = self._orders[count] = Order()
            insort(self._counts, count)
        order.append(access.key, access.parent)
        self._count_of[access.key] = count

    def _displace(self, key: int, count: int) -> None:
        self._orders[count].discard(key)
        self._forget_if_empty(count)

    def _forget_if_empty(self, count: int) -> None:
        if not self._orders[count]:
            del self._orders[count]
            self._counts.remove(count)
