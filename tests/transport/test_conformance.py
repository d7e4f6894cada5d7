"""What every transport does, whatever carries the bytes: bytes, bounds, leases, questions, deadlines, and what it leaves behind."""

import asyncio
import dataclasses

import pytest
from child_processes import until
from peer_world import LINK, NS, SERVE, World, block_bytes, fetch, key_of, soon

from mooncask.daemon.transport.messages import ASK_BYTES_MAX, KEYS_MAX, Cancel, Lease
from mooncask.daemon.transport.served_leases import LeaseLimits
from mooncask.daemon.transport.transport import Growing, Link, PeerInfo
from mooncask.errors import (
    BadRequest,
    Busy,
    DeadlineExceeded,
    NoSuchNamespace,
    OutOfBounds,
    PeerUnavailable,
    UnknownLease,
)
from mooncask.tiers.checksum import payload_checksum

# --- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 4095, 4096, 65_537, 1 << 20, (2 << 20) + 1, 16 << 20])
async def test_a_block_of_any_size_arrives_byte_for_byte(world: World, size: int) -> None:
    link = await world.link()
    assert await fetch(link, [key_of(7, size)]) == [block_bytes(7, size)]


async def test_a_batch_of_256_blocks_of_all_sizes_arrives_in_order(world: World) -> None:
    sizes = [1 + (number * number * 37) % 70_000 for number in range(256)]
    keys = [key_of(number, size) for number, size in enumerate(sizes)]
    link = await world.link()
    assert await fetch(link, keys) == [block_bytes(number, size) for number, size in enumerate(sizes)]


async def test_what_a_read_says_of_its_bytes_is_the_digest_of_what_lies_in_memory_or_nothing(world: World) -> None:
    link = await world.link()
    sizes = [1, 5000, 1 << 20, 16 << 20]
    blocks = [block for block in await link.lease(NS, [key_of(2, size) for size in sizes], soon()) if block is not None]
    memory = [bytearray(size) for size in sizes]
    digests = await link.read(blocks, [memoryview(one) for one in memory], soon())
    for digest, came in zip(digests, memory, strict=True):
        assert digest in (b"", payload_checksum(memoryview(came)))


async def test_what_lies_around_the_target_is_not_touched(world: World) -> None:
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    memory = bytearray(b"x" * 7000)
    await link.read([block], [memoryview(memory)[1000:6500]], soon())
    assert memory == b"x" * 1000 + block_bytes(1, 5000) + b"x" * 1000


async def test_many_tasks_read_over_one_link_and_each_gets_its_own_bytes(world: World) -> None:
    link = await world.link()
    sizes = [1, 100_000, 3 << 20]
    wanted = [[key_of(task, sizes[task % 3]), key_of(task + 100, 5000)] for task in range(24)]
    found = await asyncio.gather(*(fetch(link, keys) for keys in wanted))
    assert found == [[block_bytes(t, sizes[t % 3]), block_bytes(t + 100, 5000)] for t in range(24)]


async def test_a_block_says_what_the_holder_knows_of_it(world: World) -> None:
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 10)], soon())
    assert (block.key, block.size, block.parent) == (key_of(1, 10), 10, b"parent")
    assert (block.depth, block.tokens, block.attributes) == (3, 16, b"attributes")


async def test_a_link_knows_who_is_at_its_other_end(world: World) -> None:
    server = world.serve("node-a")
    link = await world.link(server)
    assert link.peer.name == "node-a" and link.peer.address == server.address and link.alive and link.problem == ""
    assert link.peer.transport == ("tcp+tls" if world.folder else "tcp")
    [served] = server.links()
    assert served.peer.name == "reader"


# --- bounds ----------------------------------------------------------------------------------------------------------


async def test_a_buffer_that_is_too_short_or_cannot_be_written_is_refused_before_anything_moves(world: World) -> None:
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    short = bytearray(b"x" * 4999)
    with pytest.raises(OutOfBounds):
        await link.read([block], [memoryview(short)], soon())
    assert short == b"x" * 4999
    with pytest.raises(BadRequest):
        await link.read([block], [memoryview(bytes(5000))], soon())


async def test_more_bytes_than_a_block_has_are_refused_by_the_holder_and_the_link_goes_on(world: World) -> None:
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 5000)], soon())
    with pytest.raises(OutOfBounds):
        await link.read([dataclasses.replace(block, size=5001)], [memoryview(bytearray(6000))], soon())
    assert await fetch(link, [key_of(1, 5000)]) == [block_bytes(1, 5000)]


async def test_a_request_names_1_to_1024_keys_of_1_to_1024_bytes(world: World) -> None:
    link = await world.link()
    for keys in ([], [b"k"] * (KEYS_MAX + 1), [b""], [b"k" * 1025]):
        with pytest.raises(BadRequest):
            await link.lease(NS, keys, soon())
    assert await link.lease(NS, [b"k" * 1024], soon()) == [None]


async def test_a_link_holds_no_more_leases_and_bytes_than_it_may(world: World) -> None:
    settings = dataclasses.replace(SERVE, leases=LeaseLimits(3, 10_000))
    link = await world.link(world.serve(settings=settings))
    with pytest.raises(Busy):
        await link.lease(NS, [key_of(n, 1) for n in range(4)], soon())
    with pytest.raises(Busy):
        await link.lease(NS, [key_of(1, 5000), key_of(2, 5001)], soon())
    assert world.provider.holding == 0
    assert await fetch(link, [key_of(1, 5000), key_of(2, 5000)])


# --- leases ----------------------------------------------------------------------------------------------------------


async def test_an_unknown_key_or_namespace_is_none_and_the_others_are_there(world: World) -> None:
    link = await world.link()
    found = await link.lease(NS, [b"unknown", key_of(1, 10), b"unknown too"], soon())
    assert [block is not None for block in found] == [False, True, False]
    assert await link.lease(b"another-of-16-by", [key_of(1, 10)], soon()) == [None]


async def test_a_block_is_held_from_its_lease_to_its_release(world: World) -> None:
    link = await world.link()
    blocks = await link.lease(NS, [key_of(1, 10), key_of(2, 10)], soon())
    assert world.provider.holding == 2 and link.load.leases == 2
    link.release(blocks[:1])
    await until(lambda: world.provider.holding == 1)
    link.release(blocks)  # the first one again: ignored
    await until(lambda: world.provider.holding == 0)
    assert link.load.leases == 0 and link.alive


async def test_a_released_lease_and_one_of_another_link_are_unknown(world: World) -> None:
    server = world.serve()
    link, other = await world.link(server), await world.link(server, "other")
    [block] = await link.lease(NS, [key_of(1, 100)], soon())
    with pytest.raises(UnknownLease):
        await other.read([block], [memoryview(bytearray(100))], soon())
    link.release([block])
    await until(lambda: world.provider.holding == 0)
    with pytest.raises(UnknownLease):
        await link.read([block], [memoryview(bytearray(100))], soon())
    assert await fetch(link, [key_of(2, 100)]) == [block_bytes(2, 100)]


async def test_the_end_of_a_link_ends_its_leases_and_those_of_no_other(world: World) -> None:
    server = world.serve()
    link, other = await world.link(server), await world.link(server, "other")
    await link.lease(NS, [key_of(1, 10), key_of(2, 10)], soon())
    [kept] = await other.lease(NS, [key_of(3, 10)], soon())
    await link.close()
    await until(lambda: world.provider.holding == 1)
    target = bytearray(10)
    await other.read([kept], [memoryview(target)], soon())
    assert target == block_bytes(3, 10)


async def test_bytes_that_are_on_their_way_outlive_a_release(world: World) -> None:
    """The holder gives a place back, for other bytes, only when the kernel has all that was asked for.

    Several times: one sender in fifty once stood before a full window that nobody opened, and kept the block for a minute.
    """
    link = await world.link()
    for number in range(8):
        await release_on_the_way(world, link, number)


async def release_on_the_way(world: World, link: Link, number: int) -> None:
    [block] = await link.lease(NS, [key_of(number, 16 << 20)], soon())
    target = bytearray(block.size)
    reading = asyncio.create_task(link.read([block], [memoryview(target)], soon()))
    [served] = world.servers[0].links()
    await until(lambda: _is_sending(served.leases) or reading.done())
    link.release([block])
    await until(lambda: world.provider.holding == 0)
    world.provider.overwrite(block.key)
    await asyncio.wait([reading])
    # Either the release came while it was sent, or before a stripe was asked for; there is no third case.
    assert reading.exception() is not None or target == block_bytes(number, 16 << 20)


async def test_a_lease_that_is_kept_too_long_ends_the_link(world: World) -> None:
    link = await world.link(world.serve(settings=dataclasses.replace(SERVE, lease_seconds_max=0.2)))
    await link.lease(NS, [key_of(1, 10)], soon())
    await until(lambda: not link.alive)
    assert "lease_max" in link.problem and world.provider.holding == 0
    with pytest.raises(PeerUnavailable, match="lease_max"):
        await link.lease(NS, [key_of(1, 10)], soon())


# --- callers that leave ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
async def test_a_lease_call_that_was_left_holds_nothing(world: World, how: str) -> None:
    link = await world.link()
    world.provider.delay_seconds = 0.2
    call = asyncio.create_task(link.lease(NS, [key_of(1, 10)], soon(0.05 if how == "deadline" else 10)))
    if how == "cancelled":
        await asyncio.sleep(0.05)
        call.cancel()
    with pytest.raises(DeadlineExceeded if how == "deadline" else asyncio.CancelledError):
        await call
    world.provider.delay_seconds = 0.0
    await fetch(link, [key_of(2, 10)])  # requests are handled in order: the cancellation is through
    await until(lambda: world.provider.holding == 0)


async def test_a_call_that_is_left_before_the_peer_has_begun_with_it_is_forgotten_there(world: World) -> None:
    link = await world.link()
    for number in range(1000, 1010):
        link._channel.send(Lease(number, NS, [key_of(1, 10)], 1000))
        link._channel.send(Cancel(number))  # read in the same step
    assert await fetch(link, [key_of(2, 10)]) == [block_bytes(2, 10)]
    await until(lambda: world.provider.holding == 0)


async def test_a_cancelled_read_leaves_memory_that_nobody_writes_any_more(world: World) -> None:
    link = await world.link()
    blocks = await link.lease(NS, [key_of(n, 8 << 20) for n in range(8)], soon())
    memory = [bytearray(8 << 20) for _ in blocks]
    for patience in (0, 0.001, 0.003, 0.01):
        call = asyncio.create_task(link.read(blocks, [memoryview(part) for part in memory], soon()))
        await asyncio.sleep(patience)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        for part in memory:
            part[:] = bytes(len(part))
        await fetch(link, [key_of(100, 1 << 20)])
        assert not any(map(any, (part[::4096] for part in memory))), "written after the call was over"
    link.release(blocks)


# --- questions -------------------------------------------------------------------------------------------------------


async def test_a_question_reaches_the_handler_of_its_kind_with_the_asker(world: World) -> None:
    server = world.serve()

    async def have(peer: PeerInfo, payload: bytes) -> bytes:
        return peer.name.encode() + b" asked " + payload

    async def refuse(peer: PeerInfo, payload: bytes) -> bytes:
        raise NoSuchNamespace("kv-x")

    server.handle("have", have)
    server.handle("refuse", refuse)
    link = await world.link(server)
    assert await link.ask("have", b"this", soon()) == b"reader asked this"
    with pytest.raises(NoSuchNamespace, match="kv-x"):
        await link.ask("refuse", b"", soon())
    with pytest.raises(BadRequest, match="sing"):
        await link.ask("sing", b"", soon())
    with pytest.raises(BadRequest):
        await link.ask("have", bytes(ASK_BYTES_MAX + 1), soon())


@pytest.mark.parametrize("how", ["deadline", "cancelled"])
async def test_a_question_whose_asker_leaves_is_cancelled_at_the_peer(world: World, how: str) -> None:
    server, begun, ended = world.serve(), asyncio.Event(), asyncio.Event()

    async def think(peer: PeerInfo, payload: bytes) -> bytes:
        begun.set()
        try:
            return await asyncio.get_running_loop().create_future()
        finally:
            ended.set()

    server.handle("think", think)
    link = await world.link(server)
    asking = asyncio.create_task(link.ask("think", b"", soon(0.1 if how == "deadline" else 60)))
    await begun.wait()
    if how == "cancelled":
        asking.cancel()
    with pytest.raises(DeadlineExceeded if how == "deadline" else asyncio.CancelledError):
        await asking
    await asyncio.wait_for(ended.wait(), 5)
    assert link.alive


async def test_requests_under_way_are_bounded_on_both_sides(world: World) -> None:
    server = world.serve(settings=dataclasses.replace(SERVE, requests_max=2))
    world.provider.delay_seconds = 0.3
    link = await world.link(server)
    found = await asyncio.gather(*(link.lease(NS, [key_of(n, 1)], soon()) for n in range(3)), return_exceptions=True)
    assert [isinstance(one, Busy) for one in found] == [False, False, True]
    small = await world.pool("small", dataclasses.replace(LINK, requests_max=1)).link(server.address, soon())
    first = asyncio.create_task(small.lease(NS, [key_of(1, 1)], soon()))
    await asyncio.sleep(0)
    with pytest.raises(Busy):
        await small.lease(NS, [key_of(2, 1)], soon())
    await first


# --- blocks that are being written -----------------------------------------------------------------------------------


async def test_of_a_block_that_is_being_written_exactly_what_is_written_can_be_read(world: World) -> None:
    key, size = key_of(1, 300_000), 300_000
    growing = world.provider.writing[key] = Growing()
    link = await world.link()
    [block, none] = await link.lease_writing(NS, [key, key_of(2, 10)], soon())
    assert none is None and block is not None and (block.size, block.checksum) == (size, b"")
    memory = bytearray(size)
    for start, end in ((0, 100_000), (100_000, 200_001), (200_001, size)):
        with pytest.raises(OutOfBounds):
            await link.read([block.part(start, end)], [memoryview(memory)[start:end]], soon())
        growing.written = end
        await link.read([block.part(start, end)], [memoryview(memory)[start:end]], soon())
        assert memory[:end] == block_bytes(1, size)[:end]
    link.release([block])
    await until(lambda: world.provider.holding == 0)


async def test_parts_of_many_blocks_are_read_at_once_and_land_where_they_belong(world: World) -> None:
    link = await world.link()
    keys = [key_of(number, 50_000) for number in range(40)]
    blocks = [block for block in await link.lease(NS, keys, soon()) if block is not None]
    memory = bytearray(40 * 1000)
    parts = [block.part(number, number + 1000) for number, block in enumerate(blocks)]
    await link.read(parts, [memoryview(memory)[n * 1000 : (n + 1) * 1000] for n in range(40)], soon())
    assert memory == b"".join(block_bytes(number, 50_000)[number : number + 1000] for number in range(40))


# --- the end ---------------------------------------------------------------------------------------------------------


async def test_a_server_that_stops_ends_its_links_and_says_so(world: World) -> None:
    server = world.serve()
    link = await world.link(server)
    await link.lease(NS, [key_of(1, 10)], soon())
    await server.close()
    await until(lambda: not link.alive)
    assert "stops" in link.problem and world.provider.holding == 0


async def test_closing_a_link_fails_what_is_under_way(world: World) -> None:
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 16 << 20)], soon())
    world.provider.delay_seconds = 5.0
    calls = [
        asyncio.create_task(link.lease(NS, [key_of(2, 1)], soon())),
        asyncio.create_task(link.read([block], [memoryview(bytearray(block.size))], soon())),
    ]
    await asyncio.sleep(0)
    await link.close()
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(one) for one in found] == [PeerUnavailable, PeerUnavailable]
    await link.close()


def _is_sending(leases: object) -> bool:
    return any(served.sends for served in leases._leases.values())
