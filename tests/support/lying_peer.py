"""A node that says that it has every block, and changes each a little before it gives it out."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from cluster_nodes import SECRET, blocks_of
from peer_world import SERVE, bind_listener, bound_address, credentials_of
from xxhash import xxh3_128_digest

from mooncask.daemon.directory.have import HAVE, Has, Have
from mooncask.daemon.transport.tcp.served_link import Numbers
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
async def serving(lie: Lie, name: str, numbers: Numbers | None = None) -> AsyncIterator[str]:
    """Its address. `numbers`: what it calls its leases."""
    sock = bind_listener("127.0.0.1:0")
    liar = Liar(lie)
    server = TcpServer(sock, credentials_of(name, bound_address(sock), None, SECRET), liar, SERVE)
    server.handle(HAVE, liar.has)
    if numbers is not None:
        server._numbers = numbers  # type: ignore[assignment]
    try:
        yield server.address
    finally:
        await server.close()
        assert liar.holding == 0 or numbers is not None  # its own table has lost some then


def other_bytes(block: HeldBlock) -> HeldBlock:
    return replace(block, payload=memoryview(bytes(block.payload[:-1]) + b"!"))
