"""What a file system written with mfusepy costs when it does nothing: one folder, served as it is. A process of its own.

Run as `python -m mooncask.tools.bench.passthrough FOLDER MOUNTPOINT`; ends when it is unmounted.
"""

import os
import sys

import mfusepy


class PassThrough(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no types
    """Reads by the kernel's own files; changes nothing."""

    use_ns = True

    def __init__(self, root: str) -> None:
        self._root = root

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        found = os.lstat(self._root + path)
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_blocks")
        times = {f"st_{which}time": getattr(found, f"st_{which}time_ns") for which in "acm"}
        return {name: getattr(found, name) for name in names} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", *os.listdir(self._root + path)]  # noqa: PTH208  # names are what is wanted

    def open(self, path: str, flags: int) -> int:
        return os.open(self._root + path, os.O_RDONLY)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0


if __name__ == "__main__":
    mfusepy.FUSE(PassThrough(sys.argv[1]), sys.argv[2], foreground=True, max_idle_threads=10)
