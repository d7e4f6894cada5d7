"""Least recently used: the block that was not used for the longest time leaves. No parameters, no ghosts."""

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import Order
from mooncask.tiers.policies.policy import MayLeave


class LRU:
    """Evicts the least recently used block. O(1) a call."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order = Order()

    def insert(self, access: Access) -> None:
        self._order.append(access.key, access.parent)

    def touch(self, access: Access) -> None:
        if access.key in self._order:
            self._order.append(access.key, access.parent)

    def remove(self, key: int) -> None:
        self._order.discard(key)

    def evict(self, may_leave: MayLeave) -> int | None:
        return self._order.take(may_leave, ask_all=True)

    def soonest(self, most: int) -> list[int]:
        return self._order.soonest(most)

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, key: int) -> bool:
        return key in self._order
