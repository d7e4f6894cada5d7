"""SIEVE (Zhang et al., NSDI 2024): one queue, a bit a block, and a hand that moves from the oldest to the newest.

    oldest [ . . . hand -> . . . ] newest

The hand clears the bit of a used block and lets it stay, takes the first unused one, and starts again at the oldest
after the newest. Newcomers enter at the newest end and no block ever moves.
"""

from mooncask.tiers.block import Access
from mooncask.tiers.policies.policy import MayLeave


class _Node:
    """A block in the ring; `newer` and `older` link it."""

    __slots__ = ("key", "newer", "older", "used")

    def __init__(self, key: int) -> None:
        self.key = key
        self.used = False
        self.newer: _Node = self
        self.older: _Node = self


class Sieve:
    """Evicts unused blocks in one slow sweep. O(1) a call, amortised. A refused block is passed over until the next sweep."""

    __slots__ = ("_end", "_hand", "_nodes")

    def __init__(self) -> None:
        self._nodes: dict[int, _Node] = {}
        self._end = _Node(-1)  # closes the ring between the newest and the oldest
        self._hand = self._end

    def insert(self, access: Access) -> None:
        node = self._nodes.get(access.key)
        if node is not None:
            node.used = True
            return
        node = self._nodes[access.key] = _Node(access.key)
        node.older, node.newer = self._end.older, self._end
        node.older.newer = node.newer.older = node

    def touch(self, access: Access) -> None:
        node = self._nodes.get(access.key)
        if node is not None:
            node.used = True

    def remove(self, key: int) -> None:
        node = self._nodes.pop(key, None)
        if node is not None:
            self._unlink(node)

    def evict(self, may_leave: MayLeave) -> int | None:
        """Choose, remove and return the victim. Two sweeps are enough to meet every block with its bit cleared."""
        for _ in range(2 * len(self._nodes) + 1):
            node = self._hand if self._hand is not self._end else self._end.newer
            if node is self._end:
                return None
            if node.used:
                node.used = False
            elif may_leave(node.key):
                del self._nodes[node.key]
                self._unlink(node)
                return node.key
            self._hand = node.newer
        return None

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, key: int) -> bool:
        return key in self._nodes

    def _unlink(self, node: _Node) -> None:
        if self._hand is node:
            self._hand = node.newer
        node.older.newer, node.newer.older = node.newer, node.older
