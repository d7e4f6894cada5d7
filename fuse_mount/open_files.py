"""What is open: handles by number, and reading through each kind of them."""

import ctypes
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mooncask.errors import MooncaskError, ObjectInParts
from mooncask.fuse_mount.drafts import Draft
from mooncask.fuse_mount.leased_views import BlockFile, LeasedViews, View
from mooncask.fuse_mount.long_objects import PIECE_BYTES, LongFile, LongObjects
from mooncask.fuse_mount.open_folders import OpenFolder
from mooncask.fuse_mount.tree import BlockNode, Found


@dataclass(frozen=True, slots=True)
class TextFile:
    """A generated text, as it was when it was opened."""

    content: bytes


@dataclass(slots=True, eq=False)
class Writing:
    """One open of a draft. `writes`: for writing; a reader's closing it says nothing of what is in it."""

    draft: Draft
    writes: bool = True


OpenFile = BlockFile | TextFile | Writing | OpenFolder[Found]


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
            if file.parts is None and (view := self._view(file)) is not None:
                count = min(size, view.size - offset)
                ctypes.memmove(target, view.address + offset, count)  # lets other threads run
                return count
        data = self._bytes(file, size, offset)
        ctypes.memmove(target, data, len(data))
        return len(data)

    def _view(self, file: BlockFile) -> View | None:
        """None: it is in parts, and is read so from now on."""
        try:
            return self._views.view(file)
        except ObjectInParts:
            file.parts = self.in_parts(file)
            return None

    def in_parts(self, file: BlockFile) -> LongFile:
        return self._long_objects.open(BlockNode(file.namespace, file.block))

    def read_all(self, node: BlockNode) -> Iterator[memoryview]:
        """Everything a block or an object holds, in pieces; each is valid until the next."""
        file = BlockFile(node.namespace, node.block)
        try:
            view = self._view(file) if node.block.size else None
            if view is not None:
                yield view.array.data
            elif file.parts is not None:
                for offset in range(0, node.block.size, PIECE_BYTES):
                    yield memoryview(self._long_objects.read(file.parts, offset, PIECE_BYTES))
        finally:
            self._views.release(file)

    def _bytes(self, file: OpenFile, size: int, offset: int) -> bytes:
        match file:
            case BlockFile():
                assert file.parts is not None
                return self._long_objects.read(file.parts, offset, size)
            case TextFile(content):
                return content[offset : offset + size]
            case Writing(draft, _):
                with draft.lock:
                    return draft.spool.read(offset, size)
        raise IsADirectoryError

    def readers(self, namespace: str, key: bytes) -> list[BlockFile]:
        """Who has a stored version of this block open."""
        return [
            file
            for file in list(self._open.values())
            if isinstance(file, BlockFile) and file.namespace.name == namespace and file.block.key == key
        ]

    def keep_readable(self, namespace: str, key: bytes) -> None:
        """Leases a block for those who have it open: it is about to be deleted."""
        for file in self.readers(namespace, key):
            try:
                self._views.view(file)
            except (OSError, MooncaskError):
                continue  # it was gone already, and its readers will be told
