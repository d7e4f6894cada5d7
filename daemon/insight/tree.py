"""The prefix tree of one namespace at one moment: who continues whom, and how many blocks hang below each.

The catalogue keeps parents, since that is what writing and evicting need. Children are gathered here when somebody looks at
chains, in slices of the loop's time and a thread, and kept until the namespace has changed: 56 bytes a block, nothing on the
way of a put or a get. Slots may have been reused since: whoever takes one out of a tree compares its sequence.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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


class Members(NamedTuple):
    """Blocks as they were when the tree was built: columns of equal length."""

    slots: Ints
    sequences: Ints


class Counts(NamedTuple):
    """Of one block: those that continue it, and those of the subtree that begins with it, itself included."""

    children: int
    below: int


class PrefixTree:
    """Slots of the blocks of a namespace, sorted; for each its parent's position and the size of its subtree."""

    def __init__(self, slots: Ints, parents: Ints, sequences: Ints) -> None:
        """`parents` are slots, NO_PARENT where the block before is not here. `slots` ascend."""
        self._slots = slots
        self._sequences = sequences
        self._parents = _positions(slots, parents)
        self._by_parent = np.argsort(self._parents, kind="stable")
        self._sorted_parents = self._parents[self._by_parent]
        self._children = np.bincount(self._parents[self._parents >= 0], minlength=len(slots))
        self._below = _subtree_sizes(self._parents, self._children)

    def __len__(self) -> int:
        return len(self._slots)

    def beginnings(self) -> Members:
        """Blocks whose parent is not here: where chains begin."""
        return self._members(self._parents < 0)

    def tips(self) -> Members:
        """Blocks that nothing continues."""
        return self._members(self._children == 0)

    def continuing(self, slot: int) -> Members:
        """The blocks that continue this one."""
        [position] = _positions(self._slots, np.array([slot], np.int64))
        if position < 0:
            return self._members(np.empty(0, np.int64))
        first, last = np.searchsorted(self._sorted_parents, [position, position + 1])
        return self._members(self._by_parent[first:last])

    def counts(self, slots: Sequence[int]) -> list[Counts]:
        """One for each slot; a block that is younger than the tree has nothing below it."""
        positions = _positions(self._slots, np.array(slots, np.int64)).tolist()
        return [Counts(int(self._children[p]), int(self._below[p])) if p >= 0 else Counts(0, 1) for p in positions]

    def _members(self, chosen: npt.NDArray[Any]) -> Members:
        return Members(self._slots[chosen], self._sequences[chosen])


def _positions(slots: Ints, wanted: Ints) -> Ints:
    """Where each of `wanted` stands in `slots`, -1 for those that don't."""
    if not len(slots):
        return np.full(len(wanted), -1, np.int64)
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
        """An array a slice and column, so that neither the loop nor the thread has to go through a million at once."""
        began, version = self._clock(), self._version(namespace)
        slices: list[npt.NDArray[np.int64]] = [np.empty((3, 0), np.int64)]
        for first in range(0, len(self._catalogue.sequence), SLICE):
            slots = self._slots_of(namespace, first)
            sequences = [self._catalogue.sequence[slot] for slot in slots]
            slices.append(np.array([slots, self._parents_of(namespace, slots), sequences], np.int64))
            await asyncio.sleep(0)
        tree = await asyncio.to_thread(_tree_of, slices)
        now = self._clock()
        return _Kept(tree, version, now, now - began)

    def _slots_of(self, namespace: Namespace, first: int) -> list[int]:
        catalogue, number = self._catalogue, namespace.id
        last = min(first + SLICE, len(catalogue.sequence))
        return [s for s in range(first, last) if catalogue.namespace[s] == number and catalogue.sequence[s]]

    def _parents_of(self, namespace: Namespace, slots: list[int]) -> list[int]:
        """By key: the slot that the catalogue notes is a hint, right as long as the parent has not left and come back."""
        index, parents = namespace.index, self._catalogue.parents
        return [index.get(parents[slot], NO_PARENT) if parents[slot] else NO_PARENT for slot in slots]


def _tree_of(slices: list[npt.NDArray[np.int64]]) -> PrefixTree:
    slots, parents, sequences = np.concatenate(slices, axis=1)
    return PrefixTree(slots, parents, sequences)


class _Kept:
    def __init__(self, tree: PrefixTree, version: tuple[int, int], now: float, took_seconds: float) -> None:
        self.tree, self._version = tree, version
        self.used_seconds = now
        self._fresh_until = now + REBUILD_SHARE * took_seconds

    def is_stale(self, version: tuple[int, int], now: float) -> bool:
        self.used_seconds = now
        return version != self._version and now >= self._fresh_until
