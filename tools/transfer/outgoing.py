"""From the daemon into an archive: every block of a namespace, read in place and checked on the way."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from xxhash import xxh3_128, xxh3_128_hexdigest

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat
from mooncask.errors import NoSuchBlock
from mooncask.tools.block_walk import all_blocks, batches
from mooncask.tools.object_client import ObjectClient
from mooncask.tools.transfer.archive import Writer
from mooncask.tools.transfer.manifest import Entry
from mooncask.tools.transfer.order import parents_first

BATCH_BLOCKS = 32
BATCH_BYTES = 32 << 20
WHOLE_BYTES_MAX = 64 << 20
"""An object up to this size is read once; of a longer one the checksum, which stands before the bytes, is made by a first reading."""
LOAD_SECONDS = 60.0

Advance = Callable[[int], None]
"""Told of the bytes of each block that is done."""


@dataclass(slots=True)
class Exported:
    """Blocks of the namespace by what became of them."""

    blocks: int = 0
    size_bytes: int = 0
    already: int = 0
    left: int = 0
    """Gone, replaced or quarantined between listing and reading."""


def export_kv(client: LocalClient, namespace: NamespaceHandle, writer: Writer, advance: Advance) -> Exported:
    """Blocks of a KV namespace, parents before what continues them."""
    result = Exported()
    listed = parents_first(all_blocks(client, namespace))
    waiting = [block for block in listed if block.key.hex() not in writer.already]
    result.already = len(listed) - len(waiting)
    advance(sum(block.size for block in listed) - sum(block.size for block in waiting))
    for batch in batches(waiting, BATCH_BLOCKS, BATCH_BYTES):
        _export_batch(client, namespace, batch, writer, result)
        advance(sum(block.size for block in batch))
    return result


def export_objects(
    client: LocalClient, namespace: NamespaceHandle, door: ObjectClient, writer: Writer, advance: Advance
) -> Exported:
    """Objects of any length with what their PUT said of them."""
    result = Exported()
    for stat in all_blocks(client, namespace):
        key = stat.key.decode()
        try:
            size, headers = door.headers_of(namespace.name, key)
            if writer.already.get(stat.key.hex()) == headers.get("ETag"):
                result.already += 1
            else:
                _export_object(namespace.name, stat, size, headers, door, writer)
                result.blocks += 1
                result.size_bytes += size
        except NoSuchBlock:
            result.left += 1
        advance(stat.size)
    return result


def _export_batch(
    client: LocalClient, namespace: NamespaceHandle, batch: Sequence[BlockStat], writer: Writer, result: Exported
) -> None:
    """Leases the blocks, compares their checksums, and writes them in place; the leases end with this call."""
    with client.acquire(namespace, [block.key for block in batch], LOAD_SECONDS, verify=True) as found:
        for stat, block in zip(batch, found, strict=True):
            if block is None:
                result.left += 1
                continue
            with block:
                memory = block.memory
                writer.add(_kv_entry(stat, xxh3_128_hexdigest(memory)), [memory])
                result.blocks += 1
                result.size_bytes += len(memory)
                del memory


def _kv_entry(stat: BlockStat, checksum: str) -> Entry:
    return Entry(
        key=stat.key.hex(),
        size=stat.size,
        checksum=checksum,
        parent=stat.parent.hex(),
        depth=stat.depth,
        tokens=stat.tokens,
        created_seconds=stat.created_seconds,
        expires_seconds=_expires(stat),
    )


def _export_object(
    namespace: str, stat: BlockStat, size: int, headers: dict[str, str], door: ObjectClient, writer: Writer
) -> None:
    key, etag = stat.key.decode(), headers.get("ETag", "")
    pieces: Sequence[bytes] | Iterator[bytes]
    digest = xxh3_128()
    if size <= WHOLE_BYTES_MAX:
        pieces = list(door.pieces(namespace, key, size, etag))
        for piece in pieces:
            digest.update(piece)
    else:
        for piece in door.pieces(namespace, key, size, etag):
            digest.update(piece)
        pieces = door.pieces(namespace, key, size, etag)
    entry = Entry(
        key=stat.key.hex(),
        size=size,
        checksum=digest.hexdigest(),
        created_seconds=stat.created_seconds,
        expires_seconds=_expires(stat),
        headers=headers,
    )
    writer.add(entry, pieces)


def _expires(stat: BlockStat) -> float:
    return time.time() + stat.ttl_seconds if stat.ttl_seconds else 0.0
