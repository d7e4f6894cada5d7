"""A directory of three servers, one of which goes: what is of it is not known, the rest is, and all is told anew when it is back."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from directory_server import DirectoryCluster, DirectoryServer
from directory_world import NS, World, found, keys_of, soon, until

from mooncask.daemon.directory.directory import new_incarnation
from mooncask.daemon.directory.valkey import ValkeyDirectory

KEYS = keys_of(512)


@pytest.fixture
def parted(tmp_path: Path) -> Iterator[DirectoryCluster]:
    with DirectoryCluster(tmp_path, whole=False) as cluster:
        yield cluster


def one_without_nodes(cluster: DirectoryCluster) -> DirectoryServer:
    return next(server for server in cluster.servers if server is not cluster.with_nodes())


async def known(directory: ValkeyDirectory) -> int:
    return sum(map(len, await directory.lookup(NS, KEYS, soon())))


async def in_time(directory: ValkeyDirectory, seconds: float) -> int:
    began = time.monotonic()
    number = await known(directory)
    assert time.monotonic() - began < seconds
    return number


@pytest.mark.slow
async def test_a_server_without_a_replica_takes_its_part_along_and_the_others_go_on(parted: DirectoryCluster) -> None:
    world, me = World(parted.url), new_incarnation("n1")
    world.has[me] = KEYS
    gone = one_without_nodes(parted)
    async with world.node("n1", me), world.node("n2") as two:
        await found(two, KEYS, 1)
        gone.kill()
        await until(lambda: two.state.startswith("partly down"), work=lambda: known(two))
        retold = world.counters["directory_retold"]
        for _ in range(5):
            assert 128 < await in_time(two, 1.0) < 480, "two of three parts are known, and nobody waits for the third"
        assert two.state.startswith("partly down")
        assert world.counters["directory_retold"] == retold, "nothing is told anew again and again"
        gone.start()
        await found(two, KEYS, 1, 30.0)
        assert two.state == "ok"


@pytest.mark.slow
async def test_the_server_with_the_nodes_or_all_of_them_can_go_and_come_back(parted: DirectoryCluster) -> None:
    world, me = World(parted.url), new_incarnation("n1")
    world.has[me] = KEYS
    async with world.node("n1", me) as one, world.node("n2") as two:
        await found(two, KEYS, 1)
        for gone in ([parted.with_nodes()], parted.servers):
            for server in gone:
                server.kill()
            await until(lambda: two.state.startswith("down") and one.state.startswith("down"))
            assert await in_time(two, 0.5) == 0
            for server in gone:
                server.start()
            await found(two, KEYS, 1, 30.0)


@pytest.mark.slow
async def test_a_replica_takes_over_and_nobody_has_to_do_anything(tmp_path: Path) -> None:
    with DirectoryCluster(tmp_path, replicas=True) as cluster:
        world, me = World(cluster.url), new_incarnation("n1")
        world.has[me] = KEYS
        async with world.node("n1", me), world.node("n2") as two:
            await found(two, KEYS, 1)
            cluster.with_nodes().kill()
            await until(lambda: two.state != "ok", work=lambda: in_time(two, 2.0))
            await found(two, KEYS, 1, 30.0)
            assert two.state == "ok"
