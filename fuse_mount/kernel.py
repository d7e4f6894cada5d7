"""Between libfuse and the operations: what mfusepy's own layer does not do, or does with one copy more.

Reads go from the daemon's memory straight into libfuse's buffer; folders are told with all attributes of their files, so
that `ls -l` asks nothing more; errors of the project become their errno; rename and truncate keep their arguments.
"""

import ctypes
import errno
import logging
from typing import Any

import mfusepy

from mooncask.errors import MooncaskError
from mooncask.fuse_mount.failures import errno_of
from mooncask.fuse_mount.operations import MountedStore
from mooncask.fuse_mount.options import FILE_TYPE, MountOptions

log = logging.getLogger(__name__)

_WITH_ATTRIBUTES = 1
"""FUSE_READDIR_PLUS in what the kernel asks."""
_FILL_ATTRIBUTES = 2
"""FUSE_FILL_DIR_PLUS in what it is answered."""
THREADS_MAX = 16
THREADS_LIMITED_SINCE = 12
"""libfuse 3.12 and later take a limit; those before make a thread whenever all are busy."""


class Mount(mfusepy.FUSE):  # type: ignore[misc]  # mfusepy has no types
    """Mounts and serves until it is unmounted: the constructor returns then. Raises RuntimeError where libfuse can't mount."""

    operations: MountedStore

    def __init__(self, operations: MountedStore, options: MountOptions) -> None:
        threads: dict[str, Any] = {"max_idle_threads": THREADS_MAX}
        if mfusepy.fuse_version_minor >= THREADS_LIMITED_SINCE:
            threads["max_threads"] = THREADS_MAX
        super().__init__(
            operations,
            options.mountpoint,
            raw_fi=True,
            foreground=True,
            fsname=FILE_TYPE,
            subtype=FILE_TYPE,
            default_permissions=True,
            allow_other=options.allow_other,
            ro=options.read_only,
            **threads,
        )

    def _wrapper(self, func: Any, *args: Any, **kwargs: Any) -> int:
        """Runs one callback. Nothing may be raised into C."""
        try:
            return func(*args, **kwargs) or 0
        except OSError as error:
            return -(error.errno or errno.EIO)
        except MooncaskError as error:
            return -errno_of(error)
        except BaseException:
            log.exception("%s failed", getattr(func, "__name__", func))
            return -errno.EIO

    def read(self, path: bytes | None, buf: Any, size: int, offset: int, fip: Any) -> int:
        return self.operations.open_files.read_into(fip.contents.fh, buf, size, offset)

    def readdir_fuse_3(self, path: bytes | None, buf: Any, filler: Any, offset: int, fip: Any, flags: int) -> int:
        """Fills until the kernel's buffer is full; what did not fit comes again with the next call."""
        operations = self.operations
        folder = operations.open_files.get(fip.contents.fh)
        fill = _FILL_ATTRIBUTES if flags & _WITH_ATTRIBUTES else 0
        with folder.lock:  # type: ignore[union-attr]  # only opendir makes the handles that come here
            for found, position in folder.entries(offset):  # type: ignore[union-attr]  # as above
                stat = mfusepy.c_stat()
                mfusepy.set_st_attrs(stat, operations.entry_attributes(found), use_ns=True)
                if filler(buf, found[0], ctypes.byref(stat), position, fill):
                    break
        return 0

    def rename_fuse_3(self, old: bytes, new: bytes, flags: int) -> int:
        return self.operations.rename_with_flags(self._text(old), self._text(new), flags)

    def truncate_fuse_3(self, path: bytes | None, length: int, fip: Any) -> int:
        text = None if path is None else self._text(path)
        return self.operations.truncate(text, length, fip.contents if fip else None)

    def _text(self, path: bytes) -> str:
        return path.decode(self.encoding, self.errors)
