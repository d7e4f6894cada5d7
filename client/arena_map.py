"""Maps the daemon's memory into this process.

By libc's mmap and not Python's, which would keep a duplicate of the descriptor: the descriptor is closed at once, so that
no forked child inherits it, and MADV_DONTFORK keeps the mapping itself out of children. (A child that still had it
could read extents that were given to another block long ago: leases end with the process that holds them.)
The mapping goes when the last array or view of it died, not when a connection ends.
"""

import ctypes
import mmap
import os
import threading
import weakref
from typing import Any

import numpy as np

from mooncask.client.leases import Bytes
from mooncask.errors import DaemonUnavailable

POPULATE_STEP_BYTES = 64 << 20
_MADV_POPULATE_READ, _MADV_POPULATE_WRITE = 22, 23

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_MAP_FAILED = ctypes.c_void_p(-1).value


class MappedMemory:
    """Owns one mapping; every array over it keeps this alive, and with it the mapping."""

    def __init__(self, address: int, size_bytes: int, writable: bool) -> None:
        self.address = address
        self.__array_interface__ = {
            "version": 3,
            "shape": (size_bytes,),
            "typestr": "|u1",
            "data": (address, not writable),
        }
        end = weakref.finalize(self, _unmap, address, size_bytes, os.getpid())
        end.atexit = False  # views may still be read by other threads while the interpreter goes down


class ArrayAlias:
    """Lets numpy see `size_bytes` at `address`; whatever is made from it keeps `owner` alive."""

    def __init__(self, address: int, size_bytes: int, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = {"version": 3, "shape": (size_bytes,), "typestr": "|u1", "data": (address, False)}


class ArenaMap:
    """The daemon's arena (or this process's staging memory) as one flat array of bytes. Any thread may use it."""

    def __init__(self, descriptor: int, size_bytes: int, daemon: str, *, writable: bool) -> None:
        """Takes `descriptor` over and closes it, whatever happens. Raises DaemonUnavailable when it cannot be mapped."""
        self.writable = writable
        try:
            address = _map(descriptor, size_bytes, daemon, writable)
        finally:
            os.close(descriptor)
        memory = MappedMemory(address, size_bytes, writable)
        self.address = address
        self.bytes: Bytes = np.asarray(memory)


class Populator:
    """Makes page table entries for the part of a mapping that the daemon has populated, in a thread.

    Otherwise the first read of each page takes a fault, which makes a first copy several times slower than the next.
    """

    def __init__(self, arena: ArenaMap, populated_bytes: int) -> None:
        self._stop = threading.Event()
        advice = _MADV_POPULATE_WRITE if arena.writable else _MADV_POPULATE_READ
        arguments = (weakref.ref(arena), min(populated_bytes, arena.bytes.nbytes), advice, self._stop)
        self._thread = threading.Thread(target=_populate, args=arguments, name="mooncask-populate", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Returns when the thread has ended: within one step."""
        self._stop.set()
        self._thread.join()


def _populate(arena_ref: "weakref.ref[ArenaMap]", upto: int, advice: int, stop: threading.Event) -> None:
    for start in range(0, upto, POPULATE_STEP_BYTES):
        arena = arena_ref()
        if arena is None or stop.is_set():
            return
        length = min(POPULATE_STEP_BYTES, upto - start)
        if _libc.madvise(arena.address + start, length, advice) != 0:
            return  # a kernel before 5.14, or memory is short: pages come in when they are touched


def _map(descriptor: int, size_bytes: int, daemon: str, writable: bool) -> int:
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size_bytes, protection, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED or address is None:
        why = os.strerror(ctypes.get_errno())
        raise DaemonUnavailable(daemon, f"{size_bytes} bytes of its memory cannot be mapped: {why}")
    if _libc.madvise(address, size_bytes, mmap.MADV_DONTFORK) != 0:
        why = os.strerror(ctypes.get_errno())
        _libc.munmap(address, size_bytes)
        raise DaemonUnavailable(daemon, f"its memory cannot be kept from forked children: {why}")
    return int(address)


def _unmap(address: int, size_bytes: int, pid: int) -> None:
    if os.getpid() == pid:  # a forked child never had the mapping, and may have something else at that address
        _libc.munmap(address, size_bytes)
