"""How far the kernel reads ahead on this mount: it offers 128 KiB, a block is longer. Only root may change it."""

import contextlib
from pathlib import Path

from mooncask.fuse_mount.mounts import find_mount

KIBIBYTES = 2048


def read_far_ahead(mountpoint: str) -> None:
    """Sets it where this process may; elsewhere reading is as it was, only a little slower.

    Not to be called by a thread that serves the mount: this waits for it to serve, since the kernel sets its own value then.
    """
    with contextlib.suppress(OSError):
        Path(mountpoint).stat()
        mount = find_mount(mountpoint)
        if mount is not None:
            Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(f"{KIBIBYTES}\n")
