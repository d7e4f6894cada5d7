"""The prefix tree of one namespace at one moment: who continues whom, and how many blocks hang below each.

The catalogue keeps parents, since that is what writing and evicting need. Children are gathered here when somebody looks at
chains, in slices of the loop's time and a thread, and kept until the namespace has changed: 28 bytes a block, nothing on the
way of a put or a get. Slots may have been reused since: whoever takes one out of a tree compares its sequence (`is_current`).
"""

import asyncio
import time
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from mooncask.tiers.catalogue import NO_PARENT, Catalogue
from mooncask.tiers.namespace import Namespace

SLICE = 4096
"""Blocks that are looked at in one turn of the loop: about half a millisecond."""
TREES_MAX = 8
REBUILD_SHARE = 20
"""A tree that took t seconds to build is taken as it is for 20 t, even when the namespace has changed."""

Ints = npt.NDArray[np.int64]


class PrefixTree:
    """Slots of the blocks of a namespace, sorted; for each its parent's position and the size of its subtree."""

    def __init__(self, slots: list[int], parents: list[int], sequences: list[int]) -> None:
        """`parents` are slots, NO_PARENT where the block before is not here. `slots` ascend."""
        self._slots = np.array(slots, np.int64)
        self._sequences = np.array(sequences, np.uint64)
        self._parents = _positions(self._slots, np.array(parents, np.int64))
        self._by_parent = np.argsort(self._parents, kind="stable")
        self._sorted_parents = self._parents[self._by_parent]
        self._children = np.bincount(self._parents[self._parents >= 0], minlength=len(slots))
        self._below = _subtree_sizes(self._parents, self._children)

    def __len__(self) -> int:
        return len(self._slots)

    def beginnings(self) -> list[int]:
        """Slots of blocks whose parent is not here: where chains begin."""
        return _listed(self._slots[self._parents < 0])

    def tips(self) -> list[int]:
        """Slots of blocks that nothing continues."""
        return _listed(self._slots[self._children == 0])

    def continuing(self, slot: int) -> list[int]:
        """Slots of the blocks that continue this one."""
        position = self._position(slot)
        if position is None:
            return []
        first, last = np.searchsorted(self._sorted_parents, [position, position + 1])
        return _listed(self._slots[self._by_parent[first:last]])

    def children(self, slot: int) -> int:
        position = self._position(slot)
        return 0 if position is None else int(self._children[position])

    def below(self, slot: int) -> int:
        """Blocks of the subtree that begins with this one, itself included."""
        position = self._position(slot)
        return 1 if position is None else int(self._below[position])

    def is_current(self, slot: int, catalogue: Catalogue) -> bool:
        """Whether the slot still has the block that it had when the tree was built."""
        position = self._position(slot)
        return position is not None and catalogue.sequence[slot] == int(self._sequences[position])

    def _position(self, slot: int) -> int | None:
        position = int(np.searchsorted(self._slots, slot))
        return position if position < len(self._slots) and self._slots[position] == slot else None


def _listed(slots: Ints) -> list[int]:
    return [int(slot) for slot in slots]


def _positions(slots: Ints, wanted: Ints) -> Ints:
    """Where each of `wanted` stands in `slots`, -1 for those that don't."""
    if not len(slots):
        return np.empty(0, np.int64)
    found = np.minimum(np.searchsorted(slots, wanted), len(slots) - 1)
    return np.where(slots[found] == wanted, found, -1)


def _subtree_sizes(parents: Ints, children: Ints) -> Ints:
    """Sizes by peeling leaves off, layer by layer. Blocks on a ring of parents, which a client may invent, count as one."""
    sizes = np.ones(len(parents), np.int64)
    missing = children.copy()
    layer = np.flatnonzero(missing == 0)
    while len(layer):
        above = parents[layer]
        inner = above >= 0
        above = above[inner]
        np.add.at(sizes, above, sizes[layer[inner]])
        np.subtract.at(missing, above, 1)
        layer = np.unique(above[missing[above] == 0])
    return sizes


class PrefixTrees:
    """The trees of the namespaces that were looked at last. Owned by the event loop's thread."""

    def __init__(self, catalogue: Catalogue, clock: Callable[[], float] = time.monotonic) -> None:
        self._catalogue = catalogue
        self._clock = clock
        self._kept: dict[int, _Kept] = {}
        self._building = asyncio.Lock()

    async def of(self, namespace: Namespace) -> PrefixTree:
        """The namespace's tree, built anew if it has changed."""
        async with self._building:
            kept = self._kept.pop(namespace.id, None)
            if kept is None or kept.is_stale(self._version(namespace), self._clock()):
                kept = await self._build(namespace)
            self._kept[namespace.id] = kept
            while len(self._kept) > TREES_MAX:
                del self._kept[next(iter(self._kept))]
            return kept.tree

    def forget_unused(self, seconds: float) -> None:
        """Trees that nobody asked for since `seconds` ago go."""
        now = self._clock()
        for number in [number for number, kept in self._kept.items() if now - kept.used_seconds > seconds]:
            del self._kept[number]

    def _version(self, namespace: Namespace) -> tuple[int, int]:
        return self._catalogue.highest_sequence, namespace.blocks

    async def _build(self, namespace: Namespace) -> "_Kept":
        began, version = self._clock(), self._version(namespace)
        slots: list[int] = []
        parents: list[int] = []
        sequences: list[int] = []
        for first in range(0, len(self._catalogue.sequence), SLICE):
            found = list(self._members(namespace, first))
            slots += found
            sequences += [self._catalogue.sequence[slot] for slot in found]
            parents += self._parents_of(namespace, found)
            await asyncio.sleep(0)
        tree = await asyncio.to_thread(PrefixTree, slots, parents, sequences)
        now = self._clock()
        return _Kept(tree, version, now, now - began)

    def _members(self, namespace: Namespace, first: int) -> Iterable[int]:
        catalogue, number = self._catalogue, namespace.id
        last = min(first + SLICE, len(catalogue.sequence))
        return (s for s in range(first, last) if catalogue.namespace[s] == number and catalogue.sequence[s])

    def _parents_of(self, namespace: Namespace, slots: list[int]) -> list[int]:
        """By key: the slot that the catalogue notes is a hint, right as long as the parent has not left and come back."""
        index, parents = namespace.index, self._catalogue.parents
        return [index.get(parents[slot], NO_PARENT) if parents[slot] else NO_PARENT for slot in slots]


class _Kept:
    def __init__(self, tree: PrefixTree, version: tuple[int, int], now: float, took_seconds: float) -> None:
        self.tree, self._version = tree, version
        self.used_seconds = now
        self._fresh_until = now + REBUILD_SHARE * took_seconds

    def is_stale(self, version: tuple[int, int], now: float) -> bool:
        self.used_seconds = now
        return version != self._version and now >= self._fresh_until
