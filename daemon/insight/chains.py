"""Chains of blocks for whoever walks them: what continues a block, the way to a block, and where chains end."""

import asyncio
import heapq
from collections.abc import Sequence
from typing import NamedTuple

from mooncask.client import control
from mooncask.daemon.insight.blocks import key_of, key_text, tiers_of
from mooncask.daemon.insight.tree import Members, PrefixTree, PrefixTrees
from mooncask.errors import NoSuchBlock
from mooncask.tiers.catalogue import Catalogue
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

NODES_MAX = 1000
"""Of one answer."""
PATH_MAX = 16_384
"""Blocks of one path; of a longer chain the last ones are told."""
SLICE = 1024


class _Page(NamedTuple):
    slots: list[int]
    more: bool


class Chains:
    """Answers from the trees of namespaces, a page at a time, in key order."""

    def __init__(self, store: Store, trees: PrefixTrees) -> None:
        self._store = store
        self._catalogue: Catalogue = store.catalogue
        self._trees = trees

    async def children(self, namespace: Namespace, parent: str, after: str, limit: int) -> control.Children:
        """What continues `parent`, or where chains begin. Raises NoSuchBlock for a parent that is not here."""
        slot = self._slot(namespace, parent) if parent else None
        tree = await self._trees.of(namespace)
        members = tree.beginnings() if slot is None else tree.continuing(slot)
        page = await self._page(members, key_of(namespace, after), limit)
        nodes = self._nodes(namespace, tree, page.slots)
        return control.Children(
            namespace=namespace.spec.name, parent=parent, nodes=nodes, more=page.more, counted_max=len(tree)
        )

    async def tips(self, namespace: Namespace, after: str, limit: int) -> control.Tips:
        """Blocks that nothing continues."""
        tree = await self._trees.of(namespace)
        page = await self._page(tree.tips(), key_of(namespace, after), limit)
        return control.Tips(
            namespace=namespace.spec.name, nodes=self._nodes(namespace, tree, page.slots), more=page.more
        )

    async def path(self, namespace: Namespace, key: str) -> control.Path:
        """From where the chain begins to `key`. Raises NoSuchBlock."""
        self._slot(namespace, key)
        tree = await self._trees.of(namespace)
        slots = self._way_to(namespace, self._slot(namespace, key))
        nodes: list[control.ChainNode] = []
        for first in range(0, len(slots), SLICE):
            nodes += self._nodes(namespace, tree, slots[first : first + SLICE])
            await asyncio.sleep(0)
        return control.Path(namespace=namespace.spec.name, nodes=nodes)

    def _slot(self, namespace: Namespace, text: str) -> int:
        key = key_of(namespace, text)
        if not self._store.has(namespace, key):
            raise NoSuchBlock(namespace.spec.name, text[:80])
        return namespace.index[key]

    def _way_to(self, namespace: Namespace, slot: int) -> list[int]:
        """Slots from the beginning to this one. A ring of parents, which only a faulty client makes, is cut where it closes."""
        way, seen = [slot], {slot}
        while len(way) < PATH_MAX:
            above = namespace.index.get(self._catalogue.parents[way[-1]])
            if above is None or above in seen:
                break
            way.append(above)
            seen.add(above)
        return way[::-1]

    async def _page(self, members: Members, after: bytes, limit: int) -> _Page:
        """The first of `members` in key order, those behind `after`; what has left since is no more told."""
        wanted = min(limit, NODES_MAX) + 1
        keys, sequences = self._catalogue.keys, self._catalogue.sequence
        best: list[tuple[bytes, int, int]] = []
        for first in range(0, len(members.slots), SLICE):
            part = slice(first, first + SLICE)
            pairs = zip(members.slots[part].tolist(), members.sequences[part].tolist(), strict=True)
            named = [(keys[slot], slot, seen) for slot, seen in pairs if sequences[slot] == seen and keys[slot] > after]
            best = heapq.nsmallest(wanted, best + named)
            await asyncio.sleep(0)
        still = [slot for _, slot, seen in best if sequences[slot] == seen]
        return _Page(still[: wanted - 1], len(best) == wanted)

    def _nodes(self, namespace: Namespace, tree: PrefixTree, slots: Sequence[int]) -> list[control.ChainNode]:
        catalogue = self._catalogue
        return [
            control.ChainNode(
                key=key_text(namespace, catalogue.keys[slot]),
                parent=key_text(namespace, catalogue.parents[slot]),
                depth=catalogue.depth[slot],
                tokens=catalogue.tokens[slot],
                size_bytes=catalogue.size[slot],
                tiers=tiers_of(catalogue, slot),
                hits=catalogue.hits[slot],
                created_seconds=float(catalogue.created[slot]),
                children=counts.children,
                blocks_below=counts.below,
            )
            for slot, counts in zip(slots, tree.counts(slots), strict=True)
        ]
