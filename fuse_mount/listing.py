"""What is in a folder of blocks, in the store's order and a page at a time, however many there are.

Folders below `blocks/` are found by jumping: the first key in a folder shows it, and the listing goes on behind its last.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mooncask.client.wire import KEY_BYTES_MAX, BlockStat
from mooncask.fuse_mount.layout import FAN_OUT
from mooncask.fuse_mount.names import BESIDE, CONTINUES, key_prefix, path_of_key
from mooncask.fuse_mount.store_link import Namespace, StoreLink

_BEHIND = b"\xff" * (KEY_BYTES_MAX + 1)
"""Behind a prefix, it comes after every key with that prefix."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A name in a folder; without a block it is a folder itself."""

    name: bytes
    block: BlockStat | None = None


def hex_name(key: bytes) -> bytes:
    return key.hex().encode()


def kv_blocks(link: StoreLink, namespace: Namespace, prefix: bytes = b"") -> Iterator[Entry]:
    """Blocks whose digest begins with `prefix`, by their hex digests."""
    for page in link.pages(namespace, prefix):
        for block in page:
            yield Entry(hex_name(block.key), block)


def digest_folders(link: StoreLink, namespace: Namespace, prefix: bytes) -> Iterator[Entry]:
    """The next bytes after `prefix` that digests have: one request for each."""
    assert len(prefix) < FAN_OUT
    block = link.first(namespace, prefix)
    while block is not None:
        inner = block.key[: len(prefix) + 1]
        if len(inner) > len(prefix):
            yield Entry(hex_name(inner[-1:]))
        block = link.first(namespace, prefix, inner + _BEHIND)


def object_entries(link: StoreLink, namespace: Namespace, folder: Sequence[bytes]) -> Iterator[Entry]:
    """Files and folders in the folder of these names."""
    prefix = key_prefix(list(folder))
    after, last_folder = b"", b""
    while True:
        page = link.page(namespace, prefix, after)
        for entry in _page_entries(link, namespace, folder, page.blocks):
            if entry.block is None:
                if entry.name == last_folder:
                    continue
                last_folder = entry.name
            yield entry
        if not page.more or not page.blocks:
            return
        after = _next_after(folder, page.blocks[-1].key)


def _page_entries(
    link: StoreLink, namespace: Namespace, folder: Sequence[bytes], blocks: list[BlockStat]
) -> Iterator[Entry]:
    depth = len(folder)
    keys = [block.key for block in blocks]
    for block in blocks:
        names = path_of_key(block.key).split(b"/")
        if tuple(names[:depth]) != tuple(folder):
            continue
        if len(names) > depth + 1:
            yield Entry(names[depth])
        else:
            beside = BESIDE if _has_below(link, namespace, block.key, keys) else b""
            yield Entry(names[depth] + beside, block)


def _has_below(link: StoreLink, namespace: Namespace, key: bytes, keys: list[bytes]) -> bool:
    """Whether blocks are in a folder that is named as this block. `keys`: the page it is from, sorted."""
    inside = key + b"/"
    place = bisect_left(keys, inside)
    if place < len(keys):
        return keys[place].startswith(inside)
    # Only keys that begin the page's last one can have theirs on the next page.
    return keys[-1].startswith(key) and link.first(namespace, inside) is not None


def _next_after(folder: Sequence[bytes], last: bytes) -> bytes:
    """Where the next page begins: behind the folder that the last key is in, if all of that folder's keys are together."""
    names = path_of_key(last).split(b"/")
    if len(names) > len(folder) + 1 and not names[len(folder)].endswith(CONTINUES):
        return key_prefix(names[: len(folder) + 1]) + _BEHIND
    return last
