"""Which files have had more than one version while the kernel knew them.

The kernel has one length and one set of pages for a path. While somebody still reads a version that was replaced, his pages
would be given to those who open the next one, and for up to a second the old length would cut the new bytes off. So a file
that was seen to change is opened past the kernel's pages from then on; all others keep them. What this does not mend: a
reader that has an older version open sees the newer one's end once the kernel is told of it.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

from mooncask.client.wire import BlockStat
from mooncask.fuse_mount.attributes import same_version
from mooncask.fuse_mount.store_link import Namespace

FILES_MAX = 16_384
"""Files that are remembered, those that the kernel was told of last: some megabytes."""


@dataclass(slots=True)
class _Told:
    block: BlockStat
    changed: bool = False


class Versions:
    """What the kernel was told. Any thread may use it."""

    def __init__(self) -> None:
        self._told: OrderedDict[tuple[str, bytes], _Told] = OrderedDict()
        self._lock = threading.Lock()

    def tell(self, namespace: Namespace, block: BlockStat) -> bool:
        """Notes that the kernel is told of this version; whether it was told of another one of the same file before."""
        name = (namespace.name, block.key)
        with self._lock:
            told = self._told.setdefault(name, _Told(block))
            told.changed = told.changed or not same_version(told.block, block)
            self._told.move_to_end(name)
            if len(self._told) > FILES_MAX:
                self._told.popitem(last=False)
            return told.changed
