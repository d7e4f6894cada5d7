"""One link an address, however many want it; failures are shared, remembered for a while, and shown."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from child_processes import until
from peer_world import NS, World, config_of, fetch, incarnation_of, key_of, soon, write_cluster_certificates

from mooncask.daemon.transport.endpoint import open_endpoint
from mooncask.daemon.transport.pool import BACKOFF_SECONDS, BACKOFF_SECONDS_MAX, Links, backoff_seconds
from mooncask.daemon.transport.transport import Link
from mooncask.errors import AddressInUse, BadRequest, ConfigError, DeadlineExceeded, PeerChanged, PeerUnavailable
from mooncask.tiers.arena import StagingArea


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


async def test_all_who_want_a_link_at_once_get_the_same_one(world: World) -> None:
    server, pool = world.serve(), world.pool()
    found = await asyncio.gather(*(pool.link(server.address, soon()) for _ in range(20)))
    assert len(set(map(id, found))) == 1 and pool.links() == found[:1] and len(server.links()) == 1


async def test_a_link_that_ended_is_made_anew_and_the_state_tells_of_both(world: World) -> None:
    server, pool = world.serve(), world.pool()
    link = await pool.link(server.address, soon())
    await fetch(link, [key_of(1, 1000)])
    await link.close()
    assert [(state.connected, state.problem) for state in pool.states()] == [(False, "it was closed here")]
    again = await pool.link(server.address, soon())
    assert again is not link and again.alive
    await fetch(again, [key_of(1, 500)])
    [state] = pool.states()
    assert (state.address, state.name, state.connected, state.problem) == (server.address, "holder", True, "")
    assert state.load.bytes_received == 1500 and state.load.receive_seconds > 0 and state.load.leases == 0
    await until(lambda: pool.states()[0].load.round_trip_seconds > 0)


async def test_the_incarnation_that_is_wanted_is_the_one_that_is_got(world: World) -> None:
    server, pool = world.serve(epoch=5), world.pool()
    link = await pool.link(server.address, soon(), incarnation_of("holder", 5))
    with pytest.raises(PeerChanged):
        await pool.link(server.address, soon(), incarnation_of("holder", 4))
    assert await pool.link(server.address, soon()) is link


async def test_an_address_that_failed_is_left_alone_for_a_while() -> None:
    attempts = 0

    async def dial(host: str, port: int) -> Link:
        nonlocal attempts
        attempts += 1
        raise PeerUnavailable(host, "is not there")

    pool = Links(dial)
    for _ in range(2):
        found = await asyncio.gather(*(pool.link("n2:1", soon()) for _ in range(10)), return_exceptions=True)
        assert all(isinstance(one, PeerUnavailable) for one in found)
    assert attempts == 1
    [state] = pool.states()
    assert not state.connected and "is not there" in state.problem and state.name == ""
    await until(lambda: asyncio.get_running_loop().time() > pool._ways["n2:1"].wait_until)
    with contextlib.suppress(PeerUnavailable):
        await pool.link("n2:1", soon())
    assert attempts == 2
    await pool.close()


def test_waits_between_attempts_grow_to_a_bound() -> None:
    waits = [backoff_seconds(failures) for failures in range(1, 100)]
    assert waits[0] == BACKOFF_SECONDS and waits == sorted(waits) and waits[-1] == BACKOFF_SECONDS_MAX


async def test_who_waits_for_a_slow_attempt_leaves_at_his_own_deadline() -> None:
    release = asyncio.Event()

    async def dial(host: str, port: int) -> Link:
        await release.wait()
        raise PeerUnavailable(host, "at last")

    pool = Links(dial)
    patient = asyncio.create_task(pool.link("n2:1", soon()))
    with pytest.raises(DeadlineExceeded):
        await pool.link("n2:1", soon(0.05))
    release.set()
    with pytest.raises(PeerUnavailable, match="at last"):
        await patient
    await pool.close()
    with pytest.raises(PeerUnavailable, match="stops"):
        await pool.link("n2:1", soon())


async def test_nobody_there_and_no_address_are_told_apart(world: World) -> None:
    pool = world.pool()
    with pytest.raises(PeerUnavailable):
        await pool.link(f"127.0.0.1:{closed_port()}", soon())
    with pytest.raises(BadRequest, match="host:port"):
        await pool.link("nowhere", soon())
    with pytest.raises(PeerUnavailable):
        await pool.link("no-such-host.invalid:1", soon())


# --- from the configuration ------------------------------------------------------------------------------------------


@pytest.fixture
def arena() -> Iterator[StagingArea]:
    """The memory that a node would read into; these tests read into their own."""
    arena = StagingArea(1 << 20)
    yield arena
    arena.close()


async def test_an_endpoint_is_what_the_configuration_says(tmp_path: Path, world: World, arena: StagingArea) -> None:
    secret = tmp_path / "secret"
    secret.write_text("what-the-cluster-knows\n")
    secret.chmod(0o600)
    tls = {}
    if world.folder is not None:
        section = write_cluster_certificates(world.folder, "n1")
        tls = {key: getattr(section, key) for key in ("tls_certificate", "tls_key", "tls_ca")}
    one = await open_endpoint(
        config_of(tmp_path, listen="127.0.0.1:0", secret_file=str(secret), **tls),
        incarnation_of("a"),
        world.provider,
        arena,
    )
    two = await open_endpoint(
        config_of(tmp_path, listen="127.0.0.1:0", secret="what-the-cluster-knows", **tls),
        incarnation_of("b"),
        world.provider,
        arena,
    )
    link = await two.pool.link(one.identity.address, soon(), incarnation_of("a"))
    assert link.peer.name == one.identity.name and one.server.address == one.identity.address
    assert len(await fetch(link, [key_of(1, 10)])) == 1
    assert await link.lease(NS, [b"nothing"], soon()) == [None]
    with pytest.raises(AddressInUse, match=r"cluster\.listen"):
        await open_endpoint(
            config_of(tmp_path, listen=one.identity.address), incarnation_of("c"), world.provider, arena
        )
    await two.close()
    await one.close()


@pytest.mark.parametrize("key", ["secret_file", "tls_ca", "tls_certificate"])
async def test_a_file_that_cannot_be_used_is_named_at_the_start(tmp_path: Path, key: str, arena: StagingArea) -> None:
    section = write_cluster_certificates(tmp_path, "n1")
    files = {name: getattr(section, name) for name in ("tls_certificate", "tls_key", "tls_ca")}
    with pytest.raises(ConfigError, match=rf"cluster\.{key}"):
        await open_endpoint(
            config_of(tmp_path, listen="127.0.0.1:0", **(files | {key: str(tmp_path / "missing")})),
            incarnation_of("a"),
            World(None).provider,
            arena,
        )
