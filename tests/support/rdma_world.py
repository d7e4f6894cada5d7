"""Two nodes with arenas of their own, registered with a real RDMA device: see `peer_world.py` for what they are made of."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from peer_world import LINK, NS, SERVE, MemoryProvider, block_bytes, credentials_of, soon
from xxhash import xxh3_128_digest

from mooncask.daemon.transport.pool import Links
from mooncask.daemon.transport.rdma.device import OpenDevice, open_device
from mooncask.daemon.transport.rdma.dial import RdmaDialler
from mooncask.daemon.transport.rdma.link import RdmaLink
from mooncask.daemon.transport.rdma.serve import Responder
from mooncask.daemon.transport.rdma.verbs import VerbsError, load_verbs
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.tcp.server import TcpServer, bind_listener, bound_address
from mooncask.daemon.transport.transport import HeldBlock, Link
from mooncask.tiers.block import Extent, TierName, aligned
from mooncask.tiers.shared_memory import SharedMemory

ARENA_BYTES = 40 << 20
HOST = "10.99.0.1"
"""The guest's, see run_in_vm.py."""


def why_no_device() -> str:
    """Empty where there is one."""
    try:
        ports = load_verbs().ports()
    except VerbsError as error:
        return str(error)
    return "" if any(port.active for port in ports) else "this kernel has no RDMA device (tests/rdma/run_in_vm.py has)"


class ArenaProvider(MemoryProvider):
    """As its base, with every block in an arena: what is asked for first lies first."""

    def __init__(self, arena: SharedMemory) -> None:
        super().__init__()
        self._arena = arena
        self._places: dict[bytes, Extent] = {}
        self._end = 0

    def _hold(self, key: bytes) -> HeldBlock | None:
        number, _, size = key.partition(b":")
        if not size:
            return None
        if key not in self._places:
            self._places[key] = self._write(int(number), int(size))
        extent = self._places[key]
        self.held[key] += 1
        payload = self._arena.view(extent.offset, extent.size)
        return HeldBlock(key, extent, payload, xxh3_128_digest(payload), b"parent", 3, 16, b"attributes")

    def _write(self, number: int, size: int) -> Extent:
        extent = Extent(TierName.DRAM, self._end, aligned(size), 1, size)
        self._end += extent.length
        self._arena.view(extent.offset, size)[:] = block_bytes(number, size)
        return extent


@dataclass
class RdmaNode:
    """One node: it serves, and dials others, with the same arena and device."""

    name: str
    arena: SharedMemory
    device: OpenDevice
    provider: ArenaProvider
    server: TcpServer
    responder: Responder
    pools: list[Links] = field(default_factory=list)

    async def link(self, address: str, *, demanded: bool = True) -> Link:
        dialler = TcpDialler(credentials_of(self.name, "127.0.0.1:1", None), LINK)
        pool = Links(RdmaDialler(dialler, self.device, demanded=demanded).dial)
        self.pools.append(pool)
        return await pool.link(address, soon())

    async def rdma_link(self, address: str) -> RdmaLink:
        link = await self.link(address)
        assert isinstance(link, RdmaLink) and link.peer.transport == "rdma"
        return link

    async def close(self) -> None:
        for pool in self.pools:
            await pool.close()
        await self.server.close()
        assert not self.responder.pairs, "a queue pair was left"
        await self.device.close()
        assert self.provider.holding == 0, "a lease was left"
        self.arena.close()


async def open_node(name: str, listen: str = "127.0.0.1:0", request_bytes: int = 1 << 20) -> RdmaNode:
    arena = SharedMemory("rdma-test", ARENA_BYTES, setting="test")
    device = await asyncio.to_thread(open_device, "rdma", arena, HOST, request_bytes)
    assert device is not None
    device.start()
    sock = bind_listener(listen)
    provider = ArenaProvider(arena)
    server = TcpServer(sock, credentials_of(name, bound_address(sock), None), provider, SERVE)
    return RdmaNode(name, arena, device, provider, server, Responder(device, server))


@asynccontextmanager
async def two_nodes() -> AsyncIterator[tuple[RdmaNode, RdmaNode]]:
    """One that reads and one that holds."""
    reader, holder = await open_node("reader"), await open_node("holder")
    try:
        yield reader, holder
    finally:
        await reader.close()
        await holder.close()


async def fetch(node: RdmaNode, link: Link, keys: Sequence[bytes], seconds: float = 60.0) -> list[bytes]:
    """Into the node's arena, from its end on backwards; checks each against its checksum."""
    deadline = time.monotonic() + seconds
    blocks = [block for block in await link.lease(NS, keys, deadline) if block is not None]
    targets, end = [], ARENA_BYTES
    for block in blocks:
        end -= aligned(block.size)
        targets.append(node.arena.view(end, block.size))
    await link.read(blocks, targets, deadline)
    link.release(blocks)
    assert [xxh3_128_digest(target) for target in targets] == [block.checksum for block in blocks]
    return [bytes(target) for target in targets]
