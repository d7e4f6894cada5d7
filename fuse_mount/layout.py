"""What each path of the mount means, by its text alone. Pure: whether it exists is not known here.

/<namespace>/blocks/<key>                         blocks by their keys, as `names.py` writes them; hex in KV namespaces
/<namespace>/by-digest/ab/cd/abcd...              KV blocks, in folders small enough to be listed
/<namespace>/chains/<digest>/<index>-<digest>     the blocks from where a chain begins to <digest>
/<namespace>/chains/<digest>/next/<digest>        links to what continues it
/<namespace>/chains/<digest>/.info
/<namespace>/.stats
/.mooncask/{config,stats,peers}
"""

import errno
from dataclasses import dataclass

from mooncask.fuse_mount.failures import failure

BLOCKS, BY_DIGEST, CHAINS, STATS = b"blocks", b"by-digest", b"chains", b".stats"
OWN = b".mooncask"
OWN_PAGES = (b"config", b"peers", b"stats")
INFO, NEXT = b".info", b"next"
FAN_OUT = 2
"""Folders between `by-digest/` and a block, each named by a byte of the digest."""


@dataclass(frozen=True, slots=True)
class Root:
    """The mount itself."""


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """/.mooncask"""


@dataclass(frozen=True, slots=True)
class OwnPage:
    """/.mooncask/<name>"""

    name: bytes


@dataclass(frozen=True, slots=True)
class NamespaceFolder:
    namespace: bytes


@dataclass(frozen=True, slots=True)
class StatsPage:
    namespace: bytes


@dataclass(frozen=True, slots=True)
class InBlocks:
    """`blocks/` (no names), a folder below it, or a block: only the store knows which."""

    namespace: bytes
    names: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class DigestFolder:
    """`by-digest/`, or a folder in it whose blocks' digests begin with `prefix`."""

    namespace: bytes
    prefix: bytes


@dataclass(frozen=True, slots=True)
class DigestBlock:
    namespace: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class ChainsFolder:
    namespace: bytes


@dataclass(frozen=True, slots=True)
class ChainFolder:
    namespace: bytes
    tip: bytes


@dataclass(frozen=True, slots=True)
class ChainBlock:
    namespace: bytes
    tip: bytes
    index: int
    key: bytes


@dataclass(frozen=True, slots=True)
class ChainInfo:
    namespace: bytes
    tip: bytes


@dataclass(frozen=True, slots=True)
class NextFolder:
    namespace: bytes
    tip: bytes


@dataclass(frozen=True, slots=True)
class NextLink:
    namespace: bytes
    tip: bytes
    key: bytes


Place = (
    Root
    | OwnFolder
    | OwnPage
    | NamespaceFolder
    | StatsPage
    | InBlocks
    | DigestFolder
    | DigestBlock
    | ChainsFolder
    | ChainFolder
    | ChainBlock
    | ChainInfo
    | NextFolder
    | NextLink
)


def parse(path: bytes) -> Place:
    """What an absolute path means. Raises ENOENT for one that can't mean anything."""
    names = [name for name in path.split(b"/") if name]
    match names:
        case []:
            return Root()
        case [own] if own == OWN:
            return OwnFolder()
        case [own, page] if own == OWN and page in OWN_PAGES:
            return OwnPage(page)
        case [own, *_] if own == OWN:
            raise failure(errno.ENOENT)
        case [namespace]:
            return NamespaceFolder(namespace)
        case [namespace, view, *rest] if view == BLOCKS:
            return InBlocks(namespace, tuple(rest))
        case [namespace, view, *rest] if view == BY_DIGEST:
            return _by_digest(namespace, rest)
        case [namespace, view, *rest] if view == CHAINS:
            return _in_chains(namespace, rest)
        case [namespace, page] if page == STATS:
            return StatsPage(namespace)
    raise failure(errno.ENOENT)


def digest(name: bytes) -> bytes:
    """The bytes that a name of lower-case hex digits stands for. Raises ENOENT."""
    text = name.decode("ascii", "replace")
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if not found or found.hex() != text:
        raise failure(errno.ENOENT)
    return found


def chain_name(index: int, key: bytes) -> bytes:
    """The name of block `index` of a chain: sorted by name is sorted by place."""
    return b"%06d-%s" % (index, key.hex().encode())


def _by_digest(namespace: bytes, names: list[bytes]) -> Place:
    if len(names) <= FAN_OUT:
        prefix = digest(b"".join(names)) if names else b""
        if len(prefix) != len(names):
            raise failure(errno.ENOENT)
        return DigestFolder(namespace, prefix)
    key = digest(names[-1])
    if len(names) != FAN_OUT + 1 or [key[i : i + 1].hex().encode() for i in range(FAN_OUT)] != names[:FAN_OUT]:
        raise failure(errno.ENOENT)
    return DigestBlock(namespace, key)


def _in_chains(namespace: bytes, names: list[bytes]) -> Place:
    if not names:
        return ChainsFolder(namespace)
    tip = digest(names[0])
    match names[1:]:
        case []:
            return ChainFolder(namespace, tip)
        case [info] if info == INFO:
            return ChainInfo(namespace, tip)
        case [folder] if folder == NEXT:
            return NextFolder(namespace, tip)
        case [folder, name] if folder == NEXT:
            return NextLink(namespace, tip, digest(name))
        case [name]:
            index, _, text = name.partition(b"-")
            key = digest(text)
            if not index.isdigit() or chain_name(int(index), key) != name:
                raise failure(errno.ENOENT)
            return ChainBlock(namespace, tip, int(index), key)
    raise failure(errno.ENOENT)
