"""First in, first out: use does not matter. The baseline that a cleverer policy must beat."""

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import Order
from mooncask.tiers.policies.policy import MayLeave


class FIFO:
    """Evicts the block that entered first. O(1) a call."""

    __slots__ = ("_order",)

    def __init__(self) -> None:
        self._order = Order()

    def insert(self, access: Access) -> None:
        if access.key not in self._order:
            self._order.append(access.key, access.parent)

    def touch(self, access: Access) -> None:
        """Use changes nothing here."""

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
