"""What a link makes of dead, paused, slow, foreign and lying peers: no wrong byte, no call past its deadline, nothing left behind."""

import asyncio
import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from child_processes import until
from msgspec.msgpack import encode
from peer_proxy import proxy_to
from peer_world import (
    LINK,
    NS,
    SERVE,
    World,
    block_bytes,
    fetch,
    incarnation_of,
    key_of,
    serving_child,
    soon,
    write_cluster_certificates,
)
from xxhash import xxh3_128_digest

from mooncask.daemon.transport.authentication import DATA, PREAMBLE_BYTES, Preamble
from mooncask.daemon.transport.tcp.handshake import framed
from mooncask.errors import (
    AccessDenied,
    BadRequest,
    DeadlineExceeded,
    MooncaskError,
    PeerChanged,
    PeerUnavailable,
    ProtocolMismatch,
)

GRACE_SECONDS = 0.1
"""A call ends at most so long after its deadline, beside what this machine keeps every process waiting."""


async def late_seconds(deadline: float, call: Coroutine[Any, Any, object]) -> float:
    """How much later than its deadline `call` failed by it, less how late a plain timer was at the same moment."""

    async def timer() -> float:
        await asyncio.sleep(deadline - time.monotonic())
        return time.monotonic() - deadline

    lag = asyncio.create_task(timer())
    with pytest.raises(DeadlineExceeded):
        await call
    late = time.monotonic() - deadline
    return late - await lag


def is_untouched(memory: list[bytearray], by: bytes) -> bool:
    return all(set(part[::512]) == set(by) for part in memory)


# --- dead ------------------------------------------------------------------------------------------------------------


async def test_a_peer_that_is_killed_in_mid_transfer_fails_the_read_and_writes_nothing_more(
    world: World, certificates: Path | None
) -> None:
    async with serving_child(certificates) as child, proxy_to(child.address) as proxy:
        link = await world.pool().link(proxy.address, soon())
        blocks = await link.lease(NS, [key_of(n, 8 << 20) for n in range(4)], soon())
        proxy.bytes_per_second = 20e6
        memory = [bytearray(8 << 20) for _ in blocks]
        reading = asyncio.create_task(link.read(blocks, [memoryview(part) for part in memory], soon()))
        await until(lambda: proxy.passed > 1 << 20)
        child.signal(signal.SIGKILL)
        with pytest.raises(PeerUnavailable):
            await reading
        for part in memory:
            part[:] = b"x" * len(part)
        await until(lambda: not link.alive)
        assert is_untouched(memory, b"x")
        with pytest.raises(PeerUnavailable):
            await link.lease(NS, [key_of(1, 1)], soon())


async def test_a_peer_that_is_started_anew_is_reached_again_and_is_another_incarnation(
    world: World, certificates: Path | None
) -> None:
    pool = world.pool()
    async with serving_child(certificates, epoch=1) as child:
        address = child.address
        link = await pool.link(address, soon(), incarnation_of("child", 1))
        [block] = await link.lease(NS, [key_of(1, 10)], soon())
    await until(lambda: not link.alive)
    with pytest.raises(PeerUnavailable):
        await pool.link(address, soon())
    async with serving_child(certificates, epoch=2, listen=address):
        fresh = await link_when_it_is_back(lambda: pool.link(address, soon()))
        assert fresh.peer.incarnation == incarnation_of("child", 2)
        with pytest.raises(PeerChanged):
            await pool.link(address, soon(), incarnation_of("child", 1))
        with pytest.raises(PeerUnavailable):
            await link.read([block], [memoryview(bytearray(10))], soon())
        assert await fetch(fresh, [key_of(2, 10)]) == [block_bytes(2, 10)]


async def link_when_it_is_back(dial: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """The pool leaves an address alone for a while after a failure."""
    end = soon()
    while True:
        try:
            return await dial()
        except PeerUnavailable:
            assert time.monotonic() < end
            await asyncio.sleep(0.01)


async def test_a_link_of_an_earlier_run_of_a_node_ends_when_the_next_run_comes(world: World) -> None:
    server = world.serve()
    old = await world.pool("node", epoch=1).link(server.address, soon())
    await old.lease(NS, [key_of(1, 10)], soon())
    await world.pool("node", epoch=2).link(server.address, soon())
    await until(lambda: not old.alive)
    assert "started anew" in old.problem and world.provider.holding == 0


# --- paused, slow ----------------------------------------------------------------------------------------------------


async def test_calls_to_a_paused_peer_keep_their_deadlines_and_it_writes_nothing_when_it_goes_on(
    world: World, certificates: Path | None
) -> None:
    async with serving_child(certificates) as child:
        link = await world.pool().link(child.address, soon())
        blocks = await link.lease(NS, [key_of(n, 4 << 20) for n in range(8)], soon())
        memory = [bytearray(4 << 20) for _ in blocks]
        views = [memoryview(part) for part in memory]
        await link.read(blocks, views, soon())
        child.signal(signal.SIGSTOP)
        try:
            deadline = soon(0.3)
            assert await late_seconds(deadline, link.read(blocks, views, deadline)) < GRACE_SECONDS
            for part in memory:
                part[:] = b"x" * len(part)
            deadline = soon(0.2)
            assert await late_seconds(deadline, link.lease(NS, [key_of(50, 10)], deadline)) < GRACE_SECONDS
            deadline = soon(0.2)
            assert await late_seconds(deadline, link.ask("have", b"", deadline)) < GRACE_SECONDS
        finally:
            child.signal(signal.SIGCONT)
        assert await fetch(link, [key_of(60, 1 << 20)]) == [block_bytes(60, 1 << 20)], "the link itself has lived"
        assert is_untouched(memory, b"x")


async def test_a_peer_that_is_silent_for_too_long_is_dead_to_both_sides(world: World) -> None:
    server = world.serve(settings=dataclasses.replace(SERVE, silence_seconds=1.0))
    async with proxy_to(server.address) as proxy:
        quiet = dataclasses.replace(LINK, keepalive_seconds=60.0, silence_seconds=60.0)
        link = await world.pool("mute", quiet).link(server.address, soon())
        await link.lease(NS, [key_of(1, 10)], soon())
        await until(lambda: not link.alive)
        assert "silent" in link.problem and world.provider.holding == 0
        hasty = dataclasses.replace(LINK, keepalive_seconds=0.05, silence_seconds=0.3)
        listener = await world.pool("listener", hasty).link(proxy.address, soon())
        proxy.freeze()
        await until(lambda: not listener.alive)
        assert "nothing was heard" in listener.problem


async def test_a_slow_peer_delays_no_read_from_another(world: World, certificates: Path | None) -> None:
    async with serving_child(certificates) as child, proxy_to(child.address) as proxy:
        proxy.open.clear()
        pool = world.pool()
        slow = await pool.link(proxy.address, soon())
        quick = await pool.link(world.serve().address, soon())
        blocks = await slow.lease(NS, [key_of(n, 1 << 20) for n in range(8)], soon())
        deadline = soon(2.0)
        into = [memoryview(bytearray(1 << 20)) for _ in blocks]
        stuck = asyncio.create_task(late_seconds(deadline, slow.read(blocks, into, deadline)))
        for number in range(10):
            assert await fetch(quick, [key_of(number, 1 << 20)]) == [block_bytes(number, 1 << 20)]
        assert not stuck.done(), "ten reads took less time than the one that waits"
        assert await stuck < GRACE_SECONDS


async def test_a_reader_that_does_not_take_its_bytes_delays_no_other_and_its_end_frees_what_it_held(
    world: World,
) -> None:
    server = world.serve()
    async with proxy_to(server.address) as proxy:
        proxy.open.clear()
        stuck = await world.pool("stuck").link(proxy.address, soon())
        blocks = await stuck.lease(NS, [key_of(n, 16 << 20) for n in range(4)], soon())
        into = [memoryview(bytearray(16 << 20)) for _ in blocks]
        reading = asyncio.create_task(stuck.read(blocks, into, soon()))
        other = await world.link(server, "other")
        for number in range(5):
            assert await fetch(other, [key_of(number + 10, 1 << 20)]) == [block_bytes(number + 10, 1 << 20)]
        assert not reading.done() and world.provider.holding >= 4
        await stuck.close()
        await asyncio.gather(reading, return_exceptions=True)
        await until(lambda: world.provider.holding == 0)


async def test_a_data_connection_that_is_cut_fails_its_read_and_the_next_read_makes_another(world: World) -> None:
    async with proxy_to(world.serve().address) as proxy:
        link = await world.pool().link(proxy.address, soon())
        [block] = await link.lease(NS, [key_of(1, 4 << 20)], soon())
        target = bytearray(block.size)
        await link.read([block], [memoryview(target)], soon())
        proxy.cut(data_only=True)
        await link.read([block], [memoryview(target)], soon())  # they lay idle: nobody need notice
        assert target == block_bytes(1, 4 << 20) and link.alive
        proxy.bytes_per_second = 4e6
        reading = asyncio.create_task(link.read([block], [memoryview(target)], soon()))
        passed = proxy.passed
        await until(lambda: proxy.passed > passed + 1000)
        proxy.cut(data_only=True)
        with pytest.raises(PeerUnavailable):
            await reading
        proxy.bytes_per_second = 0.0
        await link.read([block], [memoryview(target)], soon())
        assert target == block_bytes(1, 4 << 20)


# --- strangers -------------------------------------------------------------------------------------------------------


async def test_another_secret_is_refused_by_name_and_nothing_else_is_said(world: World) -> None:
    server = world.serve()
    with pytest.raises(AccessDenied, match=r"cluster\.secret"):
        await world.pool("stranger", secret="another secret").link(server.address, soon())
    assert server.links() == []


async def test_a_holder_with_another_secret_is_refused_by_the_reader(world: World) -> None:
    server = world.serve(secret="another secret")
    with pytest.raises(AccessDenied, match=r"cluster\.secret"):
        await world.pool().link(server.address, soon())


async def test_tls_meets_plain_and_both_say_so(tmp_path: Path) -> None:
    plain, encrypted = World(None), World(tmp_path)
    for server_world, reader_world in ((plain, encrypted), (encrypted, plain)):
        server = server_world.serve()
        with pytest.raises(AccessDenied, match=r"TLS.*cluster\.tls_"):
            await reader_world.pool().link(server.address, soon())
    for one in (plain, encrypted):
        await one.close()


async def test_a_certificate_of_another_authority_is_refused_although_the_secret_is_right(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for folder in (ours, theirs):
        folder.mkdir()
        write_cluster_certificates(folder, "x")
    world = World(ours)
    with pytest.raises(AccessDenied, match="TLS"):
        await world.pool("stranger", folder=theirs).link(world.serve().address, soon())
    await world.close()


@pytest.mark.parametrize("theirs", [0, 2, 65535])
async def test_another_version_is_refused_with_both_numbers(theirs: int) -> None:
    """On the wire, whichever side is the newer one."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(PREAMBLE_BYTES)
        writer.write(Preamble(theirs, 1, False).encode())
        await writer.drain()
        writer.close()

    world = World(None)
    other = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = other.sockets[0].getsockname()
    with pytest.raises(ProtocolMismatch) as caught:
        await world.pool().link(f"{host}:{port}", soon())
    assert (caught.value.ours, caught.value.theirs) == (1, theirs)
    other.close()
    reader, writer = await asyncio.open_connection(*world.serve().address.split(":"))
    writer.write(Preamble(theirs, 1, False).encode())
    assert await reader.readexactly(PREAMBLE_BYTES) == Preamble(1, 1, False).encode()
    assert await reader.read() == b"", "and the connection is closed"
    writer.close()
    await writer.wait_closed()
    await world.close()


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, b"MOONPEER\x01\x00\x07\x00", b"MOON", b""])
async def test_who_is_no_peer_is_shown_out_and_others_come_in(world: World, said: bytes) -> None:
    server = world.serve(settings=dataclasses.replace(SERVE, handshake_seconds=0.3))
    reader, writer = await asyncio.open_connection(*server.address.split(":"))
    writer.write(said)
    async with asyncio.timeout(5):
        while True:
            try:
                if not await reader.read(1 << 16):
                    break
            except ConnectionError:
                break
    writer.close()
    assert await fetch(await world.link(server), [key_of(1, 10)]) == [block_bytes(1, 10)]


async def test_strangers_on_data_connections_get_no_more_threads_than_handshakes_are_allowed() -> None:
    world = World(None)
    server = world.serve(settings=dataclasses.replace(SERVE, handshake_seconds=1.0, handshakes_max=4))
    before, guests = threading.active_count(), []
    for _ in range(12):
        reader, writer = await asyncio.open_connection(*server.address.split(":"))
        writer.write(Preamble(1, DATA, False).encode())
        assert await reader.readexactly(PREAMBLE_BYTES)
        guests.append((reader, writer))
    assert threading.active_count() - before <= 4
    for reader, writer in guests:
        assert await reader.read() == b"", "all are shown out in the end"
        writer.close()
        await writer.wait_closed()
    assert await fetch(await world.link(server), [key_of(1, 10)]) == [block_bytes(1, 10)]
    await world.close()


@pytest.mark.parametrize(
    "said", [bytes(64), b"\xff" * 64, framed(b"\x93\x01"), framed(encode(["x"])), framed(encode([1, 2, 3]))]
)
async def test_a_peer_that_talks_nonsense_loses_its_link_and_what_it_held_and_nobody_else_does(
    world: World, said: bytes
) -> None:
    server = world.serve()
    good, bad = await world.link(server), await world.link(server, "bad")
    [kept] = await good.lease(NS, [key_of(1, 10)], soon())
    await bad.lease(NS, [key_of(2, 10)], soon())
    bad._channel._writer.write(said)
    await until(lambda: not bad.alive)
    await until(lambda: world.provider.holding == 1)
    target = bytearray(10)
    await good.read([kept], [memoryview(target)], soon())
    assert target == block_bytes(1, 10)


async def test_nodes_talk_over_ipv6(world: World) -> None:
    server = world.serve(listen="[::1]:0")
    assert server.address.startswith("[::1]:")
    assert await fetch(await world.link(server), [key_of(1, 3 << 20)]) == [block_bytes(1, 3 << 20)]


async def test_something_else_behind_a_peers_address_is_named(world: World) -> None:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP ready\r\n")
        await writer.drain()
        writer.close()

    other = await asyncio.start_server(speak, "127.0.0.1", 0)
    host, port = other.sockets[0].getsockname()
    with pytest.raises(BadRequest, match="no Mooncask node"):
        await world.pool().link(f"{host}:{port}", soon())
    other.close()


async def test_a_node_does_not_link_to_itself(world: World) -> None:
    with pytest.raises(MooncaskError, match="itself"):
        await world.pool("holder").link(world.serve("holder").address, soon())


# --- liars -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("certificates", ["tcp"], indirect=True)
async def test_a_byte_that_the_network_altered_is_told_by_the_checksum(world: World) -> None:
    async with proxy_to(world.serve().address) as proxy:
        link = await world.pool().link(proxy.address, soon())
        proxy.flip_at = 50_000
        [block] = await link.lease(NS, [key_of(1, 200_000)], soon())
        target = bytearray(block.size)
        await link.read([block], [memoryview(target)], soon())
        assert xxh3_128_digest(target) != block.checksum
        assert xxh3_128_digest(block_bytes(1, 200_000)) == block.checksum


@pytest.mark.parametrize("certificates", ["tcp+tls"], indirect=True)
async def test_over_tls_an_altered_byte_fails_the_read(world: World) -> None:
    async with proxy_to(world.serve().address) as proxy:
        link = await world.pool().link(proxy.address, soon())
        proxy.flip_at = 50_000
        [block] = await link.lease(NS, [key_of(1, 200_000)], soon())
        with pytest.raises(PeerUnavailable):
            await link.read([block], [memoryview(bytearray(block.size))], soon())


async def test_a_holder_whose_bytes_are_not_those_of_its_checksum_is_found_out(world: World) -> None:
    world.provider.wrong = True
    link = await world.link()
    [block] = await link.lease(NS, [key_of(1, 1000)], soon())
    target = bytearray(1000)
    await link.read([block], [memoryview(target)], soon())
    assert xxh3_128_digest(target) != block.checksum
