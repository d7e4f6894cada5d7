"""A plain file written and read like the NVMe tier's segments: same block size, queue depth, fallocate, fdatasync."""

import mmap
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from mooncask.tools.bench.memory_limits import private_memory
from mooncask.tools.bench.samples import timed

WRITE = "plain file write + fdatasync"
READ = "plain file read"


def takes_direct_io(folder: Path) -> bool:
    """Whether the file system of `folder` opens files with O_DIRECT."""
    probe = folder / "direct.probe"
    try:
        os.close(os.open(probe, os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
    return True


class PlainFile:
    """A preallocated file of `batches` batches; use it as a context manager, which removes it. Not thread-safe."""

    def __init__(self, path: Path, block_bytes: int, batch: int, batches: int, io_threads: int, direct: bool) -> None:
        self._path, self._block_bytes, self._batch = path, block_bytes, batch
        self._batch_bytes = block_bytes * batch
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | (os.O_DIRECT if direct else 0), 0o600)
        os.posix_fallocate(self._file, 0, self._batch_bytes * batches)
        os.fsync(self._file)
        buffer = np.frombuffer(mmap.mmap(-1, self._batch_bytes), np.uint8)  # page-aligned, as O_DIRECT wants
        np.copyto(buffer, private_memory(self._batch_bytes))
        self._buffer = buffer.data
        self._pool = ThreadPoolExecutor(io_threads)

    def write(self, i: int) -> Mapping[str, float]:
        """Writes batch i with as many writes under way as there are threads, then fdatasync."""
        with timed() as watch:
            list(self._pool.map(lambda j: self._write_block(i, j), range(self._batch)))
            os.fdatasync(self._file)
        return {WRITE: watch.seconds}

    def read(self, i: int) -> Mapping[str, float]:
        with timed() as watch:
            list(self._pool.map(lambda j: self._read_block(i, j), range(self._batch)))
        return {READ: watch.seconds}

    def _write_block(self, i: int, j: int) -> None:
        count = os.pwritev(self._file, [self._block(j)], self._offset(i, j))
        assert count == self._block_bytes, count

    def _read_block(self, i: int, j: int) -> None:
        count = os.preadv(self._file, [self._block(j)], self._offset(i, j))
        assert count == self._block_bytes, count

    def _block(self, j: int) -> memoryview:
        return self._buffer[j * self._block_bytes : (j + 1) * self._block_bytes]

    def _offset(self, i: int, j: int) -> int:
        return i * self._batch_bytes + j * self._block_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        os.close(self._file)
        self._path.unlink()
