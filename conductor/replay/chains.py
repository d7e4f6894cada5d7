"""Which resident blocks are leaves: those that no resident block continues."""

from collections.abc import Sequence


class Chains:
    """Counts the resident children of each resident block, and holds the chain of the request being inserted."""

    __slots__ = ("_children", "_held", "_parent")

    def __init__(self) -> None:
        self._parent: dict[int, int | None] = {}
        self._children: dict[int, int] = {}
        self._held: frozenset[int] = frozenset()

    def hold(self, keys: Sequence[int]) -> None:
        """Keep these blocks from leaving until the next call."""
        self._held = frozenset(keys)

    def add(self, key: int, parent: int | None) -> None:
        """A block became resident; its parent is (or it has none)."""
        self._parent[key] = parent
        if parent is not None:
            self._children[parent] = self._children.get(parent, 0) + 1

    def discard(self, key: int) -> None:
        """A block left."""
        parent = self._parent.pop(key)
        if parent is None:
            return
        left = self._children[parent] - 1
        if left:
            self._children[parent] = left
        else:
            del self._children[parent]

    def may_leave(self, key: int) -> bool:
        """Whether the block is a leaf and not held."""
        return key not in self._children and key not in self._held
