"""One piece of memory that other processes can map by a file descriptor. Who gets which one is the daemon's business.

A memfd, not /dev/shm: it has no name that could be left behind, and it is gone with its last holder. Kernel facts used here:
a memfd is born with mode 0777, and whoever may open it can reopen even a read-only descriptor for writing through /proc;
so its mode becomes 0600. Sealing keeps holders from truncating it under this process, which would be a SIGBUS.
"""

import errno
import fcntl
import mmap
import os

import numpy as np
from numpy.typing import NDArray

from mooncask.errors import AccessDenied, ConfigError

HUGE_PAGE_BYTES = 2 << 20
_MFD_HUGE_2MB = 21 << 26
_F_ADD_SEALS = 1033
_SEAL_SEAL, _SEAL_SHRINK, _SEAL_GROW, _SEAL_FUTURE_WRITE = 1, 2, 4, 16


class SharedMemory:
    """`capacity_bytes` of zeros, mapped here for reading and writing, sealed against shrinking, growing and further seals.

    With `writable_by_others` = False nobody can map it for writing any more, whatever descriptor he holds; this process's
    own mapping is older than the seal and goes on. `setting` names the configuration key that errors blame.

    Raises ConfigError when the kernel does not give the memory. After `close` nothing here may be used, but views that
    were given out stay valid until they die.
    """

    def __init__(
        self, name: str, capacity_bytes: int, *, setting: str, huge_pages: bool = False, writable_by_others: bool = True
    ) -> None:
        page = HUGE_PAGE_BYTES if huge_pages else mmap.PAGESIZE
        if capacity_bytes <= 0 or capacity_bytes % page:
            raise ConfigError(setting, str(capacity_bytes), f"must be a positive multiple of {page} bytes")
        self.capacity_bytes = capacity_bytes
        self.writable_by_others = writable_by_others
        self._descriptor = _create(name, setting, huge_pages)
        try:
            self._mapping = self._map(setting, huge_pages)
            self._seal()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._array: NDArray[np.uint8] | None = np.frombuffer(self._mapping, np.uint8)

    @property
    def array(self) -> NDArray[np.uint8]:
        """All of it: uint8, shape (capacity_bytes,), writable."""
        assert self._array is not None, "this memory was closed"
        return self._array

    def view(self, offset: int, length: int) -> memoryview:
        """Bytes [offset, offset + length), writable."""
        assert 0 <= offset <= offset + length <= self.capacity_bytes, f"[{offset}, +{length}) of {self.capacity_bytes}"
        return self.array[offset : offset + length].data

    def read_only_descriptor(self) -> int:
        """A new descriptor that can be mapped for reading only. The caller closes it."""
        return os.open(f"/proc/self/fd/{self._descriptor}", os.O_RDONLY | os.O_CLOEXEC)

    def writable_descriptor(self) -> int:
        """A new descriptor that can be mapped for writing; the caller closes it. Raises AccessDenied if that is sealed off."""
        if not self.writable_by_others:
            raise AccessDenied("this memory is sealed: its writers get a staging area of their own")
        return os.dup(self._descriptor)

    def close(self) -> None:
        """Close the descriptor and unmap; with views still alive the memory goes when the last of them does. Idempotent."""
        if self._array is None:
            return
        self._array = None
        os.close(self._descriptor)
        try:
            self._mapping.close()
        except BufferError:  # views are alive: they keep the mapping, and its last reference unmaps it
            del self._mapping

    def _map(self, setting: str, huge_pages: bool) -> mmap.mmap:
        try:
            os.fchmod(self._descriptor, 0o600)
            os.ftruncate(self._descriptor, self.capacity_bytes)
            return mmap.mmap(self._descriptor, self.capacity_bytes)
        except OSError as error:
            raise ConfigError(
                setting, str(self.capacity_bytes), _no_memory(error, self.capacity_bytes, huge_pages)
            ) from error

    def _seal(self) -> None:
        seals = _SEAL_SHRINK | _SEAL_GROW | _SEAL_SEAL
        if not self.writable_by_others:
            seals |= _SEAL_FUTURE_WRITE
        fcntl.fcntl(self._descriptor, _F_ADD_SEALS, seals)


def _create(name: str, setting: str, huge_pages: bool) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    if huge_pages:
        flags |= os.MFD_HUGETLB | _MFD_HUGE_2MB
    try:
        return os.memfd_create(name, flags)
    except OSError as error:
        raise ConfigError(setting, name, f"the kernel gives no memfd: {error.strerror}") from error


def _no_memory(error: OSError, capacity_bytes: int, huge_pages: bool) -> str:
    if huge_pages and error.errno == errno.ENOMEM:
        pages = capacity_bytes // HUGE_PAGE_BYTES
        return f"needs {pages} free huge pages of 2 MiB (sysctl vm.nr_hugepages), or dram.huge_pages = false"
    return f"the kernel does not give that much memory: {error.strerror}"
