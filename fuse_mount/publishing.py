"""Stores what was written as files: when, whole or not at all, by shared memory or, for what is longer than a block, by HTTP.

In a KV namespace a file becomes a block only when every byte of it was written and it has the size that the namespace's
blocks have: the kernel tells a writer that ended from one that was killed in no way, and half a block must never be found.
"""

import errno
import logging

from mooncask.client.http import Key
from mooncask.errors import BadRequest, BlockTooLarge, NoSuchBlock, ObjectInParts
from mooncask.fuse_mount.drafts import Draft
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.store_link import Namespace, StoreLink

log = logging.getLogger(__name__)


class Publisher:
    """Any thread may use it. Callers hold the draft's lock."""

    def __init__(self, link: StoreLink) -> None:
        self._link = link

    def publish(self, draft: Draft, *, durable: bool = False) -> bool:
        """Stores what changed since the last time; false where there is nothing to store, or no name to store it by.

        Raises EIO for what is no block of a KV namespace, and what the clients raise. Nothing is stored then.
        """
        if draft.broken:
            raise failure(errno.EIO)
        if not draft.changed or draft.staged or draft.removed:
            return False
        if draft.namespace.is_kv:
            self._check_block(draft)
        durable = durable and draft.namespace.handle.mode != "memory"
        if draft.spool.size > self._link.client.welcome.block_bytes_max:
            self._put_long(draft)
        else:
            self._link.client.put(draft.namespace.handle, [draft.key], [draft.spool.payload()], durable=durable)
        draft.changed = draft.written = False
        return True

    def _check_block(self, draft: Draft) -> None:
        size = self._block_bytes(draft.namespace)
        if draft.spool.size != size or not draft.spool.whole:
            wanted = f"{size} bytes, as its other blocks" if size else "a first block by a client that knows its size"
            have = f"{draft.spool.size} bytes" + ("" if draft.spool.whole else " with holes")
            log.warning(
                "%s/%s: %s were written and the namespace wants %s; nothing is stored",
                draft.namespace.name,
                draft.key.hex(),
                have,
                wanted,
            )
            raise failure(errno.EIO)

    def _block_bytes(self, namespace: Namespace) -> int:
        """What a KV namespace's blocks have, 0 while it has none."""
        first = self._link.first(namespace)
        return first.size if first else 0

    def _put_long(self, draft: Draft) -> None:
        if draft.namespace.is_kv:
            raise BlockTooLarge(draft.spool.size, self._link.client.welcome.block_bytes_max)
        with self._link.http() as http:
            http.put(
                draft.namespace.name,
                http_key(draft.key),
                draft.spool.payload(),
                deadline_seconds=_seconds(draft.spool.size),
            )

    def copy(self, namespace: Namespace, source: bytes, target: bytes) -> None:
        """Stores an object's bytes under another key too. Raises NoSuchBlock."""
        try:
            with self._link.client.acquire(namespace.handle, [source]) as blocks:
                block = blocks[0]
                if block is None:
                    raise NoSuchBlock(namespace.name, source.decode(errors="replace"))
                self._link.client.put(namespace.handle, [target], [block.memory])
        except ObjectInParts as error:
            with self._link.http() as http:
                http.copy(namespace.name, http_key(target), http_key(source), _seconds(error.size_bytes))


def http_key(key: bytes) -> Key:
    """An object's key as HTTP takes it. Raises BadRequest for one that is no text."""
    try:
        return key.decode()
    except UnicodeDecodeError as exc:
        raise BadRequest(f"key {key!r} is no UTF-8: HTTP, which longer objects need, can't name it") from exc


def _seconds(size: int) -> float:
    """For a long transfer: as slow as 16 MB a second is allowed."""
    return 30.0 + size / 16e6
