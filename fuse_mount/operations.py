"""The file system as the kernel asks for it: each operation in the words of mfusepy. What it means is decided elsewhere.

Paths are text in which bytes that are no UTF-8 are kept as surrogates; `fi` is libfuse's record of an open file.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import mfusepy

from mooncask.client.control_client import ControlClient
from mooncask.client.local import LocalClient
from mooncask.fuse_mount import layout, xattrs
from mooncask.fuse_mount.attributes import Attributes, Owner, file_system
from mooncask.fuse_mount.drafts import Draft, Drafts
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.leased_views import BlockFile, LeasedViews
from mooncask.fuse_mount.long_objects import LongObjects
from mooncask.fuse_mount.open_files import OpenFiles, TextFile
from mooncask.fuse_mount.open_files import Writing as OpenWriting
from mooncask.fuse_mount.open_folders import OpenFolder
from mooncask.fuse_mount.options import ATTRIBUTES_SECONDS, MountOptions
from mooncask.fuse_mount.spool import Spool
from mooncask.fuse_mount.store_link import StoreLink
from mooncask.fuse_mount.tree import BlockNode, DraftNode, Folder, Found, LinkNode, Node, TextNode, Tree
from mooncask.fuse_mount.versions import Versions
from mooncask.fuse_mount.writing import Writing

BACKGROUND_MAX = 64
"""Requests that the kernel may have under way without anybody waiting: readahead."""


class MountedStore(mfusepy.Operations):  # type: ignore[misc]  # mfusepy has no types
    """One mount's operations. libfuse calls them from several threads at a time; no lock is held while the daemon is asked."""

    use_ns = True
    flag_nopath = True
    flag_nullpath_ok = True

    def __init__(self, client: LocalClient, options: MountOptions, on_ready: Callable[[], None]) -> None:
        self._on_ready = on_ready
        self._client = client
        self._link = StoreLink(client, options.deadline_seconds)
        self._drafts = Drafts(options.spool_folder)
        owner = Owner(os.getuid(), os.getgid(), not options.read_only)
        self._pages = ControlClient(options.socket_path, options.deadline_seconds)
        self._tree = Tree(self._link, self._pages, self._drafts, owner)
        self._views = LeasedViews(self._link)
        self._long_objects = LongObjects(self._link)
        self._versions = Versions()
        self.open_files = OpenFiles(self._views, self._long_objects)
        self._writing = Writing(self._link, self._tree, self._drafts, self.open_files, self._fill)

    def init_with_config(self, conn_info: Any, config_3: Any) -> None:
        sys.setswitchinterval(0.0005)
        conn_info.max_background = BACKGROUND_MAX
        config_3.attr_timeout = config_3.entry_timeout = ATTRIBUTES_SECONDS
        config_3.negative_timeout = 0.0
        # Pages are kept while time and size are as they were, and each open looks.
        config_3.auto_cache = 1
        config_3.ac_attr_timeout_set = 1
        config_3.ac_attr_timeout = 0.0
        config_3.hard_remove = 1  # else libfuse would rename what is removed while it is open
        self._on_ready()

    def destroy(self, path: str) -> None:
        self._views.close()
        self._long_objects.close()
        self._pages.close()
        self._client.close()

    # --- looking ---

    def getattr(self, path: str | None, fh: Any = None) -> Attributes:
        if fh is not None:
            return self._open_attributes(self.open_files.get(fh.fh))
        return self._attributes(self._tree.node(_place(path)))

    def _attributes(self, node: Node) -> Attributes:
        if isinstance(node, BlockNode):
            self._versions.tell(node.namespace, node.block)
        return self._tree.attributes(node)

    def _open_attributes(self, file: Any) -> Attributes:
        match file:
            case BlockFile(namespace, block):
                return self._tree.attributes(BlockNode(namespace, block))
            case TextFile(content):
                return self._tree.attributes(TextNode(content))
            case OpenWriting(draft, _):
                return self._tree.attributes(DraftNode(draft))
        raise failure(errno.EBADF)

    def readlink(self, path: str) -> str:
        node = self._tree.node(_place(path))
        if not isinstance(node, LinkNode):
            raise failure(errno.EINVAL)
        return os.fsdecode(node.target)

    def statfs(self, path: str) -> Attributes:
        return file_system(self._link.status())

    def opendir(self, path: str) -> int:
        node = self._tree.node(_place(path))
        if not isinstance(node, Folder):
            raise failure(errno.ENOTDIR)
        return self.open_files.add(OpenFolder(lambda: self._entries(node)))

    def _entries(self, folder: Folder) -> Iterator[Found]:
        yield b".", folder
        yield b"..", folder
        yield from self._tree.entries(folder)

    def readdir(self, path: str | None, fh: int) -> list[str]:
        """Makes mfusepy register the callback; `kernel.py` answers it, a piece at a time."""
        raise failure(errno.ENOSYS)

    def read(self, path: str | None, size: int, offset: int, fh: Any) -> bytes:
        """As `readdir`."""
        raise failure(errno.ENOSYS)

    def entry_attributes(self, found: Found) -> Attributes:
        return self._attributes(found[1])

    def releasedir(self, path: str | None, fh: int) -> int:
        self.open_files.remove(fh)
        return 0

    # --- files ---

    def open(self, path: str, flags: Any) -> int:
        fi, place = flags, _place(path)
        writes, empties = fi.flags & os.O_ACCMODE != os.O_RDONLY, bool(fi.flags & os.O_TRUNC)
        node = self._tree.node(place) if writes else self._tree.node_to_read(place)
        match node:
            case Folder() | LinkNode():
                raise failure(errno.EISDIR if isinstance(node, Folder) else errno.ELOOP)
            case TextNode(content):
                if writes:
                    raise failure(errno.EPERM)
                fi.direct_io = 1  # what it says changes, and its length with it
                fi.fh = self.open_files.add(TextFile(content))
            case DraftNode(draft):
                self._attach(draft, fi, writes=writes, empty=writes and empties)
            case BlockNode():
                if writes:
                    fi.direct_io = self._is_read(node.namespace.name, node.block.key)
                    draft = self._writing.rewrite(place, node, empty=empties)
                    fi.fh = self.open_files.add(OpenWriting(draft))
                else:
                    fi.noflush = 1
                    fi.direct_io = int(self._versions.tell(node.namespace, node.block))
                    fi.fh = self.open_files.add(BlockFile(node.namespace, node.block))
        return 0

    def _attach(self, draft: Draft, fi: Any, *, writes: bool, empty: bool) -> None:
        attached = self._drafts.attach(draft.namespace.name, draft.names)
        if attached is None:  # closed meanwhile; whoever asks again finds what it became
            raise failure(errno.ESTALE)
        if empty:
            self._writing.empty(attached)
        fi.direct_io = self._is_read(draft.namespace.name, draft.key)
        fi.fh = self.open_files.add(OpenWriting(attached, writes))

    def _is_read(self, namespace: str, key: bytes) -> int:
        """1 if somebody reads what is stored by that key: what is written must not get into the pages that he reads."""
        return int(bool(self.open_files.readers(namespace, key)))

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        fi.fh = self.open_files.add(OpenWriting(self._writing.create(_place(path))))
        return 0

    def write(self, path: str | None, data: bytes, offset: int, fh: Any) -> int:
        return self._writing.write(self._draft(fh), data, offset)

    def truncate(self, path: str | None, length: int, fh: Any = None) -> int:
        if fh is not None:
            self._writing.truncate(self._draft(fh), length)
        else:
            self._writing.truncate_path(_place(path), length)
        return 0

    def flush(self, path: str | None, fh: Any) -> int:
        file = self.open_files.get(fh.fh)
        if isinstance(file, OpenWriting) and file.writes:
            self._writing.flush(file.draft)
        return 0

    def fsync(self, path: str | None, datasync: int, fh: Any) -> int:
        file = self.open_files.get(fh.fh)
        if isinstance(file, OpenWriting) and file.writes:
            self._writing.publish(file.draft, durable=True)
        return 0

    def release(self, path: str | None, fh: Any) -> int:
        file = self.open_files.remove(fh.fh)
        if isinstance(file, OpenWriting):
            self._writing.close(file.draft)
        return 0

    def _draft(self, fi: Any) -> Draft:
        file = self.open_files.get(fi.fh)
        if not isinstance(file, OpenWriting):
            raise failure(errno.EBADF)
        return file.draft

    def _fill(self, node: BlockNode, spool: Spool) -> None:
        """Copies what an object holds into a spool."""
        for piece in self.open_files.read_all(node):
            spool.write(spool.size, piece)

    # --- names ---

    def unlink(self, path: str) -> int:
        self._writing.remove(_place(path))
        return 0

    def rename_with_flags(self, old: str, new: str, flags: int) -> int:
        self._writing.rename(_place(old), _place(new), flags)
        return 0

    def rename(self, old: str, new: str) -> int:
        return self.rename_with_flags(old, new, 0)

    def mkdir(self, path: str, mode: int) -> int:
        self._writing.make_folder(_place(path))
        return 0

    def rmdir(self, path: str) -> int:
        self._writing.remove_folder(_place(path))
        return 0

    # --- what is not kept: modes and times are the store's ---

    def chmod(self, path: str | None, mode: int) -> int:
        return 0

    def chown(self, path: str | None, uid: int, gid: int) -> int:
        if uid not in (-1, os.getuid()) or gid not in (-1, os.getgid()):
            raise failure(errno.EPERM)
        return 0

    def utimens(self, path: str | None, times: tuple[int, int] | None = None) -> int:
        return 0

    # --- extended attributes ---

    def getxattr(self, path: str, name: str, position: int = 0) -> bytes:
        short = xattrs.short_name(name)
        found = self._xattrs(path).get(short)
        if found is None:
            raise failure(errno.ENODATA)
        return found.encode()

    def listxattr(self, path: str) -> list[str]:
        return [xattrs.PREFIX + name for name in self._xattrs(path)]

    def setxattr(self, path: str, name: str, value: bytes, options: int, position: int = 0) -> int:
        self._change(path, xattrs.change(name, value, options))
        return 0

    def removexattr(self, path: str, name: str) -> int:
        self._change(path, xattrs.removal(name))
        return 0

    def _xattrs(self, path: str) -> dict[str, str]:
        node = self._tree.node(_place(path))
        return xattrs.values(node.block, is_kv=node.namespace.is_kv) if isinstance(node, BlockNode) else {}

    def _change(self, path: str, change: xattrs.SetPinned | xattrs.SetTtl) -> None:
        node = self._tree.node(_place(path))
        if not isinstance(node, BlockNode):
            raise failure(errno.EPERM)
        namespace, keys = node.namespace.handle, [node.block.key]
        match change:
            case xattrs.SetTtl(seconds):
                found = self._client.set_ttl(namespace, keys, seconds)
            case xattrs.SetPinned(True):
                found = 1 if node.block.pins else self._client.pin(namespace, keys)
            case _:
                found = min((self._client.unpin(namespace, keys) for _ in range(node.block.pins)), default=1)
        if not found:
            raise failure(errno.ENOENT)


def _place(path: str | None) -> layout.Place:
    assert path is not None, "libfuse gives the path where there is no open file"
    return layout.parse(os.fsencode(path))
