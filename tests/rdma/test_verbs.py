"""RDMA for real: needs a device, which tests/rdma/run_in_vm.py has ("make test-rdma").

Memory is small and deadlines are long, for an emulated processor; what these prove is what happens, and not how fast.
"""

import asyncio
import dataclasses
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import rdma_world
from child_processes import until
from peer_world import NS, block_bytes, key_of, soon
from rdma_world import ARENA_BYTES, HOST, RdmaNode, fetch, open_node, two_nodes, why_no_device

from mooncask.daemon.transport.rdma.device import open_device
from mooncask.daemon.transport.rdma.engine import PairLost
from mooncask.daemon.transport.rdma.link import RdmaLink
from mooncask.daemon.transport.rdma.regions import Span
from mooncask.errors import BadRequest, DeadlineExceeded, OutOfBounds, PeerUnavailable
from mooncask.tiers.shared_memory import SharedMemory

_why = why_no_device()
_may_skip = bool(_why) and not os.environ.get("MOONCASK_RDMA")
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(400), pytest.mark.skipif(_may_skip, reason=_why)]


@asynccontextmanager
async def child_node(listen: str = "127.0.0.1:0") -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(rdma_world.__file__).with_name("rdma_child.py")),
        listen,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        yield process, (await asyncio.wait_for(process.stdout.readline(), 120)).decode().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        await asyncio.sleep(0)


@pytest.fixture
async def nodes() -> AsyncIterator[tuple[RdmaNode, RdmaNode]]:
    async with two_nodes() as both:
        yield both


Nodes = tuple[RdmaNode, RdmaNode]

# --- bytes -----------------------------------------------------------------------------------------------------------


async def test_blocks_of_1_byte_to_16_mib_arrive_byte_for_byte_and_by_rdma_alone(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    sizes = [1, 2, 4095, 4096, 65_537, (1 << 20) + 1, 16 << 20]
    for number, size in enumerate(sizes):
        assert await fetch(reader, link, [key_of(number, size)]) == [block_bytes(number, size)]
    assert reader.device.bytes_read == sum(sizes) == link.load.bytes_received
    [served] = holder.server.links()
    assert served.bytes_sent == 0


async def test_batches_of_256_blocks_of_all_sizes_arrive_in_order(nodes: Nodes) -> None:
    reader, holder = nodes
    sizes = [1 + (number * number * 37) % 40_000 for number in range(256)]
    keys = [key_of(number, size) for number, size in enumerate(sizes)]
    link = await reader.rdma_link(holder.server.address)
    wanted = [block_bytes(number, size) for number, size in enumerate(sizes)]
    for _ in range(5):
        assert await fetch(reader, link, keys) == wanted
    assert link.sessions == 1


async def test_many_tasks_read_over_one_queue_pair_and_each_gets_its_own_bytes(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    blocks = await link.lease(NS, [key_of(n, 100_000) for n in range(16)], soon())
    targets = [reader.arena.view(n * 200_000, 150_000) for n in range(16)]
    await asyncio.gather(*(link.read([block], [to], soon(60)) for block, to in zip(blocks, targets, strict=True)))
    assert [bytes(to) for to in targets] == [block_bytes(n, 100_000) + bytes(50_000) for n in range(16)]
    assert link.sessions == 1
    link.release(blocks)


async def test_memory_outside_the_arena_is_read_over_tcp(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    memory = bytearray(5000)
    await link.read([block], [memoryview(memory)], soon(60))
    assert memory == block_bytes(1, 5000) and reader.device.bytes_read == 0
    link.release([block])


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_short_and_read_only_targets_and_places_beyond_the_arena_are_refused_before_anything_moves(
    nodes: Nodes,
) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    with pytest.raises(OutOfBounds):
        await link.read([block], [reader.arena.view(0, 4999)], soon())
    with pytest.raises(BadRequest):
        await link.read([block], [reader.arena.view(0, 5000).toreadonly()], soon())
    with pytest.raises(OutOfBounds):
        far = dataclasses.replace(block, offset=ARENA_BYTES - 4999)
        await link.read([far], [reader.arena.view(0, 5000)], soon())
    assert bytes(reader.arena.view(0, 5000)) == bytes(5000) and link.sessions == 1
    link.release([block])


async def test_a_wrong_key_is_refused_by_the_device_and_the_next_read_has_a_new_queue_pair(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    session = link._session
    assert session is not None
    session._theirs._regions[0] = msgspec.structs.replace(session._theirs._regions[0], key=0x55)
    with pytest.raises(PairLost) as failed:
        await session.read([Span(0, 0, 4096)], soon(60))
    assert "cannot be read" in failed.value.why
    assert await fetch(reader, link, [key_of(1, 5000)]) == [block_bytes(1, 5000)]
    assert link.sessions == 2 and link.alive


# --- what goes wrong -------------------------------------------------------------------------------------------------


async def test_a_read_whose_queue_pair_was_lost_is_done_again_over_a_new_one(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    [pair] = holder.responder.pairs.values()
    await pair.close()
    assert await fetch(reader, link, [key_of(1, 70_000)]) == [block_bytes(1, 70_000)]
    assert link.sessions == 2 and len(holder.responder.pairs) == 1


async def test_a_read_past_its_deadline_ends_then_and_never_writes_afterwards_and_others_go_on(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    big, small = await link.lease(NS, [key_of(1, 16 << 20), key_of(2, 300_000)], soon())
    target, other = reader.arena.view(0, 16 << 20), reader.arena.view(20 << 20, 300_000)
    deadline = soon(0.2)
    slow = asyncio.create_task(link.read([big], [target], deadline))
    await asyncio.sleep(0)
    others = asyncio.create_task(link.read([small], [other], soon(60)))
    with pytest.raises(DeadlineExceeded):
        await slow
    assert time.monotonic() - deadline < 5.0  # 0.1 s on a processor that is not emulated
    target[:] = bytes(len(target))
    await others
    assert bytes(other) == block_bytes(2, 300_000)
    assert not any(target[::4096]), "something was written after the read had ended"
    assert link.alive
    link.release([big, small])


async def test_the_end_of_a_link_destroys_the_queue_pair_before_its_leases_end(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    session = link._session
    assert session is not None and holder.provider.holding == 1
    [pair] = holder.responder.pairs.values()
    dropped_with_pair: list[bool] = []
    drop = holder.provider.drop

    def noting(held: object) -> None:
        dropped_with_pair.append(pair._pair is not None)
        drop(held)

    [served] = holder.server.links()
    served.leases._drop = noting
    served.end("a test")
    await until(lambda: holder.provider.holding == 0)
    assert dropped_with_pair == [False]
    with pytest.raises(PeerUnavailable):
        await link.read([block], [reader.arena.view(0, 5000)], soon(60))
    assert not link.alive and not holder.responder.pairs


async def test_what_a_peer_still_sends_after_its_lease_was_revoked_fails_at_the_device(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    session = link._session
    assert session is not None
    await session.read([Span(0, 0, 4096)], soon(60))
    [pair] = holder.responder.pairs.values()
    await pair.close()
    with pytest.raises(PairLost) as failed:
        await session.read([Span(0, 0, 4096)], soon(60))
    assert "does not answer" in failed.value.why


async def test_a_killed_peer_fails_a_read_long_before_its_deadline_and_another_run_of_it_serves() -> None:
    reader = await open_node("reader")
    try:
        async with child_node() as (process, address):
            link = await reader.rdma_link(address)
            [block] = await link.lease(NS, [key_of(1, 16 << 20)], soon())
            read = asyncio.create_task(link.read([block], [reader.arena.view(0, 16 << 20)], soon(60)))
            await until(lambda: link._reads == 1)
            began = time.monotonic()
            process.send_signal(signal.SIGKILL)
            with pytest.raises(PeerUnavailable):
                await read
            assert time.monotonic() - began < 10 and not link.alive
            await process.wait()
        async with child_node(address) as (_, same):
            again = await reader.rdma_link(same)
            assert await fetch(reader, again, [key_of(1, 5000)]) == [block_bytes(1, 5000)]
            await again.close()
    finally:
        await reader.close()


async def test_a_silent_network_is_found_by_the_device_within_its_retries(nodes: Nodes) -> None:
    """The far end's queue pair is another one than this side believes: its packets are answered by nobody."""
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    session = link._session
    assert session is not None
    [pair] = holder.responder.pairs.values()
    began = time.monotonic()
    await pair.close()
    with pytest.raises(PairLost):
        await session.read([Span(0, 0, 100)], soon(60))
    assert time.monotonic() - began < 10


# --- which transport -------------------------------------------------------------------------------------------------


async def test_a_node_without_rdma_is_read_over_tcp_unless_rdma_is_demanded(nodes: Nodes) -> None:
    reader, holder = nodes
    holder.server._link_handlers.clear()
    link = await reader.link(holder.server.address, demanded=False)
    assert link.peer.transport == "tcp"
    assert await fetch(reader, link, [key_of(1, 5000)]) == [block_bytes(1, 5000)]
    with pytest.raises(BadRequest):
        await reader.link(holder.server.address, demanded=True)


async def test_rdma_that_breaks_falls_back_to_tcp_says_so_once_and_is_tried_again_beside_the_reads(
    nodes: Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reader, holder = nodes
    link = await reader.link(holder.server.address, demanded=False)
    assert isinstance(link, RdmaLink) and link.peer.transport == "rdma"
    link._again_seconds = link._wait_seconds = 0.5
    handlers = dict(holder.server._link_handlers)
    [pair] = holder.responder.pairs.values()
    holder.server._link_handlers.clear()  # no new queue pair is made there
    await pair.close()
    for number in range(3):
        assert await fetch(reader, link, [key_of(number, 70_000)]) == [block_bytes(number, 70_000)]
    assert link.peer.transport == "tcp" and link.alive
    assert sum("come over TCP" in record.message for record in caplog.records) == 1
    holder.server._link_handlers.update(handlers)

    async def by_rdma() -> bool:
        assert await fetch(reader, link, [key_of(9, 5000)]) == [block_bytes(9, 5000)]
        return link.peer.transport == "rdma"

    deadline = soon(60)
    while not await by_rdma():
        assert time.monotonic() < deadline, "RDMA did not come back"
        await asyncio.sleep(0.05)
    before = reader.device.bytes_read
    assert await fetch(reader, link, [key_of(10, 5000)]) == [block_bytes(10, 5000)]
    assert reader.device.bytes_read == before + 5000
    assert sum("by RDMA again" in record.message for record in caplog.records) == 1


async def test_rdma_that_is_demanded_and_breaks_fails_the_read(nodes: Nodes) -> None:
    reader, holder = nodes
    link = await reader.rdma_link(holder.server.address)
    [pair] = holder.responder.pairs.values()
    holder.server._link_handlers.clear()
    await pair.close()
    with pytest.raises((PeerUnavailable, BadRequest)):
        await fetch(reader, link, [key_of(1, 5000)])


async def test_the_gid_with_the_ipv4_address_is_chosen_whatever_its_index() -> None:
    arena = SharedMemory("rdma-test", 1 << 20, setting="test")
    device = open_device("auto", arena, HOST)
    assert device is not None
    assert device.place.gid.roce_v2 and device.place.gid.address.endswith("0a63:0001")
    await device.close()
    arena.close()
