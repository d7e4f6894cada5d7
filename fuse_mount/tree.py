"""What stands at a path, and what is in a folder: the layout with what the store and this mount hold. Changes nothing."""

import errno
import time
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from mooncask.client.control_client import ControlClient
from mooncask.client.wire import KEY_BYTES_MAX, BlockStat, NamespaceKind, NamespaceStat
from mooncask.errors import NoSuchBlock
from mooncask.fuse_mount import layout, listing, pages
from mooncask.fuse_mount.attributes import Attributes, Owner
from mooncask.fuse_mount.chains import Chains
from mooncask.fuse_mount.drafts import Draft, Drafts, Names
from mooncask.fuse_mount.failures import failure
from mooncask.fuse_mount.layout import Place
from mooncask.fuse_mount.names import key_of_name, key_prefix, names_of_segment, says_beside
from mooncask.fuse_mount.store_link import Namespace, StoreLink


@dataclass(frozen=True, slots=True)
class Folder:
    """`place` tells what is in it."""

    place: Place
    writable: bool = True


@dataclass(frozen=True, slots=True)
class BlockNode:
    namespace: Namespace
    block: BlockStat


@dataclass(frozen=True, slots=True)
class DraftNode:
    draft: Draft


@dataclass(frozen=True, slots=True)
class TextNode:
    content: bytes


@dataclass(frozen=True, slots=True)
class LinkNode:
    target: bytes


Node = Folder | BlockNode | DraftNode | TextNode | LinkNode
Found = tuple[bytes, Node]
"""A name in a folder and what it is."""


def object_key(names: Names) -> bytes:
    """The key of the object at this path. Raises ENAMETOOLONG, and EINVAL for the one name that means no key."""
    key = key_prefix(list(names[:-1])) + key_of_name(names[-1])
    if len(key) > KEY_BYTES_MAX:
        raise failure(errno.ENAMETOOLONG)
    if not key:
        raise failure(errno.EINVAL)
    return key


def kv_key(names: Names) -> bytes:
    """The digest that this path in a KV namespace's `blocks/` names. Raises ENOENT."""
    if len(names) != 1:
        raise failure(errno.ENOENT)
    return layout.digest(names[0])


class Tree:
    """Any thread may use it. Raises OSError, and what the clients raise."""

    def __init__(self, link: StoreLink, pages: ControlClient, drafts: Drafts, owner: Owner) -> None:
        self._link, self._pages, self._drafts, self._owner = link, pages, drafts, owner
        self._chains = Chains(link, pages)
        self._started_seconds = time.time()

    def attributes(self, node: Node) -> Attributes:
        owner = self._owner
        match node:
            case Folder(_, writable):
                return owner.folder(self._started_seconds, writable=writable)
            case BlockNode(namespace, block):
                return owner.block(block, writable=not namespace.is_kv)
            case DraftNode(draft):
                return owner.file(draft.spool.size, draft.time_ns, writable=True)
            case TextNode(content):
                return owner.file(len(content), time.time_ns(), writable=False)
            case LinkNode(target):
                return owner.link(target, self._started_seconds)

    # --- what stands at a path ---

    def node(self, place: Place) -> Node:
        match place:
            case layout.Root():
                return Folder(place)
            case layout.OwnFolder():
                return Folder(place, writable=False)
            case layout.OwnPage(name):
                return TextNode(self._own_page(name))
            case layout.NamespaceFolder(name):
                self.namespace(name)
                return Folder(place, writable=False)
            case layout.StatsPage(name):
                return TextNode(pages.namespace_stats(self.namespace(name).stat))
            case layout.InBlocks(name, names):
                return self._in_blocks(self.namespace(name), place, names)
        return self._of_kv(place)

    def _of_kv(self, place: Place) -> Node:
        """`by-digest/` and `chains/`, which only KV namespaces have."""
        assert not isinstance(place, layout.Root | layout.OwnFolder | layout.OwnPage)
        namespace = self.namespace(place.namespace)
        if not namespace.is_kv:
            raise failure(errno.ENOENT)
        match place:
            case layout.DigestFolder(_, prefix):
                if prefix and self._link.first(namespace, prefix) is None:
                    raise failure(errno.ENOENT)
                return Folder(place)
            case layout.DigestBlock(_, key):
                return self._block(namespace, key)
            case layout.ChainsFolder():
                return Folder(place, writable=False)
            case layout.ChainFolder(_, tip) | layout.NextFolder(_, tip):
                self._block(namespace, tip)
                return Folder(place, writable=isinstance(place, layout.ChainFolder))
            case layout.ChainInfo(_, tip):
                return self._info(namespace, tip)
            case layout.ChainBlock(_, tip, index, key):
                return self._chain_block(namespace, tip, index, key)
            case layout.NextLink(_, tip, key):
                if self._block(namespace, key).block.parent != tip:
                    raise failure(errno.ENOENT)
                return LinkNode(_link_target(key))
        raise failure(errno.ENOENT)

    def namespace(self, name: bytes) -> Namespace:
        """By the name of its folder. Raises NoSuchNamespace."""
        return self._link.namespace(key_of_name(name))

    def node_to_read(self, place: Place) -> Node:
        """As `node`, but a KV block may be one that was there a moment ago: for opening what was just looked up."""
        match place:
            case layout.InBlocks(name, (digits,)):
                namespace = self.namespace(name)
                if namespace.is_kv and self._drafts.find(namespace.name, place.names) is None:
                    return self._recent_block(namespace, layout.digest(digits))
            case layout.DigestBlock(name, key):
                return self._recent_block(self.namespace(name), key)
        return self.node(place)

    def _recent_block(self, namespace: Namespace, key: bytes) -> BlockNode:
        block = self._link.recent(namespace, key)
        return BlockNode(namespace, block) if block else self._block(namespace, key)

    def _block(self, namespace: Namespace, key: bytes) -> BlockNode:
        block = self._link.stat(namespace, key)
        if block is None:
            raise NoSuchBlock(namespace.name, key.hex())
        return BlockNode(namespace, block)

    def _in_blocks(self, namespace: Namespace, place: Place, names: Names) -> Node:
        if not names:
            return Folder(place)
        draft = self._drafts.find(namespace.name, names)
        if draft is not None:
            return DraftNode(draft)
        if namespace.is_kv:
            return self._block(namespace, kv_key(names))
        if not says_beside(names[-1]) and self.is_folder(namespace, names):
            return Folder(place)
        return self._block(namespace, object_key(names))

    def is_folder(self, namespace: Namespace, names: Names) -> bool:
        """Whether something is in the folder of these names, or it was made in this mount."""
        if self._drafts.is_folder(namespace.name, names):
            return True
        prefix = key_prefix(list(names))
        return len(prefix) <= KEY_BYTES_MAX and self._link.first(namespace, prefix) is not None

    def _chain_block(self, namespace: Namespace, tip: bytes, index: int, key: bytes) -> BlockNode:
        blocks = self._chains.path(namespace, tip).blocks
        if index >= len(blocks) or blocks[index].key != key:
            raise failure(errno.ENOENT)
        return self._block(namespace, key)

    def _info(self, namespace: Namespace, tip: bytes) -> TextNode:
        chain = self._chains.path(namespace, tip)
        continued_by = sum(1 for _ in self._chains.children(namespace, tip))
        return TextNode(pages.chain_info(chain, continued_by, time.time()))

    def _own_page(self, name: bytes) -> bytes:
        match name:
            case b"config":
                return pages.text(msgspec.to_builtins(self._pages.config()))
            case b"peers":
                return pages.text(msgspec.to_builtins(self._pages.peers()))
        return pages.daemon_stats(self._link.status())

    # --- what is in a folder ---

    def entries(self, folder: Folder) -> Iterator[Found]:
        """In the store's order; large folders are read a page at a time, while they are asked for."""
        place = folder.place
        match place:
            case layout.Root():
                return self._namespaces()
            case layout.OwnFolder():
                return ((name, self.node(layout.OwnPage(name))) for name in layout.OWN_PAGES)
        assert not isinstance(place, layout.OwnPage)
        namespace = self.namespace(place.namespace)
        match place:
            case layout.NamespaceFolder(name):
                return self._views(name, namespace.stat)
            case layout.InBlocks(_, names):
                return self._blocks(namespace, place, names)
            case layout.DigestFolder(_, prefix):
                return self._digests(namespace, place, prefix)
            case layout.ChainsFolder():
                return self._chain_folders(namespace, place)
            case layout.ChainFolder(_, tip):
                return self._chain(namespace, place, tip)
            case layout.NextFolder(_, tip):
                children = self._chains.children(namespace, tip)
                return ((listing.hex_name(key), LinkNode(_link_target(key))) for key in children)
        raise failure(errno.ENOTDIR)

    def _namespaces(self) -> Iterator[Found]:
        yield layout.OWN, Folder(layout.OwnFolder(), writable=False)
        for stat in self._link.namespaces():
            segment = stat.name.encode(errors="surrogateescape")
            if b"/" not in segment and len(names := names_of_segment(segment)) == 1:
                yield names[0], Folder(layout.NamespaceFolder(names[0]), writable=False)

    def _views(self, name: bytes, stat: NamespaceStat) -> Iterator[Found]:
        yield layout.BLOCKS, Folder(layout.InBlocks(name, ()))
        if stat.kind is NamespaceKind.KV:
            yield layout.BY_DIGEST, Folder(layout.DigestFolder(name, b""))
            yield layout.CHAINS, Folder(layout.ChainsFolder(name), writable=False)
        yield layout.STATS, TextNode(pages.namespace_stats(stat))

    def _blocks(self, namespace: Namespace, place: layout.InBlocks, names: Names) -> Iterator[Found]:
        ours = self._drafts.within(namespace.name, names)
        for name, draft in ours.items():
            yield name, DraftNode(draft) if draft else Folder(layout.InBlocks(place.namespace, (*names, name)))
        if namespace.is_kv:
            stored = listing.kv_blocks(self._link, namespace)
        else:
            stored = listing.object_entries(self._link, namespace, names)
        for entry in stored:
            if entry.name in ours:
                continue
            inner = layout.InBlocks(place.namespace, (*names, entry.name))
            yield entry.name, BlockNode(namespace, entry.block) if entry.block else Folder(inner)

    def _digests(self, namespace: Namespace, place: layout.DigestFolder, prefix: bytes) -> Iterator[Found]:
        if len(prefix) == layout.FAN_OUT:
            for entry in listing.kv_blocks(self._link, namespace, prefix):
                assert entry.block is not None
                yield entry.name, BlockNode(namespace, entry.block)
            return
        for entry in listing.digest_folders(self._link, namespace, prefix):
            inner = layout.DigestFolder(place.namespace, prefix + bytes.fromhex(entry.name.decode()))
            yield entry.name, Folder(inner)

    def _chain_folders(self, namespace: Namespace, place: layout.ChainsFolder) -> Iterator[Found]:
        for tip in self._chains.tips(namespace):
            yield listing.hex_name(tip), Folder(layout.ChainFolder(place.namespace, tip))

    def _chain(self, namespace: Namespace, place: layout.ChainFolder, tip: bytes) -> Iterator[Found]:
        yield layout.INFO, self._info(namespace, tip)
        yield layout.NEXT, Folder(layout.NextFolder(place.namespace, tip), writable=False)
        for index, block in enumerate(self._chains.path(namespace, tip).blocks):
            yield layout.chain_name(index, block.key), BlockNode(namespace, block)


def _link_target(key: bytes) -> bytes:
    """From `chains/<digest>/next/` to `chains/<key>`."""
    return b"../../" + listing.hex_name(key)
