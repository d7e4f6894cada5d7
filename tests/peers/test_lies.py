"""A real daemon that takes blocks from nodes that lie: their bytes are never served, and who tells the truth is asked next."""

import asyncio
import mmap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, Node
from lying_peer import BLOCKS, KEYS, Lie, other_bytes, serving
from xxhash import xxh3_128_digest

from mooncask.daemon.transport.transport import HeldBlock


def shorter(block: HeldBlock) -> HeldBlock:
    return replace(block, payload=block.payload[:100])


def nothing(block: HeldBlock) -> HeldBlock:
    """Bytes and checksum agree, of no bytes at all: that is no block."""
    return replace(block, checksum=xxh3_128_digest(b""), payload=block.payload[:0])


def huge(block: HeldBlock) -> HeldBlock:
    return replace(block, payload=memoryview(mmap.mmap(-1, 128 << 20)))


def deep(block: HeldBlock) -> HeldBlock:
    return replace(block, depth=1 << 32)


def many_tokens(block: HeldBlock) -> HeldBlock:
    return replace(block, tokens=-1)


def long_parent(block: HeldBlock) -> HeldBlock:
    return replace(block, parent=bytes(1025))


def own_parent(block: HeldBlock) -> HeldBlock:
    return replace(block, parent=block.key)


def truth(block: HeldBlock) -> HeldBlock:
    return block


async def asked(nodes: ClusterNodes, addresses: list[str]) -> tuple[Node, list[bytes | None]]:
    def ask() -> tuple[Node, list[bytes | None]]:
        [node] = nodes.start("n1", peers=addresses)
        return node, node.get(KEYS, 10.0)

    return await asyncio.to_thread(ask)


LIES = [other_bytes, shorter, nothing, huge, deep, many_tokens, long_parent, own_parent]


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_a_miss_and_is_counted(tmp_path: Path, lie: Lie) -> None:
    async with serving(lie, "liar") as address:
        with ClusterNodes(tmp_path) as nodes:
            node, found = await asked(nodes, [address])
            assert found == [None] * len(KEYS)
            [peer] = (await asyncio.to_thread(node.peers)).peers
            counters = await asyncio.to_thread(node.counters)
            assert peer.wrong == len(KEYS) == counters["peer_blocks_wrong"] and peer.blocks_pulled == 0
            tiers = await asyncio.to_thread(lambda: node.client.status().tiers)
            assert [(tier.reserved_bytes, tier.blocks) for tier in tiers] == [(0, 0)] * 2
            await asyncio.to_thread(node.daemon.stop)


async def test_who_tells_the_truth_is_asked_after_who_does_not(tmp_path: Path) -> None:
    async with serving(other_bytes, "liar") as lying, serving(truth, "honest") as honest:
        with ClusterNodes(tmp_path) as nodes:
            node, found = await asked(nodes, [lying, honest])
            assert found == list(BLOCKS.values())
            assert (await asyncio.to_thread(node.counters))["peer_blocks_pulled"] == len(KEYS)
            await asyncio.to_thread(node.daemon.stop)


class TheSame:
    """One lease for all blocks."""

    def take(self, count: int) -> Sequence[int]:
        return [7] * count


async def test_one_lease_for_two_blocks_ends_the_link_and_leaves_nothing(tmp_path: Path) -> None:
    async with serving(truth, "liar", TheSame()) as address:
        with ClusterNodes(tmp_path) as nodes:
            node, found = await asked(nodes, [address])
            assert found == [None] * len(KEYS)
            [peer] = (await asyncio.to_thread(node.peers)).peers
            assert peer.failures >= 1 and "one lease for two blocks" in peer.problem
            tiers = await asyncio.to_thread(lambda: node.client.status().tiers)
            assert [(tier.reserved_bytes, tier.blocks) for tier in tiers] == [(0, 0)] * 2
            await asyncio.to_thread(node.daemon.stop)
