"""What is open: handles by number, and reading through each kind of them."""

import ctypes
import itertools
import threading
from dataclasses import dataclass
from typing import Any

from mooncask.errors import MooncaskError
from mooncask.fuse_mount.drafts import Draft
from mooncask.fuse_mount.leased_views import BlockFile, LeasedViews
from mooncask.fuse_mount.long_objects import LongFile, LongObjects
from mooncask.fuse_mount.open_folders import OpenFolder
from mooncask.fuse_mount.tree import Found


@dataclass(frozen=True, slots=True)
class TextFile:
    """A generated text, as it was when it was opened."""

    content: bytes


@dataclass(slots=True, eq=False)
class Writing:
    """One open of a draft."""

    draft: Draft


OpenFile = BlockFile | LongFile | TextFile | Writing | OpenFolder[Found]


class OpenFiles:
    """Any thread may use it."""

    def __init__(self, views: LeasedViews, long_objects: LongObjects) -> None:
        self._views, self._long_objects = views, long_objects
        self._numbers = itertools.count(1)
        self._open: dict[int, OpenFile] = {}
        self._lock = threading.Lock()

    def add(self, file: OpenFile) -> int:
        number = next(self._numbers)
        self._open[number] = file
        return number

    def get(self, number: int) -> OpenFile:
        return self._open[number]

    def remove(self, number: int) -> OpenFile:
        """Ends its lease if it has one."""
        file = self._open.pop(number)
        if isinstance(file, BlockFile):
            self._views.release(file)
        return file

    def read_into(self, number: int, target: Any, size: int, offset: int) -> int:
        """Copies up to `size` bytes from `offset` on to `target`, a pointer; returns how many there were."""
        file = self._open[number]
        if isinstance(file, BlockFile):
            if offset >= file.block.size:
                return 0
            view = self._views.view(file)
            count = min(size, view.size - offset)
            ctypes.memmove(target, view.address + offset, count)  # lets other threads run
            return count
        data = self._bytes(file, size, offset)
        ctypes.memmove(target, data, len(data))
        return len(data)

    def _bytes(self, file: OpenFile, size: int, offset: int) -> bytes:
        match file:
            case LongFile():
                return self._long_objects.read(file, offset, size)
            case TextFile(content):
                return content[offset : offset + size]
            case Writing(draft):
                with draft.lock:
                    return draft.spool.read(offset, size)
        raise IsADirectoryError

    def keep_readable(self, namespace: str, key: bytes) -> None:
        """Leases a block for those who have it open: it is about to be deleted."""
        for file in list(self._open.values()):
            if isinstance(file, BlockFile) and file.namespace.name == namespace and file.block.key == key:
                try:
                    self._views.view(file)
                except (OSError, MooncaskError):
                    continue  # it was gone already, and its readers will be told
