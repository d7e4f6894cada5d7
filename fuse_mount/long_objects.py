"""Reads objects that are stored in parts, as those longer than a block are: pieces by HTTP, since the local socket leases single blocks only.

Every piece is asked for with the version's tag, so that a file never shows parts of two versions.
"""

import errno
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mooncask.client.http import HttpClient, Key
from mooncask.errors import NoSuchBlock, PreconditionFailed
from mooncask.fuse_mount.attributes import same_version
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.publishing import http_key
from mooncask.fuse_mount.store_link import StoreLink
from mooncask.fuse_mount.tree import BlockNode

PIECE_BYTES = 4 << 20
PIECES_MAX = 16
CONNECTIONS_MAX = 4


@dataclass(frozen=True, slots=True, eq=False)
class LongFile:
    """One version of a long object. `tag` is what HTTP calls it by."""

    node: BlockNode
    key: Key
    size: int
    tag: str

    @property
    def namespace(self) -> str:
        return self.node.namespace.name


@dataclass(frozen=True, slots=True)
class _Piece:
    file: LongFile
    number: int


class LongObjects:
    """Pieces of all long objects that are being read. Any thread may use it."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link
        self._lock = threading.Lock()
        self._pieces: OrderedDict[_Piece, bytes] = OrderedDict()
        self._fetching: dict[_Piece, threading.Lock] = {}
        self._idle: deque[HttpClient] = deque()
        self._connections = threading.BoundedSemaphore(CONNECTIONS_MAX)

    def open(self, node: BlockNode) -> LongFile:
        """The version that is here now. Raises NoSuchBlock, and ESTALE when it is another one than `node`'s."""
        key = http_key(node.block.key)
        with self._connection() as http:
            found = http.head(node.namespace.name, key)
        again = self._link.stat(node.namespace, node.block.key)
        if again is None or not same_version(again, node.block) or found.size != node.block.size:
            raise failure(errno.ESTALE)
        return LongFile(node, key, found.size, found.checksum)

    def read(self, file: LongFile, offset: int, size: int) -> bytes:
        """Bytes [offset, offset + size), as far as there are any."""
        stop = min(offset + size, file.size)
        found = []
        while offset < stop:
            number, start = divmod(offset, PIECE_BYTES)
            part = self._piece(_Piece(file, number))[start : start + stop - offset]
            found.append(part)
            offset += len(part)
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _piece(self, piece: _Piece) -> bytes:
        with self._lock:
            found = self._pieces.get(piece)
            if found is not None:
                self._pieces.move_to_end(piece)
                return found
            fetching = self._fetching.setdefault(piece, threading.Lock())
        with fetching:
            with self._lock:
                found = self._pieces.get(piece)
            if found is None:
                try:
                    found = self._fetch(piece)
                    self._keep(piece, found)
                finally:
                    with self._lock:
                        self._fetching.pop(piece, None)
        return found

    def _fetch(self, piece: _Piece) -> bytes:
        file, start = piece.file, piece.number * PIECE_BYTES
        stop = min(start + PIECE_BYTES, file.size)
        try:
            with self._connection() as http:
                return http.get(file.namespace, file.key, start, stop, checksum=file.tag)
        except (PreconditionFailed, NoSuchBlock) as exc:
            raise failure(errno.ESTALE) from exc

    @contextmanager
    def _connection(self) -> Iterator[HttpClient]:
        """One for a request; kept for the next one unless it failed."""
        with self._connections:
            http = self._idle.popleft() if self._idle else self._link.http()
            try:
                yield http
            except BaseException:
                http.close()
                raise
            self._idle.append(http)

    def _keep(self, piece: _Piece, data: bytes) -> None:
        with self._lock:
            self._pieces[piece] = data
            while len(self._pieces) > PIECES_MAX:
                self._pieces.popitem(last=False)
