"""The segment files: descriptors, preparing a file for its next use, the two copies of its own header. All of it blocks.

A segment's header says which generation of records counts. A new generation goes into the copy that is not the valid
one, so that a torn write leaves the old generation in force.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mooncask.errors import NoDirectIO
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.buffers import aligned_buffer
from mooncask.tiers.nvme.file_layer import FileLayer, read_fully, write_fully
from mooncask.tiers.nvme.folder import file_system_of
from mooncask.tiers.nvme.record import (
    HEADER_BYTES,
    SEGMENT_HEADER_COPIES,
    SegmentHeader,
    pack_segment,
    unpack_segment,
)

DESCRIPTORS_MAX = 256
"""Open segment files; the soft limit of a service is often 1,024 for everything."""
_SUFFIX = ".seg"
_PROBE = "probe.tmp"


class SegmentFiles:
    """Opens segment files when they are used and closes the least recently used. Safe for several threads."""

    def __init__(self, folder: Path, store: bytes, segment_bytes: int, direct: bool, files: FileLayer) -> None:
        self.files = files
        self.store = store
        self._folder = folder
        self._segment_bytes = segment_bytes
        self._direct = direct
        self._lock = threading.Lock()
        self._open: OrderedDict[int, int] = OrderedDict()
        self._users: dict[int, int] = {}

    def path(self, number: int) -> Path:
        return self._folder / f"{number:08d}{_SUFFIX}"

    def numbers(self) -> list[int]:
        """Segments that have a file; leftovers of a probe are removed."""
        (self._folder / _PROBE).unlink(missing_ok=True)
        return sorted(int(p.stem) for p in self._folder.glob("*" + _SUFFIX) if p.stem.isdigit())

    @contextmanager
    def descriptor(self, number: int, create: bool = False) -> Iterator[int]:
        """The file's descriptor, open until the block ends at least."""
        with self._lock:
            fd = self._open.get(number)
            if fd is None:
                fd = self._open[number] = self.files.open(self.path(number), self._direct, create)
            self._open.move_to_end(number)
            self._users[number] = self._users.get(number, 0) + 1
        try:
            yield fd
        finally:
            with self._lock:
                self._users[number] -= 1
                self._close_some()

    def _close_some(self) -> None:
        if len(self._open) <= DESCRIPTORS_MAX:
            return
        idle = [number for number in self._open if not self._users.get(number)]
        for number in idle[: len(self._open) - DESCRIPTORS_MAX]:
            self.files.close(self._open.pop(number))
            self._users.pop(number, None)

    def close(self) -> None:
        with self._lock:
            while self._open:
                self.files.close(self._open.popitem()[1])

    def probe_direct_io(self) -> None:
        """Raises NoDirectIO when the file system refuses O_DIRECT, OSError for other faults."""
        path = self._folder / _PROBE
        try:
            fd = self.files.open(path, self._direct, create=True)
            try:
                write_fully(self.files, fd, [aligned_buffer(HEADER_BYTES)], 0)
            finally:
                self.files.close(fd)
        except OSError as exc:
            if self._direct and exc.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                raise NoDirectIO(str(self._folder.parent), file_system_of(self._folder)) from exc
            raise
        finally:
            self.files.remove(path)

    def prepare(self, number: int, generation: int, header_copy: int) -> int:
        """Make a file ready for `generation`, allocated as a whole; returns the copy of the header that is valid now.

        After a failure the file, if it is there, carries the generation it had; one that could not be allocated is gone.
        """
        try:
            fresh = self._allocate(number)
        except OSError:
            self.remove(number)
            raise
        with self.descriptor(number) as fd:
            copy = self._write_header(fd, number, generation, header_copy)
            if fresh:
                self.files.fsync(fd)
                crash_point("nvme.segment.headed")
                self.files.sync_folder(self._folder)
            return copy

    def _allocate(self, number: int) -> bool:
        """The whole file, so that writing needs no more space later; whether it was not so before."""
        with self.descriptor(number, create=True) as fd:
            if self.files.size(fd) >= self._segment_bytes:
                return False
            self.files.allocate(fd, self._segment_bytes)
            crash_point("nvme.segment.allocated")
            return True

    def _write_header(self, fd: int, number: int, generation: int, header_copy: int) -> int:
        copy = (header_copy + 1) % SEGMENT_HEADER_COPIES
        page = aligned_buffer(HEADER_BYTES)
        pack_segment(page, self.store, SegmentHeader(number, generation))
        write_fully(self.files, fd, [page], copy * HEADER_BYTES)
        self.files.fdatasync(fd)
        return copy

    def read_header(self, number: int) -> "tuple[SegmentHeader, int] | None":
        """The valid header and which copy it is; None when neither copy is this segment's."""
        page = aligned_buffer(SEGMENT_HEADER_COPIES * HEADER_BYTES)
        with self.descriptor(number) as fd:
            read_fully(self.files, fd, [page], 0)
        best: tuple[SegmentHeader, int] | None = None
        for copy in range(SEGMENT_HEADER_COPIES):
            header = unpack_segment(page[copy * HEADER_BYTES : (copy + 1) * HEADER_BYTES], self.store)
            right = header is not None and header.segment == number
            if header is not None and right and (best is None or header.generation > best[0].generation):
                best = header, copy
        return best

    def remove(self, number: int) -> None:
        """Delete a file that nobody uses."""
        with self._lock:
            fd = self._open.pop(number, None)
            if fd is not None:
                self.files.close(fd)
        self.files.remove(self.path(number))
        self.files.sync_folder(self._folder)
