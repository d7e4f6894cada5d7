"""Chains of blocks: the path from where one begins to a block, what continues a block, and tips. Read-only.

Parents never change, so a path that was found is believed for a moment; only whether its blocks are still here can.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass

from mooncask.client.wire import BlockStat
from mooncask.errors import NoSuchBlock
from mooncask.fuse_mount.store_link import Namespace, StoreLink

LENGTH_MAX = 1 << 16
"""Blocks of one chain that are shown."""
PATHS_MAX = 64
PATH_SECONDS = 2.0
SCANNED_MAX = 200_000
SCAN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks in order. `whole` is false where the first one's parent is not here any more."""

    blocks: list[BlockStat]
    whole: bool


@dataclass(frozen=True, slots=True)
class _Tree:
    """All blocks of a namespace by what they continue."""

    children: dict[bytes, list[BlockStat]]
    tips: list[BlockStat]
    taken_seconds: float


class Chains:
    """Any thread may use it."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._paths: OrderedDict[tuple[str, bytes], tuple[float, Chain]] = OrderedDict()
        self._trees: dict[str, _Tree] = {}

    def path(self, namespace: Namespace, tip: bytes) -> Chain:
        """Raises NoSuchBlock when the tip is not here."""
        name, now = (namespace.name, tip), time.monotonic()
        with self._lock:
            found = self._paths.get(name)
        if found is not None and now - found[0] < PATH_SECONDS:
            return found[1]
        chain = self._walk(namespace, tip)
        with self._lock:
            self._paths[name] = (now, chain)
            self._paths.move_to_end(name)
            while len(self._paths) > PATHS_MAX:
                self._paths.popitem(last=False)
        return chain

    def _walk(self, namespace: Namespace, tip: bytes) -> Chain:
        blocks: list[BlockStat] = []
        block = self._link.stat(namespace, tip)
        if block is None:
            raise NoSuchBlock(namespace.name, tip.hex())
        while block is not None and len(blocks) < LENGTH_MAX:
            blocks.append(block)
            block = self._link.stat(namespace, block.parent) if block.parent else None
        blocks.reverse()
        return Chain(blocks, not blocks[0].parent)

    def children(self, namespace: Namespace, key: bytes) -> list[BlockStat]:
        """What continues a block."""
        return self._tree(namespace).children.get(key, [])

    def tips(self, namespace: Namespace) -> Iterator[BlockStat]:
        """Blocks that nothing continues, in key order."""
        return iter(self._tree(namespace).tips)

    def _tree(self, namespace: Namespace) -> _Tree:
        with self._lock:
            tree = self._trees.get(namespace.name)
        if tree is None or time.monotonic() - tree.taken_seconds > SCAN_SECONDS:
            tree = self._scan(namespace)
            with self._lock:
                self._trees = {namespace.name: tree}
        return tree

    def _scan(self, namespace: Namespace) -> _Tree:
        children: dict[bytes, list[BlockStat]] = {}
        blocks: list[BlockStat] = []
        for page in self._link.pages(namespace):
            blocks += page
            for block in page:
                if block.parent:
                    children.setdefault(block.parent, []).append(block)
            if len(blocks) >= SCANNED_MAX:
                break
        tips = [block for block in blocks if block.key not in children]
        return _Tree(children, tips, time.monotonic())
