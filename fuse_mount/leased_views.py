"""Bytes of blocks in the daemon's memory, leased for as long as files are read.

The kernel keeps what it read, so most files are read once and their leases are short. Leases hold DRAM, and the daemon cuts
off whoever keeps one too long: here their number, bytes and idle time are bounded. A file that lost its lease takes a new
one at its next read, if the same bytes are still there.
"""

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mooncask.client.leases import Bytes
from mooncask.client.wire import BlockStat
from mooncask.fuse_mount.attributes import same_version
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.long_objects import LongFile
from mooncask.fuse_mount.store_link import Namespace, StoreLink

VIEWS_MAX = 256
ARENA_SHARE = 8
"""Leases take at most this part of the arena, one block always."""
IDLE_SECONDS = 5.0
TIDY_SECONDS = 1.0
LEASE_SHARE = 0.5
"""Of the daemon's longest lease: older ones are given up however busy they are."""


@dataclass(slots=True, eq=False)
class View:
    """One leased block. The lease ends when nobody refers to `array` any more: readers hold this object while they copy."""

    array: Bytes
    address: int
    size: int
    taken_seconds: float
    used_seconds: float


@dataclass(slots=True, eq=False)
class BlockFile:
    """An open file over one version of a block, or of an object in parts, which can't be leased."""

    namespace: Namespace
    block: BlockStat
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a lease is taken, so that parallel reads of a file take one."""
    view: View | None = None
    parts: LongFile | None = None
    """How it is read instead, once it is known to be in parts."""


class LeasedViews:
    """The views of all open files. Any thread may use it; its lock is held for looking at numbers only."""

    def __init__(self, link: StoreLink, clock: Callable[[], float] = time.monotonic) -> None:
        welcome = link.client.welcome
        self._link = link
        self._clock = clock
        self._bytes_max = max(1, welcome.arena_bytes // ARENA_SHARE)
        self._seconds_max = welcome.lease_ms_max / 1000 * LEASE_SHARE
        self._lock = threading.Lock()
        self._held: dict[BlockFile, View] = {}
        self._bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._tidy_for_ever, name="mooncask-leases", daemon=True)
        self._thread.start()

    def view(self, file: BlockFile) -> View:
        """The file's bytes, to be used for one read.

        Raises ESTALE when the store has others or none, EIO when it is late, ObjectInParts.
        """
        now = self._clock()
        view = file.view
        if view is None:
            with file.lock:
                view = file.view or self._lease(file, now)
        view.used_seconds = now
        return view

    def release(self, file: BlockFile) -> None:
        with self._lock:
            self._drop(file)

    def tidy(self) -> None:
        """Gives up what was not read for a while, and what is old."""
        now = self._clock()
        with self._lock:
            for file, view in list(self._held.items()):
                idle, age = now - view.used_seconds, now - view.taken_seconds
                if idle > IDLE_SECONDS or age > self._seconds_max:
                    self._drop(file)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        with self._lock:
            for file in list(self._held):
                self._drop(file)

    def _lease(self, file: BlockFile, now: float) -> View:
        blocks, (found,) = self._link.client.acquire_described(file.namespace.handle, [file.block.key])
        with blocks:
            block = blocks[0]
            if found is None or not same_version(found, file.block):
                raise failure(errno.ESTALE)
            if block is None or block.size != file.block.size:
                raise failure(errno.EIO)
            array = block.numpy()
        view = View(array, array.__array_interface__["data"][0], array.nbytes, now, now)
        with self._lock:
            self._make_room(view.size)
            self._held[file] = file.view = view
            self._bytes += view.size
        return view

    def _make_room(self, size: int) -> None:
        while self._held and (len(self._held) >= VIEWS_MAX or self._bytes + size > self._bytes_max):
            self._drop(min(self._held, key=lambda file: self._held[file].used_seconds))

    def _drop(self, file: BlockFile) -> None:
        view = self._held.pop(file, None)
        if view is not None:
            self._bytes -= view.size
            file.view = None

    def _tidy_for_ever(self) -> None:
        while not self._stop.wait(TIDY_SECONDS):
            self.tidy()
