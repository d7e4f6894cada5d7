"""A pass-through file system that forgets, at a power cut, all that was not fsynced. A process of its own.

    python powercut_fs.py BACKING MOUNTPOINT [SEED]

Prints `mounted` when it is. On SIGUSR1 the power is cut: every call fails with EIO from then on, and when the mount is
gone the backing folder is what a disk would hold: changes since the last fsync of a file (bytes, size) and since the
last fsync of a folder (names) are undone. With a seed, each change is undone or kept at random, as a disk's cache may
have written some of it; undone writes can be torn at 512 bytes.

It can't show: reordering inside one fsync, or a disk that lies about fsync.
"""

import errno
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import mfusepy

SECTOR = 512
Undo = Callable[[], None]


class PowerCut(mfusepy.Operations):
    """Every change is applied to the backing folder at once, and how to take it back is kept until it is synced."""

    use_ns = True

    def __init__(self, root: Path, seed: int | None) -> None:
        self._root = root
        self._random = random.Random(seed) if seed is not None else None
        self._lock = threading.RLock()
        self._data: dict[str, list[Undo]] = {}
        self._names: dict[str, list[Undo]] = {}
        self._unlinked = 0
        self.off = False

    def _real(self, path: str) -> str:
        if self.off:
            raise mfusepy.FuseOSError(errno.EIO)
        return str(self._root) + path

    # --- reading ---

    def getattr(self, path: str, fh: int | None = None) -> dict[str, object]:
        status = os.lstat(self._real(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks")
        times = {f"st_{which}time": getattr(status, f"st_{which}time_ns") for which in "acm"}
        return {name: getattr(status, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *(name for name in os.listdir(self._real(path)) if not name.startswith(".unlinked-"))]

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._real(path))
        names = ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_ffree", "f_files", "f_frsize", "f_namemax")
        return {name: getattr(status, name) for name in names}

    def open(self, path: str, flags: int) -> int:
        return os.open(self._real(path), (flags & os.O_ACCMODE) | (flags & os.O_TRUNC))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        self._real(path)
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    # --- changes to bytes: undone unless the file is synced ---

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        real = self._real(path)
        with self._lock:
            size = os.fstat(fh).st_size
            with open(real, "rb") as file:
                before = os.pread(file.fileno(), len(data), offset)
            written = os.pwrite(fh, data, offset)
            self._data.setdefault(path, []).append(lambda: self._unwrite(real, offset, before, size))
            return written

    def _unwrite(self, real: str, offset: int, before: bytes, size: int) -> None:
        keep = self._random.randrange(0, len(before) // SECTOR + 1) * SECTOR if self._random else 0
        with open(real, "r+b") as file:
            os.pwrite(file.fileno(), before[keep:], offset + keep)
            os.ftruncate(file.fileno(), size)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        real = self._real(path)
        with self._lock:
            size = os.stat(real).st_size
            with open(real, "rb") as file:
                tail = os.pread(file.fileno(), max(0, size - length), length)
            os.truncate(real, length)
            self._data.setdefault(path, []).append(lambda: self._untruncate(real, size, length, tail))
        return 0

    def _untruncate(self, real: str, size: int, length: int, tail: bytes) -> None:
        os.truncate(real, size)
        with open(real, "r+b") as file:
            os.pwrite(file.fileno(), tail, length)

    def fallocate(self, path: str, mode: int, offset: int, length: int, fh: int) -> int:
        if mode:
            raise mfusepy.FuseOSError(errno.EOPNOTSUPP)
        real = self._real(path)
        with self._lock:
            size = os.fstat(fh).st_size
            os.posix_fallocate(fh, offset, length)
            self._data.setdefault(path, []).append(lambda: os.truncate(real, size))
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._real(path)
        with self._lock:
            self._data.pop(path, None)
        return 0

    # --- changes to names: undone unless the folder is synced ---

    def _named(self, path: str, undo: Undo) -> None:
        self._names.setdefault(os.path.dirname(path), []).append(undo)

    def create(self, path: str, mode: int, fi: object = None) -> int:
        real = self._real(path)
        with self._lock:
            fh = os.open(real, os.O_RDWR | os.O_CREAT, mode)
            self._named(path, lambda: _remove(real))
        return fh

    def mkdir(self, path: str, mode: int) -> int:
        real = self._real(path)
        with self._lock:
            os.mkdir(real, mode)
            self._named(path, lambda: _remove(real))
        return 0

    def unlink(self, path: str) -> int:
        real = self._real(path)
        with self._lock:
            hidden = self._hide(real)
            self._named(path, lambda: os.replace(hidden, real))
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._real(path))
        return 0

    def rename(self, old: str, new: str) -> int:
        source, target = self._real(old), self._real(new)
        with self._lock:
            hidden = self._hide(target) if os.path.exists(target) else None
            os.rename(source, target)
            self._data[new] = self._data.pop(old, [])
            self._named(new, lambda: self._unrename(source, target, hidden))
        return 0

    def _unrename(self, source: str, target: str, hidden: str | None) -> None:
        os.rename(target, source)
        if hidden is not None:
            os.rename(hidden, target)

    def _hide(self, real: str) -> str:
        self._unlinked += 1
        hidden = os.path.join(os.path.dirname(real), f".unlinked-{self._unlinked}")
        os.rename(real, hidden)
        return hidden

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        self._real(path)
        with self._lock:
            self._names.pop(path.rstrip("/") or "/", None)
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._real(path), mode)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self._real(path), ns=times)
        return 0

    # --- the cut ---

    def forget_unsynced(self) -> None:
        """The backing folder as a disk would hold it. Names first: bytes of a file that never was need no undoing."""
        for kind in (self._data, self._names):
            for undos in kind.values():
                for undo in reversed(undos):
                    if self._random is not None and self._random.random() < 0.5:
                        continue
                    try:
                        undo()
                    except FileNotFoundError:
                        continue  # its name is undone too
        for leftover in self._root.rglob(".unlinked-*"):
            leftover.unlink()


def _remove(real: str) -> None:
    os.rmdir(real) if os.path.isdir(real) else os.unlink(real)


def main() -> None:
    backing, mount = Path(sys.argv[1]).resolve(), sys.argv[2]
    operations = PowerCut(backing, int(sys.argv[3]) if len(sys.argv) > 3 else None)

    def cut(*_: object) -> None:
        operations.off = True

    signal.signal(signal.SIGUSR1, cut)
    operations.init = lambda path: print("mounted", flush=True)  # type: ignore[method-assign,assignment]
    mfusepy.FUSE(operations, mount, foreground=True, nothreads=True)
    if operations.off:
        operations.forget_unsynced()
    print("gone", flush=True)


if __name__ == "__main__":
    main()
