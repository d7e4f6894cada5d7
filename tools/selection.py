"""Which blocks a command means: keys as they were typed, the whole chain up to each, or all with a prefix.

A chain is walked through the parents that the daemon keeps with each block, one question a block.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import BlockStat
from mooncask.errors import NoSuchBlock
from mooncask.tools.block_walk import all_blocks
from mooncask.tools.connection import is_kv
from mooncask.tools.keys import format_key, parse_key, parse_prefix


@dataclass(slots=True)
class Selection:
    """Blocks that are here, each once, parents before what continues them; and the keys typed that are not here."""

    namespace: NamespaceHandle
    blocks: list[BlockStat] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def keys(self) -> list[bytes]:
        return [block.key for block in self.blocks]

    @property
    def names(self) -> list[str]:
        return [format_key(block.key, is_kv(self.namespace)) for block in self.blocks]

    @property
    def size_bytes(self) -> int:
        return sum(block.size for block in self.blocks)

    def raise_if_missing(self) -> None:
        """Raises NoSuchBlock with all that were not here."""
        if self.missing:
            raise NoSuchBlock(self.namespace.name, ", ".join(self.missing))


def select(client: LocalClient, namespace: NamespaceHandle, keys: Sequence[str], chain: bool) -> Selection:
    """The blocks of these keys; with `chain`, also all that lead to them. Raises BadRequest for what is no key."""
    wanted = [parse_key(key, is_kv(namespace)) for key in keys]
    found: dict[bytes, BlockStat] = {}
    selection = Selection(namespace)
    for key, block in zip(keys, client.stat(namespace, wanted), strict=True):
        if block is None:
            selection.missing.append(key)
        elif chain:
            for step in chain_to(client, namespace, block, known=found):
                found[step.key] = step
        else:
            found[block.key] = block
    selection.blocks = list(found.values())
    return selection


def select_prefix(client: LocalClient, namespace: NamespaceHandle, prefix: str) -> Selection:
    """All blocks whose keys start so."""
    kv = is_kv(namespace)
    blocks = all_blocks(client, namespace, parse_prefix(prefix, kv))
    return Selection(namespace, [block for block in blocks if format_key(block.key, kv).startswith(prefix)])


def chain_to(
    client: LocalClient,
    namespace: NamespaceHandle,
    block: BlockStat,
    known: "dict[bytes, BlockStat] | None" = None,
) -> list[BlockStat]:
    """From where the chain begins, as far as it is here, to `block`; blocks in `known` and what is before them are left out."""
    steps = [block]
    seen = {block.key, *(known or {})}
    while steps[-1].parent and steps[-1].parent not in seen:
        seen.add(steps[-1].parent)
        (parent,) = client.stat(namespace, [steps[-1].parent])
        if parent is None:
            break  # where the chain begins, or a block that left
        steps.append(parent)
    return steps[::-1]
