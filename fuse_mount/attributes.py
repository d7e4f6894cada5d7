"""What `stat` and `statfs` show. Pure.

A file's time is when its block was created, in whole seconds as the store keeps it; the fraction is taken from the block's
checksum. So another version is another time, and the kernel, which keeps a file's pages while time and size are the same,
never shows bytes of an older one.
"""

import stat
from dataclasses import dataclass

from mooncask.client.wire import BlockStat, Status, Tier

Attributes = dict[str, int]

SECTOR = 512
READ_BYTES = 1 << 20
"""What programs should read at a time: the most that the kernel asks of a mount at once."""
STATFS_BLOCK = 4096
NAME_BYTES_MAX = 255
_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose files these are: the user who mounted."""

    uid: int
    gid: int
    writable: bool
    """False on a read-only mount."""

    def folder(self, seconds: float, *, writable: bool = True) -> Attributes:
        mode = 0o755 if self.writable and writable else 0o555
        return self._all(stat.S_IFDIR | mode, 0, int(seconds * _SECOND)) | {"st_nlink": 2}

    def file(self, size: int, time_ns: int, *, writable: bool) -> Attributes:
        return self._all(stat.S_IFREG | (0o644 if self.writable and writable else 0o444), size, time_ns)

    def block(self, block: BlockStat, *, writable: bool) -> Attributes:
        return self.file(block.size, version_ns(block), writable=writable)

    def link(self, target: bytes, seconds: float) -> Attributes:
        return self._all(stat.S_IFLNK | 0o777, len(target), int(seconds * _SECOND))

    def _all(self, mode: int, size: int, time_ns: int) -> Attributes:
        return {
            "st_mode": mode,
            "st_nlink": 1,
            "st_uid": self.uid,
            "st_gid": self.gid,
            "st_size": size,
            "st_blocks": -(-size // SECTOR),
            "st_blksize": READ_BYTES,
            "st_atime": time_ns,
            "st_mtime": time_ns,
            "st_ctime": time_ns,
        }


def version_ns(block: BlockStat) -> int:
    """A block's time in nanoseconds, different for different bytes."""
    return int(block.created_seconds) * _SECOND + int.from_bytes(block.checksum[-8:], "big") % _SECOND


def same_version(one: BlockStat, other: BlockStat) -> bool:
    """Whether both have the same bytes."""
    return one.size == other.size and one.checksum == other.checksum


def file_system(status: Status) -> Attributes:
    """Room as the slowest tier has it: what is durable lies there."""
    tiers = [tier for tier in status.tiers if tier.capacity_bytes and tier.tier != Tier.HBM]
    last = max(tiers, key=lambda tier: tier.tier, default=None)
    capacity = last.capacity_bytes if last else 0
    free = max(0, capacity - last.used_bytes) if last else 0
    blocks = sum(namespace.blocks for namespace in status.namespaces)
    return {
        "f_bsize": STATFS_BLOCK,
        "f_frsize": STATFS_BLOCK,
        "f_blocks": capacity // STATFS_BLOCK,
        "f_bfree": free // STATFS_BLOCK,
        "f_bavail": free // STATFS_BLOCK,
        "f_files": blocks,
        "f_ffree": 1 << 32,
        "f_favail": 1 << 32,
        "f_namemax": NAME_BYTES_MAX,
    }
