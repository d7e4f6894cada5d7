"""The bytes of a file that is being written: in memory while they are few, then in a temporary file without a name.

Remembers which bytes were written, so that a hole is told from a zero. Not thread-safe; `drafts.py` guards it.
"""

import errno
import mmap
import os
import tempfile
import threading

from mooncask.fuse_mount.failures import failure

MEMORY_BYTES = 4 << 20
FILE_BYTES_MAX = 64 << 30
PIECES_MAX = 1024
"""Separate written pieces that are remembered; a file with more has holes for all we know."""


class Memory:
    """Bytes that spools may hold together. Any thread may use it."""

    def __init__(self, size_max: int) -> None:
        self._left = size_max
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """False: there are not as many left."""
        with self._lock:
            if size > self._left:
                return False
            self._left -= size
            return True

    def give(self, size: int) -> None:
        with self._lock:
            self._left += size


class Spool:
    """Grows with what is written. Raises EFBIG beyond FILE_BYTES_MAX and what the temporary file's disk says."""

    def __init__(self, folder: str, memory: Memory) -> None:
        self._folder = folder or None
        self._budget = memory
        self._memory = bytearray()
        self._descriptor = -1
        self._written: list[tuple[int, int]] = []
        self.size = 0

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    @property
    def whole(self) -> bool:
        """Whether every byte was written."""
        return self.size == 0 or self._written == [(0, self.size)]

    def write(self, offset: int, data: bytes | memoryview) -> int:
        stop = offset + len(data)
        if stop > FILE_BYTES_MAX:
            raise failure(errno.EFBIG)
        self._grow(stop)
        if self._descriptor < 0:
            self._memory[offset:stop] = data
        else:
            _write_all(self._descriptor, data, offset)
        self.size = max(self.size, stop)
        self._remember(offset, stop)
        return len(data)

    def read(self, offset: int, size: int) -> bytes:
        stop = min(offset + size, self.size)
        if stop <= offset:
            return b""
        if self._descriptor < 0:
            return bytes(self._memory[offset:stop])
        return os.pread(self._descriptor, stop - offset, offset)

    def truncate(self, size: int) -> None:
        if size > FILE_BYTES_MAX:
            raise failure(errno.EFBIG)
        self._grow(size)
        if self._descriptor < 0:
            self._budget.give(len(self._memory) - size)
            del self._memory[size:]
        else:
            os.ftruncate(self._descriptor, size)
        self.size = size
        self._written = [(start, min(stop, size)) for start, stop in self._written if start < size]

    def payload(self) -> memoryview:
        """All bytes as one buffer, to be used before anything else is written. It is not taken back: an error that kept it
        alive must not hide behind one that says so."""
        if self._descriptor < 0:
            return memoryview(bytes(self._memory))
        return memoryview(mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ))

    def close(self) -> None:
        self._drop_memory()
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _grow(self, size: int) -> None:
        more = size - len(self._memory)
        if self._descriptor < 0 and (more <= 0 or (size <= MEMORY_BYTES and self._budget.take(more))):
            self._memory.extend(bytes(max(0, more)))
            return
        if self._descriptor < 0:
            with tempfile.TemporaryFile(dir=self._folder) as file:
                self._descriptor = os.dup(file.fileno())
            _write_all(self._descriptor, self._memory, 0)
            self._drop_memory()
        if size > os.fstat(self._descriptor).st_size:
            os.ftruncate(self._descriptor, size)

    def _drop_memory(self) -> None:
        self._budget.give(len(self._memory))
        self._memory = bytearray()

    def _remember(self, start: int, stop: int) -> None:
        if start == stop:
            return
        touching = [piece for piece in self._written if piece[0] <= stop and piece[1] >= start]
        apart = [piece for piece in self._written if piece[0] > stop or piece[1] < start]
        first = min([start, *(piece[0] for piece in touching)])
        last = max([stop, *(piece[1] for piece in touching)])
        if len(apart) < PIECES_MAX:
            self._written = sorted([*apart, (first, last)])


def _write_all(descriptor: int, data: bytes | bytearray | memoryview, offset: int) -> None:
    rest = memoryview(data)
    while rest:
        count = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[count:], offset + count
