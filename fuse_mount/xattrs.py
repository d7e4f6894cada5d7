"""The extended attributes of a block's file: what they are called, what they say, what a new value means. Pure."""

import errno
import math
from dataclasses import dataclass

from mooncask.client.wire import BlockStat, Tier
from mooncask.fuse_mount.failures import failure

PREFIX = "user.mooncask."
PINNED, TTL = "pinned", "ttl"
SETTABLE = (PINNED, TTL)
CREATE = 1
"""XATTR_CREATE: fail where there is a value. There always is one."""


@dataclass(frozen=True, slots=True)
class SetPinned:
    pinned: bool


@dataclass(frozen=True, slots=True)
class SetTtl:
    seconds: float | None
    """None: the block stays until it is evicted."""


def values(block: BlockStat, *, is_kv: bool) -> dict[str, str]:
    """All attributes by their names without the prefix. Parent, depth and tokens are what KV blocks have."""
    found = {
        "tier": ",".join(Tier(tier).name.lower() for tier in sorted(block.tiers)),
        "hits": str(block.hits),
        "checksum": block.checksum.hex(),
        PINNED: str(block.pins),
        TTL: f"{block.ttl_seconds:g}",
    }
    if is_kv:
        found |= {"depth": str(block.depth), "tokens": str(block.tokens)}
        found |= {"parent": block.parent.hex()} if block.parent else {}
    return found


def short_name(name: str) -> str:
    """Without the prefix. Raises ENODATA for one that is no attribute of this file system."""
    if not name.startswith(PREFIX):
        raise failure(errno.ENODATA)
    return name.removeprefix(PREFIX)


def change(name: str, value: bytes, flags: int) -> SetPinned | SetTtl:
    """What setting an attribute asks for.

    Raises EOPNOTSUPP for names that are not ours, EPERM for those that nobody sets, EINVAL for a value that means nothing.
    """
    if not name.startswith(PREFIX):
        raise failure(errno.EOPNOTSUPP)
    short = name.removeprefix(PREFIX)
    if short not in SETTABLE:
        raise failure(errno.EPERM)
    if flags & CREATE:
        raise failure(errno.EEXIST)
    text = value.decode("ascii", "replace").strip("\0 \n")
    if short == PINNED:
        if text not in ("0", "1"):
            raise failure(errno.EINVAL)
        return SetPinned(text == "1")
    return SetTtl(_seconds(text) or None)


def removal(name: str) -> SetPinned | SetTtl:
    """What removing an attribute asks for. Raises ENODATA for names that are not ours, EPERM for those that nobody sets."""
    short = short_name(name)
    if short not in SETTABLE:
        raise failure(errno.EPERM)
    return SetPinned(False) if short == PINNED else SetTtl(None)


def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not math.isfinite(found) or found < 0:
        raise failure(errno.EINVAL)
    return found
