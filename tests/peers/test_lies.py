"""A real daemon that takes blocks from nodes that lie: their bytes are never served, and who tells the truth is asked next."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from cluster_nodes import SECRET, ClusterNodes, Node, blocks_of
from peer_world import SERVE, bind_listener, bound_address, credentials_of
from xxhash import xxh3_128_digest

from mooncask.daemon.directory.have import HAVE, Has, Have
from mooncask.daemon.transport.tcp.server import TcpServer
from mooncask.daemon.transport.transport import HeldBlock, PeerInfo
from mooncask.tiers.block import Extent, TierName

BLOCKS = blocks_of(range(1, 9))
KEYS = list(BLOCKS)

Lie = Callable[[HeldBlock], HeldBlock]


class Liar:
    """Says that it has every block, and changes each a little before it gives it out."""

    def __init__(self, lie: Lie) -> None:
        self._lie = lie
        self.holding = 0

    async def hold(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[HeldBlock | None]:
        self.holding += len(keys)
        return [self._lie(_held(key)) for key in keys]

    def hold_writing(self, ns_id: bytes, keys: Sequence[bytes]) -> list[HeldBlock | None]:
        return [None] * len(keys)

    def drop(self, held: HeldBlock) -> None:
        self.holding -= 1

    async def has(self, peer: PeerInfo, payload: bytes) -> bytes:
        question = msgspec.msgpack.decode(payload, type=Have)
        return msgspec.msgpack.encode(Has([len(BLOCKS[KEYS[0]])] * len(question.keys)))


def _held(key: bytes) -> HeldBlock:
    payload = BLOCKS[key]
    extent = Extent(TierName.DRAM, 0, len(payload), 1, len(payload))
    return HeldBlock(key, extent, memoryview(payload), xxh3_128_digest(payload))


@asynccontextmanager
async def serving(lie: Lie, name: str) -> AsyncIterator[str]:
    """Its address."""
    sock = bind_listener("127.0.0.1:0")
    liar = Liar(lie)
    server = TcpServer(sock, credentials_of(name, bound_address(sock), None, SECRET), liar, SERVE)
    server.handle(HAVE, liar.has)
    try:
        yield server.address
    finally:
        await server.close()
        assert liar.holding == 0


def other_bytes(block: HeldBlock) -> HeldBlock:
    return replace(block, payload=memoryview(bytes(block.payload[:-1]) + b"!"))


def shorter(block: HeldBlock) -> HeldBlock:
    return replace(block, payload=block.payload[:100])


def truth(block: HeldBlock) -> HeldBlock:
    return block


async def asked(nodes: ClusterNodes, addresses: list[str]) -> tuple[Node, list[bytes | None]]:
    def ask() -> tuple[Node, list[bytes | None]]:
        [node] = nodes.start("n1", peers=addresses)
        return node, node.get(KEYS, 10.0)

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("lie", [other_bytes, shorter])
async def test_a_lie_is_a_miss_and_is_counted(tmp_path: Path, lie: Lie) -> None:
    async with serving(lie, "liar") as address:
        with ClusterNodes(tmp_path) as nodes:
            node, found = await asked(nodes, [address])
            assert found == [None] * len(KEYS)
            [peer] = (await asyncio.to_thread(node.peers)).peers
            counters = await asyncio.to_thread(node.counters)
            assert peer.wrong == len(KEYS) == counters["peer_blocks_wrong"] and peer.blocks_pulled == 0
            assert [tier.reserved_bytes for tier in node.client.status().tiers] == [0, 0]
            await asyncio.to_thread(node.daemon.stop)


async def test_who_tells_the_truth_is_asked_after_who_does_not(tmp_path: Path) -> None:
    async with serving(other_bytes, "liar") as lying, serving(truth, "honest") as honest:
        with ClusterNodes(tmp_path) as nodes:
            node, found = await asked(nodes, [lying, honest])
            assert found == list(BLOCKS.values())
            assert (await asyncio.to_thread(node.counters))["peer_blocks_pulled"] == len(KEYS)
            await asyncio.to_thread(node.daemon.stop)
