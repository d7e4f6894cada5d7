"""All blocks of a namespace, a page at a time, for the commands that go through them."""

from collections.abc import Iterable, Iterator

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat, Tier

PAGE = 1000


def all_blocks(client: LocalClient, namespace: NamespaceHandle, prefix: bytes = b"") -> Iterator[BlockStat]:
    """Every block, page by page. What is put or deleted meanwhile may or may not be among them."""
    after = b""
    while True:
        page = client.list_blocks(namespace, prefix=prefix, after=after, limit=PAGE)
        yield from page.blocks
        if not page.more or not page.blocks:
            return
        after = page.blocks[-1].key


def batches(blocks: Iterable[BlockStat], count_max: int, bytes_max: int) -> Iterator[list[BlockStat]]:
    """In the same order; of at most so many bytes, unless one block alone has more."""
    batch: list[BlockStat] = []
    size_bytes = 0
    for block in blocks:
        if batch and (len(batch) == count_max or size_bytes + block.size > bytes_max):
            yield batch
            batch, size_bytes = [], 0
        batch.append(block)
        size_bytes += block.size
    if batch:
        yield batch


def tier_names(block: BlockStat) -> list[str]:
    return [Tier(tier).name.lower() for tier in block.tiers]
