"""The DRAM tier's memory, and the staging areas of writers who may not touch it. Which bytes are in use: `allocator.py`."""

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Callable

from mooncask.tiers.shared_memory import SharedMemory

POPULATE_STEP_BYTES = 64 << 20
"""About 50 to 100 ms of page faults: how long `close` waits for the thread, and how soon the first blocks fit."""

_MADV_POPULATE_WRITE = 23
_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_log = logging.getLogger(__name__)


class Arena(SharedMemory):
    """Shared memory that a thread faults in step by step, since a first touch is ten times slower than a later one.

    Only [0, populated_bytes) is fast and safe to use. Untrusted writers: the arena is sealed against new writable
    mappings, and they get a `StagingArea`.
    """

    def __init__(self, capacity_bytes: int, *, huge_pages: bool = False, trusted_writers: bool = True) -> None:
        super().__init__(
            "mooncask-arena",
            capacity_bytes,
            setting="dram.capacity",
            huge_pages=huge_pages,
            writable_by_others=trusted_writers,
        )
        self.populated_bytes = 0
        self.fault: OSError | None = None
        """Why populating ended early, if it did: the kernel had no more memory."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start_populating(self, on_progress: Callable[[int], None] = lambda populated_bytes: None) -> None:
        """Fault in all pages in a thread of its own.

        `on_progress(populated_bytes)` is called in that thread after each step, also after one that set `fault`.
        """
        assert self._thread is None, "this arena is already being populated"
        self._thread = threading.Thread(
            target=self._populate, args=(on_progress,), name="mooncask-populate", daemon=True
        )
        self._thread.start()

    def stop_populating(self) -> None:
        """Wait for the thread to end, at most one step later; no callback comes afterwards. Blocks. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """Stop populating and give the memory back; views that are alive keep it until they die. Idempotent."""
        self.stop_populating()
        super().close()

    def _populate(self, on_progress: Callable[[int], None]) -> None:
        while self.populated_bytes < self.capacity_bytes and not self._stopping.is_set():
            length = min(POPULATE_STEP_BYTES, self.capacity_bytes - self.populated_bytes)
            try:
                self._fault_in(self.populated_bytes, length)
                self.populated_bytes += length
            except OSError as error:
                self.fault = error
                _log.error(
                    "the arena stays at %d of %d bytes: %s; lower dram.capacity or free memory",
                    self.populated_bytes,
                    self.capacity_bytes,
                    error.strerror,
                )
            on_progress(self.populated_bytes)
            if self.fault is not None:
                return

    def _fault_in(self, offset: int, length: int) -> None:
        """Through ctypes, which releases the GIL for the call's duration (mmap.madvise holds it)."""
        address = self.array.ctypes.data + offset
        if _libc.madvise(address, length, _MADV_POPULATE_WRITE) == 0:
            return
        failure = ctypes.get_errno()
        if failure != errno.EINVAL:
            raise OSError(failure, os.strerror(failure))
        touch_pages(self, offset, length)  # a kernel before 5.14


class StagingArea(SharedMemory):
    """Memory that one untrusted writer maps and fills; commit copies from it into the arena and checks the copy."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__("mooncask-staging", capacity_bytes, setting="socket.staging")


def touch_pages(memory: SharedMemory, offset: int, length: int) -> None:
    """Fault pages in by writing a zero to each; only for memory that nobody uses yet."""
    memory.array[offset : offset + length : os.sysconf("SC_PAGESIZE")] = 0
