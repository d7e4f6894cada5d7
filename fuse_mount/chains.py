"""Chains of blocks: the path from where one begins to a block, what continues a block, and tips. Read-only.

The daemon's pages tell how blocks hang together. Parents never change, so a path that was found is believed for a moment.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mooncask.client.control import Children, Tips
from mooncask.client.control_client import ControlClient
from mooncask.client.wire import BlockStat
from mooncask.errors import NoSuchBlock
from mooncask.fuse_mount.store_link import Namespace, StoreLink

PAGE = 1000
PATHS_MAX = 64
PATH_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Chain:
    """Blocks in order. `whole` is false where the first one's parent is not here any more."""

    blocks: list[BlockStat]
    whole: bool


class Chains:
    """Any thread may use it; the pages are asked for one after the other."""

    def __init__(self, link: StoreLink, pages: ControlClient) -> None:
        self._link, self._pages = link, pages
        self._lock = threading.Lock()
        self._paths: OrderedDict[tuple[str, bytes], tuple[float, Chain]] = OrderedDict()

    def path(self, namespace: Namespace, tip: bytes) -> Chain:
        """Raises NoSuchBlock when the tip is not here."""
        name, now = (namespace.name, tip), time.monotonic()
        with self._lock:
            found = self._paths.get(name)
        if found is not None and now - found[0] < PATH_SECONDS:
            return found[1]
        chain = self._ask(namespace, tip)
        with self._lock:
            self._paths[name] = (now, chain)
            self._paths.move_to_end(name)
            while len(self._paths) > PATHS_MAX:
                self._paths.popitem(last=False)
        return chain

    def _ask(self, namespace: Namespace, tip: bytes) -> Chain:
        nodes = self._pages.path(namespace.name, tip).nodes
        stats = self._link.client.stat(namespace.handle, [bytes.fromhex(node.key) for node in nodes])
        if not stats or stats[-1] is None:
            raise NoSuchBlock(namespace.name, tip.hex())
        return Chain([block for block in stats if block is not None], not nodes[0].parent)

    def children(self, namespace: Namespace, key: bytes) -> Iterator[bytes]:
        """What continues a block, in key order."""
        return _keys(lambda after: self._pages.children(namespace.name, key, after, PAGE))

    def tips(self, namespace: Namespace) -> Iterator[bytes]:
        """Blocks that nothing continues, in key order."""
        return _keys(lambda after: self._pages.tips(namespace.name, after, PAGE))


def _keys(ask: Callable[[str], Children | Tips]) -> Iterator[bytes]:
    after = ""
    while True:
        page = ask(after)
        for node in page.nodes:
            yield bytes.fromhex(node.key)
        if not page.more or not page.nodes:
            return
        after = page.nodes[-1].key
