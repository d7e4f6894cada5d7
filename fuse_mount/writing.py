"""What changes the store through the mount: files written, removed and renamed, folders made. The rules; no kernel here.

Raises OSError, and what the clients raise.
"""

import errno
from collections.abc import Callable
from functools import partial

from mooncask.client.family import DIGEST_BYTES
from mooncask.errors import MooncaskError
from mooncask.fuse_mount import layout
from mooncask.fuse_mount.drafts import Draft, Drafts, Names
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.layout import Place
from mooncask.fuse_mount.names import key_of_name
from mooncask.fuse_mount.open_files import OpenFiles
from mooncask.fuse_mount.publishing import Publisher, http_key
from mooncask.fuse_mount.spool import Spool
from mooncask.fuse_mount.store_link import Namespace, StoreLink
from mooncask.fuse_mount.tree import BlockNode, DraftNode, Folder, Tree, kv_key, object_key

NO_REPLACE = 1
"""RENAME_NOREPLACE; the other flags of renameat2 are refused."""

Fill = Callable[[BlockNode, Spool], None]


class Writing:
    """Any thread may use it."""

    def __init__(self, link: StoreLink, tree: Tree, drafts: Drafts, open_files: OpenFiles, fill: Fill) -> None:
        self._link, self._tree, self._drafts, self._open_files = link, tree, drafts, open_files
        self._publisher = Publisher(link)
        self._fill = fill
        """Copies what a block holds into a spool."""

    # --- files ---

    def create(self, place: Place) -> Draft:
        """A new file. In a KV namespace a name that is no digest gives a staged one."""
        namespace, names = self._in_blocks(place)
        if namespace.is_kv:
            if len(names) != 1:
                raise failure(errno.ENOENT)
            key = _digest_or_nothing(names)
            if key and self._link.stat(namespace, key) is not None:
                raise failure(errno.EEXIST)
        else:
            key = object_key(names)
        return self._drafts.open(namespace, names, key)

    def rewrite(self, place: Place, node: BlockNode, *, empty: bool) -> Draft:
        """An object that is there, to be changed. A KV block never changes: EPERM."""
        namespace, names = self._in_blocks(place)
        if namespace.is_kv:
            raise failure(errno.EPERM)
        fill = None if empty else partial(self._fill, node)
        draft = self._drafts.open(namespace, names, node.block.key, fill)
        if empty:
            self.empty(draft)
        return draft

    def empty(self, draft: Draft) -> None:
        """As opening with O_TRUNC does."""
        with draft.lock:
            draft.spool.truncate(0)
            draft.touch(written=False)
            draft.broken = False

    def write(self, draft: Draft, data: bytes, offset: int) -> int:
        with draft.lock:
            draft.touch()
            try:
                return draft.spool.write(offset, data)
            except BaseException:
                draft.broken = True
                raise

    def truncate(self, draft: Draft, size: int) -> None:
        with draft.lock:
            draft.touch()
            draft.spool.truncate(size)
            draft.broken = draft.broken and size > 0

    def truncate_path(self, place: Place, size: int) -> None:
        """A file that need not be open: what is changed is stored at once, unless somebody has it open for writing."""
        node = self._tree.node(place)
        match node:
            case DraftNode(draft):
                self.truncate(draft, size)
            case BlockNode():
                draft = self.rewrite(place, node, empty=size == 0)
                try:
                    self.truncate(draft, size)
                    self.publish(draft)
                finally:
                    self._drafts.close(draft)
            case Folder():
                raise failure(errno.EISDIR)
            case _:
                raise failure(errno.EPERM)

    def flush(self, draft: Draft) -> None:
        """Somebody closes the file: stores what was written since the last time."""
        if draft.written:
            self.publish(draft)

    def close(self, draft: Draft) -> None:
        """An open of it has ended. A file that was made or emptied and never written is stored by the last one."""
        try:
            if draft.changed and not draft.written and not draft.namespace.is_kv and self._drafts.is_last_open(draft):
                self.publish(draft)
        finally:
            self._drafts.close(draft)

    def publish(self, draft: Draft, *, durable: bool = False) -> None:
        """Stores what changed since the last time."""
        with draft.lock:
            if draft.changed and draft.key and not draft.namespace.is_kv:
                self._open_files.keep_readable(draft.namespace.name, draft.key)
            if self._publisher.publish(draft, durable=durable):
                self._drafts.wrote(draft.namespace.name, draft.names)

    # --- removing and renaming ---

    def remove(self, place: Place) -> None:
        """Deletes the block at a path from all tiers; those who have it open can go on reading it."""
        node = self._tree.node(place)
        match node:
            case DraftNode(draft):
                self._drafts.forget(draft)
                if not draft.staged:
                    self._evict(draft.namespace, draft.key)
                self._forget_name(draft.namespace, draft.names)
            case BlockNode(namespace, block):
                self._open_files.keep_readable(namespace.name, block.key)
                if not self._evict(namespace, block.key):
                    raise failure(errno.ENOENT)
                if isinstance(place, layout.InBlocks):
                    self._forget_name(namespace, place.names)
            case Folder():
                raise failure(errno.EISDIR)
            case _:
                raise failure(errno.EPERM)

    def _evict(self, namespace: Namespace, key: bytes) -> bool:
        self._link.forget(namespace, key)
        stat = self._link.stat(namespace, key)
        if stat is not None and stat.size > self._link.client.welcome.block_bytes_max:
            with self._link.http() as http:
                http.delete(namespace.name, http_key(key))
            return True
        return self._link.client.evict(namespace.handle, [key]) > 0

    def _forget_name(self, namespace: Namespace, names: Names) -> None:
        self._drafts.removed(namespace.name, names)
        if not namespace.is_kv and len(names) > 1:
            # The folder would vanish with the last file in it, and `rm -r` would not find what it wants to remove next.
            self._drafts.make_folder(namespace.name, names[:-1])

    def rename(self, old: Place, new: Place, flags: int) -> None:
        """Gives a file that this mount wrote its final name; others may not be renamed: EPERM, or EXDEV between namespaces."""
        if flags & ~NO_REPLACE:
            raise failure(errno.EINVAL)
        namespace, source = self._in_blocks(old)
        other, target = self._in_blocks(new)
        if namespace.name != other.name:
            raise failure(errno.EXDEV)
        draft = self._drafts.find(namespace.name, source)
        if draft is None and not self._drafts.is_ours(namespace.name, source):
            raise failure(errno.EPERM)
        if source == target:
            return
        self._check_target(namespace, target, no_replace=bool(flags & NO_REPLACE))
        if draft is not None:
            self._rename_draft(draft, target)
        else:
            self._rename_stored(namespace, source, target)

    def _check_target(self, namespace: Namespace, names: Names, *, no_replace: bool) -> None:
        if namespace.is_kv:
            key = _digest_or_nothing(names)
            if len(names) != 1:
                raise failure(errno.ENOENT)
            if key and self._link.stat(namespace, key) is not None:
                raise failure(errno.EEXIST)
            return
        if self._tree.is_folder(namespace, names):
            raise failure(errno.EISDIR)
        if no_replace and self._link.stat(namespace, object_key(names)) is not None:
            raise failure(errno.EEXIST)

    def _rename_draft(self, draft: Draft, names: Names) -> None:
        namespace = draft.namespace
        key = _digest_or_nothing(names) if namespace.is_kv else object_key(names)
        with draft.lock:
            old_names, old_key, changed = draft.names, draft.key, draft.changed
            self._drafts.move(draft, names, key)
            draft.changed = True
            try:
                published = self._publisher.publish(draft)
            except BaseException:
                draft.changed = changed
                self._drafts.move(draft, old_names, old_key)
                raise
        if published:
            self._drafts.wrote(namespace.name, names)
        if old_key:
            self._evict(namespace, old_key)
        self._drafts.removed(namespace.name, old_names)
        if published and draft.opens <= 0:
            self._drafts.forget(draft)

    def _rename_stored(self, namespace: Namespace, source: Names, target: Names) -> None:
        if namespace.is_kv:
            raise failure(errno.EPERM)
        old_key, new_key = object_key(source), object_key(target)
        self._open_files.keep_readable(namespace.name, new_key)
        self._publisher.copy(namespace, old_key, new_key)
        self._drafts.displace(namespace.name, target)
        self._drafts.wrote(namespace.name, target)
        self._evict(namespace, old_key)
        self._forget_name(namespace, source)

    # --- folders ---

    def make_folder(self, place: Place) -> None:
        """A namespace of objects, or a folder in one: that lives in this mount until something is in it."""
        match place:
            case layout.NamespaceFolder(name):
                if self._exists(place):
                    raise failure(errno.EEXIST)
                self._link.create_namespace(key_of_name(name))
            case layout.InBlocks(_, names) if names:
                namespace, _ = self._in_blocks(place)
                if namespace.is_kv:
                    raise failure(errno.EPERM)
                if self._exists(place):
                    raise failure(errno.EEXIST)
                object_key((*names, b"x"))
                self._drafts.make_folder(namespace.name, names)
            case _:
                raise failure(errno.EEXIST if self._exists(place) else errno.EPERM)

    def remove_folder(self, place: Place) -> None:
        """An empty folder, or a namespace of objects without any."""
        node = self._tree.node(place)
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR)
        match place:
            case layout.NamespaceFolder(name):
                namespace = self._tree.namespace(name)
                if namespace.is_kv:
                    raise failure(errno.EPERM)
                self._link.drop_namespace(key_of_name(name))
            case layout.InBlocks(name, names) if names:
                if next(self._tree.entries(node), None) is not None:
                    raise failure(errno.ENOTEMPTY)
                self._drafts.remove_folder(self._tree.namespace(name).name, names)
            case _:
                raise failure(errno.EPERM)

    def _exists(self, place: Place) -> bool:
        try:
            self._tree.node(place)
        except (OSError, MooncaskError) as error:
            if error.errno != errno.ENOENT:
                raise
            return False
        return True

    def _in_blocks(self, place: Place) -> tuple[Namespace, Names]:
        """The namespace and the names below its `blocks/`. Raises EPERM for every other place: nobody writes there."""
        if not isinstance(place, layout.InBlocks) or not place.names:
            raise failure(errno.EPERM)
        return self._tree.namespace(place.namespace), place.names


def _digest_or_nothing(names: Names) -> bytes:
    """The key that a name in a KV namespace means; empty for a name that is no digest."""
    try:
        key = kv_key(names)
    except OSError:
        return b""
    return key if len(key) == DIGEST_BYTES else b""
