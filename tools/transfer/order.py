"""In which order blocks are exported: what a chain begins with before what continues it. Pure."""

from collections.abc import Iterable

from mooncask.client.wire import BlockStat


def parents_first(blocks: Iterable[BlockStat]) -> list[BlockStat]:
    """Each block after its parent, where that is among them; else in the order of depth and key.

    An import that stops half-way then leaves whole prefixes, and eviction from the leaves finds the leaves.
    """
    by_key = {block.key: block for block in blocks}
    placed: set[bytes] = set()
    ordered: list[BlockStat] = []
    for start in sorted(by_key.values(), key=lambda block: (block.depth, block.key)):
        path = []
        step: BlockStat | None = start
        while step is not None and step.key not in placed:
            placed.add(step.key)  # now, or a circle of parents would never end
            path.append(step)
            step = by_key.get(step.parent)
        ordered += reversed(path)
    return ordered
