"""The few calls to the file system, behind one small object so that tests can make each of them fail.

Every method blocks and raises OSError as the system gives it; what an error means is decided by the callers.
"""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mooncask.tiers.block import ALIGNMENT
from mooncask.tiers.nvme.index import Index


class FileLayer:
    """The real file system. Safe for several threads."""

    def open(self, path: Path, direct: bool, create: bool) -> int:
        """A descriptor for reading and writing."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_DIRECT if direct else 0) | (os.O_CREAT if create else 0)
        return os.open(path, flags, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pwritev(self, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        return os.pwritev(fd, pieces, offset)

    def preadv(self, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, pieces, offset)

    def allocate(self, fd: int, size_bytes: int) -> None:
        os.posix_fallocate(fd, 0, size_bytes)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def sync_folder(self, folder: Path) -> None:
        """Make names created, renamed or removed in `folder` durable."""
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def publish(self, path: Path, content: bytes) -> None:
        """Replace a small file as a whole: temporary name, fsync, rename, fsync of the folder."""
        temporary = path.with_name(path.name + ".tmp")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self.sync_folder(path.parent)

    def open_index(self, path: Path, create: bool = False) -> Index:
        """Raises IndexUnreadable, IndexFault, OSError."""
        return Index.open(path, create)


def write_fully(files: FileLayer, fd: int, pieces: Sequence[memoryview], offset: int) -> None:
    """Write all pieces, going on after short writes; ENOSPC when the file takes nothing more."""
    remaining = list(pieces)
    while remaining:
        written = files.pwritev(fd, remaining, offset)
        written -= written % ALIGNMENT  # O_DIRECT needs the next write aligned: the odd end is written again
        if written <= 0:
            raise OSError(errno.ENOSPC, "the file took no more bytes")
        offset += written
        remaining = _after(remaining, written)


def read_fully(files: FileLayer, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
    """Fill all pieces, going on after short reads; returns the bytes read, fewer only at the file's end."""
    remaining, total = list(pieces), 0
    while remaining:
        got = files.preadv(fd, remaining, offset + total)
        got -= got % ALIGNMENT
        if got <= 0:
            break
        total += got
        remaining = _after(remaining, got)
    return total


def _after(pieces: Sequence[memoryview], count: int) -> list[memoryview]:
    """What is left of `pieces` after their first `count` bytes."""
    left: list[memoryview] = []
    for piece in pieces:
        if count >= len(piece):
            count -= len(piece)
            continue
        left.append(piece[count:])
        count = 0
    return left
