"""SIEVE (Zhang et al., NSDI 2024): one queue, a bit a block, and a hand that moves from the oldest to the newest.

    oldest [ . . . hand -> . . . ] newest

The hand clears the bit of a used block and lets it stay, takes the first unused one, and starts again at the oldest
after the newest. Newcomers enter at the newest end and no block ever moves.

A block that the hand would take but that is refused leaves the queue for `_passed` and is asked again before the hand
moves on, as if the hand had stopped there. Used meanwhile, it enters the queue again just behind the hand.
"""

from mooncask.tiers.block import Access
from mooncask.tiers.policies.order import Order
from mooncask.tiers.policies.policy import MayLeave


class _Node:
    """A block in the ring; `newer` and `older` link it."""

    __slots__ = ("key", "newer", "older", "parent", "used")

    def __init__(self, key: int, parent: int | None) -> None:
        self.key, self.parent = key, parent
        self.used = False
        self.newer: _Node = self
        self.older: _Node = self


class Sieve:
    """Evicts unused blocks in one slow sweep. O(1) a call, amortised."""

    __slots__ = ("_end", "_hand", "_nodes", "_passed")

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._end = _Node(-1, None)  # closes the ring between the newest and the oldest
        self._hand = self._end
        self._passed = Order()

    def insert(self, access: Access) -> None:
        if access.key in self._nodes:
            self.touch(access)
            return
        node = self._nodes[access.key] = _Node(access.key, access.parent)
        self._link(node, before=self._end)

    def touch(self, access: Access) -> None:
        node = self._nodes.get(access.key)
        if node is None:
            return
        if self._passed.discard(access.key):
            self._link(node, before=self._hand)
        else:
            node.used = True

    def remove(self, key: int) -> None:
        node = self._nodes.pop(key, None)
        if node is not None and not self._passed.discard(key):
            self._unlink(node)

    def evict(self, may_leave: MayLeave) -> int | None:
        key = self._passed.take(may_leave)
        if key is None:
            key = self._sweep(may_leave)
        if key is None:
            key = self._passed.take(may_leave, ask_all=True)
        if key is not None:
            del self._nodes[key]
        return key

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: int) -> bool:
        return key in self._nodes

    def _sweep(self, may_leave: MayLeave) -> int | None:
        """Move the hand to a victim and unlink it. Ends at the latest when every block was found unused and refused."""
        end = self._end
        while end.newer is not end:
            node = self._hand if self._hand is not end else end.newer
            self._hand = node.newer
            if node.used:
                node.used = False
                continue
            self._unlink(node)
            if may_leave(node.key):
                return node.key
            self._passed.append(node.key, node.parent)
        return None

    def _link(self, node: _Node, before: _Node) -> None:
        node.older, node.newer = before.older, before
        node.older.newer = node.newer.older = node

    def _unlink(self, node: _Node) -> None:
        if self._hand is node:
            self._hand = node.newer
        node.older.newer, node.newer.older = node.newer, node.older
