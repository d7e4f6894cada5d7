"""`mooncask ls --where`: which nodes have the blocks that are listed, in which of their tiers."""

from collections.abc import Sequence

from mooncask.client.control_client import ControlClient
from mooncask.client.where import Where
from mooncask.client.wire import BlockStat
from mooncask.tools.block_walk import tier_names

AT_ONCE = 4096


class Holders:
    """Of blocks of one namespace, by key: node -> tiers, the asked node first."""

    def __init__(self, by_key: dict[str, dict[str, list[str]]], silent: list[str]) -> None:
        self._by_key = by_key
        self.silent = silent
        """Nodes that did not answer."""

    def of(self, block: BlockStat) -> dict[str, list[str]]:
        return self._by_key.get(block.key.hex(), {})


def find_holders(socket: str, namespace: str, blocks: Sequence[BlockStat], kv: bool) -> Holders:
    """Objects are a node's own: of those nobody else is asked."""
    by_key: dict[str, dict[str, list[str]]] = {}
    silent: set[str] = set()
    with ControlClient(socket) as control:
        if not kv:
            node = control.peers().node
            return Holders({block.key.hex(): {node: tier_names(block)} for block in blocks}, [])
        for first in range(0, len(blocks), AT_ONCE):
            found = control.where(namespace, keys=[block.key for block in blocks[first : first + AT_ONCE]])
            by_key |= _by_key(found)
            silent.update(found.silent)
    return Holders(by_key, sorted(silent))


def holders_text(holders: dict[str, list[str]]) -> str:
    """n1 dram nvme, n2 dram."""
    return ", ".join(" ".join([node, *tiers]) for node, tiers in holders.items()) or "-"


def _by_key(found: Where) -> dict[str, dict[str, list[str]]]:
    return {block.key: {holding.node: holding.tiers for holding in block.holders} for block in found.blocks}
