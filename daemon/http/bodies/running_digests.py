"""Digests of a body while it arrives: MD5, SHA and CRCs, each computed in order beside reception, off the event loop.

Which digests a request wants and what they must be: `body_promises.py`.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterable
from typing import Protocol

from mooncask.daemon.http.bodies.ordered_work import OrderedWork

DIGESTS = {"md5": 16, "crc32": 4, "crc32c": 4, "crc64nvme": 8, "sha1": 20, "sha256": 32}
"""Name -> bytes of the digest."""
_OF_AWSCRT = frozenset({"crc32c", "crc64nvme"})


class Hasher(Protocol):
    def update(self, data: memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class RunningDigests:
    """Digests of all that is fed, under their names. Each has a place in a thread of its own while there is work.

    Memory that was fed must keep its bytes until `finish` or `cancel` has returned.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """Raises ImportError for a name in `missing_digests()`, KeyError for one that is not in DIGESTS."""
        self._hashers = {name: _hasher(name) for name in names}
        self._works = [OrderedWork(_updater(hasher)) for hasher in self._hashers.values()]

    async def feed(self, view: memoryview) -> None:
        """Returns at once, unless more than a few MiB wait to be hashed already."""
        size = view.nbytes
        for work in self._works:
            work.add(view, size)
        for work in self._works:
            await work.room()

    async def finish(self) -> dict[str, bytes]:
        """Name -> digest, big-endian for CRCs as S3 writes them."""
        for work in self._works:
            await work.finish()
        return {name: hasher.digest() for name, hasher in self._hashers.items()}

    async def cancel(self) -> None:
        """Nothing that was fed is read any more when this returns."""
        for work in self._works:
            await work.cancel()


def missing_digests() -> frozenset[str]:
    """Names in DIGESTS that this installation cannot compute."""
    try:
        import awscrt.checksums  # noqa: F401
    except ImportError:
        return _OF_AWSCRT
    return frozenset()


def _updater(hasher: Hasher) -> Callable[[list[memoryview]], None]:
    def update(views: list[memoryview]) -> None:
        for view in views:
            hasher.update(view)

    return update


def _hasher(name: str) -> Hasher:
    match name:
        case "md5" | "sha1":
            return hashlib.new(name, usedforsecurity=False)
        case "sha256":
            return hashlib.sha256()
        case "crc32":
            return _Crc(zlib.crc32, DIGESTS[name])
    from awscrt import checksums

    return _Crc({"crc32c": checksums.crc32c, "crc64nvme": checksums.crc64nvme}[name], DIGESTS[name])


class _Crc:
    def __init__(self, extend: Callable[[memoryview, int], int], size_bytes: int) -> None:
        self._extend, self._size_bytes = extend, size_bytes
        self._value = 0

    def update(self, data: memoryview) -> None:
        self._value = self._extend(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._size_bytes, "big")
