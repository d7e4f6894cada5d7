"""The directory on a real server, in this process: what nodes tell it and learn from it, and what its absence does."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from directory_server import DirectoryCluster, DirectoryServer
from directory_world import NS, OTHER_NS, World, found, holders_are, keys_of, soon, until

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.directory import NodeRecord, Release, new_incarnation
from mooncask.daemon.directory.scripts import HOLDERS_MAX, NODE_KEY, NODES_KEY, locations
from mooncask.daemon.directory.valkey_client import open_valkey_directory


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DirectoryServer]:
    with DirectoryServer(tmp_path) as server:
        yield server


@pytest.fixture
def world(server: DirectoryServer) -> World:
    return World(server.url)


async def test_what_a_node_announces_others_find_until_it_withdraws_it(world: World) -> None:
    keys = keys_of(256)
    async with world.node("n1") as one, world.node("n2") as two:
        one.announce(NS, keys)
        await found(two, keys, 1)
        [[holder], *_] = await two.lookup(NS, keys[:1], soon())
        node = two.node(holder)
        assert node is not None and (node.name, node.address) == ("n1", "n1:7000")
        assert await two.lookup(OTHER_NS, keys, soon()) == [[]] * 256
        assert await one.lookup(NS, keys[:1], soon()) == [[]], "a node is not told of itself"
        one.withdraw(NS, keys[:128])
        await found(two, keys[:128], 0)
        await found(two, keys[128:], 1)


async def test_the_last_word_counts_when_a_block_comes_and_goes_at_once(world: World) -> None:
    [key] = keys_of(1)
    async with world.node("n1") as one, world.node("n2") as two:
        for _ in range(50):
            one.announce(NS, [key])
            one.withdraw(NS, [key])
        one.announce(NS, [key])
        await found(two, [key], 1)


async def test_an_old_run_of_a_node_gives_no_credit_and_can_not_take_away_what_the_new_one_has(world: World) -> None:
    keys = keys_of(10)
    old, new = new_incarnation("n1", 1_000), new_incarnation("n1", 2_000)
    async with world.node("n2") as two, world.node("n1", old) as before:
        before.announce(NS, keys)
        await found(two, keys, 1)
        before._tasks[0].cancel()  # it lives no more, but what it had to say is still under way
        async with world.node("n1", new) as now:
            now.announce(NS, keys[:5])
            await holders_are(two, keys, [[new]] * 5 + [[]] * 5)
            before.withdraw(NS, keys)
            await until(lambda: world.counters["directory_withdrawn"] >= 10)
            before.announce(NS, keys)
            await until(lambda: world.counters["directory_announced"] >= 25)
            await holders_are(two, keys, [[new]] * 5 + [[]] * 5)


async def test_a_node_that_died_is_forgotten_after_its_time(world: World) -> None:
    keys = keys_of(4)
    async with world.node("n2", ttl=1.0) as two, world.node("n1", ttl=1.0) as one:
        one.announce(NS, keys)
        await found(two, keys, 1)
        one._tasks[0].cancel()
        await found(two, keys, 0)
        assert await two.nodes(soon()) == []


async def test_who_has_it_not_is_corrected(world: World) -> None:
    keys = keys_of(3)
    async with world.node("n1") as one, world.node("n2") as two, world.node("n3") as three:
        one.announce(NS, keys)
        three.announce(NS, keys)
        await found(two, keys, 2)
        two.not_there(NS, keys[:1], one._me)
        await found(two, keys[:1], 1)
        await found(two, keys[1:], 2)


async def test_a_server_that_forgot_everything_is_told_everything_again(server: DirectoryServer, world: World) -> None:
    keys = keys_of(3000)
    me = new_incarnation("n1")
    world.has[me] = keys
    async with world.node("n1", me), world.node("n2") as two:
        await found(two, keys, 1)  # what it holds when it starts is told without being announced
        server.flush()
        await found(two, keys, 1)


async def test_a_server_that_is_killed_costs_nobody_time_and_is_told_everything_when_it_is_back(
    server: DirectoryServer, world: World
) -> None:
    keys = keys_of(300)
    me = new_incarnation("n1")
    world.has[me] = keys
    async with world.node("n1", me) as one, world.node("n2") as two:
        await found(two, keys, 1)
        server.kill()
        await until(lambda: two.state.startswith("down since") and one.state.startswith("down since"))
        began = time.monotonic()
        assert await two.lookup(NS, keys, soon(5.0)) == [[]] * 300
        one.announce(NS, keys)
        assert time.monotonic() - began < 0.1
        server.start()
        await found(two, keys, 1)
        assert two.state == "ok"


async def test_a_server_that_hangs_costs_one_look_up_half_a_second_and_the_next_ones_nothing(
    server: DirectoryServer, world: World
) -> None:
    keys = keys_of(10)
    async with world.node("n1") as one, world.node("n2") as two:
        one.announce(NS, keys)
        await found(two, keys, 1)
        server.freeze()
        try:
            began = time.monotonic()
            assert await two.lookup(NS, keys, soon(10.0)) == [[]] * 10
            assert time.monotonic() - began < 1.0
            began = time.monotonic()
            assert await two.lookup(NS, keys, soon(10.0)) == [[]] * 10
            assert time.monotonic() - began < 0.1
        finally:
            server.thaw()
        await found(two, keys, 1)


async def test_a_start_without_a_server_is_a_start(server: DirectoryServer, world: World) -> None:
    server.kill()
    directory = open_valkey_directory(
        ClusterSection(directory=server.url), lambda: NodeRecord("n1", bytes(16), "n1:1"), lambda: iter(()), Counter()
    )
    try:
        assert await directory.lookup(NS, keys_of(1), soon()) == [[]] and directory.state.startswith("down since")
    finally:
        await directory.close()


async def test_a_look_up_of_256_keys_takes_a_few_milliseconds_and_a_key_less_than_200_bytes(
    server: DirectoryServer, world: World
) -> None:
    async with world.node("n1") as one, world.node("n2") as two:
        before = server.keys()
        one.announce(NS, keys_of(20_000))
        await until(lambda: server.keys() - before >= 20_000)
        seconds = []
        for start in range(0, 20 * 256, 256):
            keys = keys_of(256, start)
            began = time.perf_counter()
            await two.lookup(NS, keys, soon())
            seconds.append(time.perf_counter() - began)
        assert sorted(seconds)[len(seconds) // 2] < 0.02, seconds


async def test_three_servers_that_are_a_cluster_do_as_one_does(tmp_path: Path) -> None:
    keys = keys_of(256)
    with DirectoryCluster(tmp_path) as cluster:
        world = World(cluster.url)
        async with world.node("n1") as one, world.node("n2") as two:
            one.announce(NS, keys)
            await found(two, keys, 1)
            assert all(server.keys() > 0 for server in cluster.servers), "all of them have a share"
            one.withdraw(NS, keys[:100])
            await found(two, keys[:100], 0)
            await found(two, keys[100:], 1)
            assert [node.name for node in await two.nodes(soon())] == ["n1"]


async def test_what_others_have_put_where_locations_and_nodes_are_is_no_news_of_ours(
    server: DirectoryServer, world: World
) -> None:
    keys = [bytes([65 + number]) * 16 for number in range(5)]
    listed, long, short, *_ = names = [name.decode() for name in locations(NS, keys)]
    server.command("RPUSH", listed, "something")
    server.command("SET", long, "x" * 1_000_000)
    server.command("SET", short, "x" * 15)
    server.command("HSET", (NODE_KEY + b"n1").decode(), "a", "b")
    server.command("SET", NODES_KEY.decode(), "no set")
    server.command("SET", (NODE_KEY + b"n3").decode(), "no record")
    async with world.node("n1") as one, world.node("n2") as two:
        server.command("SADD", NODES_KEY.decode(), "n3", "nobody")
        assert await two.lookup(NS, keys, soon()) == [[]] * 5
        one.withdraw(NS, keys)
        one.announce(NS, keys[:1])
        one.announce(NS, keys)
        await found(two, keys, 1)
        assert int(server.command("STRLEN", names[1])[1:]) <= 16 * HOLDERS_MAX
        server.command("DEL", listed)
        server.command("RPUSH", listed, "something")
        assert not {Release.ELSEWHERE, Release.UNKNOWN} & set(await one.release(NS, keys, soon()))
        one.withdraw(NS, keys)
        await found(two, keys, 0)
        assert world.counters["directory_failures"] == world.counters["directory_lookup_failures"] == 0
        assert [node.name for node in await two.nodes(soon())] == ["n1"]


async def test_a_server_that_closed_its_connections_or_forgot_the_scripts_is_asked_again_without_anybody_noticing(
    server: DirectoryServer, world: World
) -> None:
    keys = keys_of(1500)
    async with world.node("n1") as one, world.node("n2") as two:
        one.announce(NS, keys[:500])
        await found(two, keys[:500], 1)
        server.command("CLIENT", "KILL", "TYPE", "normal")
        assert all(await two.lookup(NS, keys[:500], soon()))
        one.announce(NS, keys[500:1000])
        await found(two, keys[:1000], 1)
        server.command("SCRIPT", "FLUSH")
        one.announce(NS, keys[1000:])
        await found(two, keys, 1)
        assert world.counters["directory_failures"] == world.counters["directory_lookup_failures"] == 0


async def test_a_location_is_of_its_namespace_and_shard_and_no_longer_than_what_a_server_keeps_in_32_bytes() -> None:
    keys = keys_of(2000)
    names = locations(NS, keys)
    assert all(name.endswith(b"}" + key) and len(name) == 30 for name, key in zip(names, keys, strict=True))
    parts = {name[: name.index(b"}") + 1] for name in names}
    assert len(parts) == 64 and parts.isdisjoint(name[:14] for name in locations(OTHER_NS, keys))


async def test_a_look_up_that_this_nodes_own_work_made_late_does_not_count_against_the_server(world: World) -> None:
    keys = keys_of(4)
    async with world.node("n1") as one:
        looking = asyncio.create_task(one.lookup(NS, keys, soon(0.3)))
        await asyncio.sleep(0)
        time.sleep(0.5)  # noqa: ASYNC251 - as a batch of thousands of blocks does
        await looking
        assert one.state == "ok" and world.counters["directory_failures"] == 0


async def test_two_nodes_of_one_name_say_so_as_long_as_both_are_there(world: World) -> None:
    async with world.node("n1", ttl=0.6) as one:
        async with world.node("n1", ttl=0.6) as twin:
            for node in (one, twin):
                await until(lambda node=node: node.state == "another node is called n1 too")  # type: ignore[misc]
            retold = world.counters["directory_retold"]
            await asyncio.sleep(0.5)
            assert world.counters["directory_retold"] <= retold + 1, "nothing is gained by telling all again and again"
        await until(lambda: one.state == "ok")
