"""Copies that other nodes have leave first, and of two nodes that evict the same block one keeps it, while there is a directory."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, Node, blocks_of, eventually
from directory_server import DirectoryServer

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.directory.directory import NodeRecord, Release, new_incarnation
from mooncask.daemon.directory.valkey import ValkeyDirectory
from mooncask.daemon.directory.valkey_client import open_valkey_directory

pytestmark = pytest.mark.slow

NS = bytes(range(16))
MIB = 1 << 20


@pytest.fixture
def server(tmp_path: Path) -> Iterator[DirectoryServer]:
    with DirectoryServer(tmp_path) as server:
        yield server


@pytest.fixture
def nodes(tmp_path: Path, server: DirectoryServer) -> Iterator[ClusterNodes]:
    """In memory only: what leaves DRAM leaves the node."""
    with ClusterNodes(tmp_path, {"nvme.path": ""}, directory=server.url) as nodes:
        yield nodes


def here(node: Node, keys: list[bytes]) -> int:
    return sum(stat is not None for stat in node.client.stat(node.namespace(), keys))


def fill(node: Node, numbers: range) -> None:
    """A MiB each, not faster than what leaves for it can be asked about."""
    for number in numbers:
        node.put(blocks_of([number], size=MIB))
        time.sleep(0.01)


def shared_by(one: Node, two: Node, numbers: range) -> list[bytes]:
    """Keys of blocks of a MiB that both have, and both know that the other has."""
    blocks = blocks_of(numbers, size=MIB)
    keys = list(blocks)
    one.put(blocks)
    eventually(lambda: len(two.client.match(two.namespace(), keys)) == len(keys))
    assert two.get(keys, 15.0) == list(blocks.values())
    eventually(lambda: one.peers().replicas == len(keys) and two.peers().replicas == len(keys))
    return keys


def test_under_pressure_on_both_nodes_replicas_leave_and_one_copy_of_each_stays(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    keys = shared_by(one, two, range(1, 9))
    fill(one, range(100, 120))
    fill(two, range(200, 220))
    eventually(lambda: (one.peers().spares, two.peers().spares) == (4, 4))
    fill(one, range(120, 127))
    fill(two, range(220, 227))
    left = [one.client.stat(one.namespace(), keys), two.client.stat(two.namespace(), keys)]
    assert all(first is not None or second is not None for first, second in zip(*left, strict=True))
    assert one.counters().get("replicas_dropped", 0) + two.counters().get("replicas_dropped", 0) > 0
    own = [n.to_bytes(16, "big") for n in (*range(100, 127), *range(200, 227))]
    assert here(one, own[:27]) == 27 and here(two, own[27:]) == 27, "what no other node has stays longer"


def test_with_the_directory_stopped_eviction_goes_on_without_asking(
    nodes: ClusterNodes, server: DirectoryServer
) -> None:
    one, two = nodes.start("n1", "n2")
    keys = shared_by(one, two, range(1, 21))
    server.freeze()
    try:
        fill(two, range(200, 230))  # every put finds room
        eventually(lambda: two.peers().directory_state.startswith("down since"))
        fill(two, range(230, 250))
        assert here(two, [n.to_bytes(16, "big") for n in range(230, 250)]) == 20
        assert here(two, keys) == 0, "by the order of their use, as on a node that is alone"
    finally:
        server.thaw()
    assert here(one, keys) == 20


@pytest.mark.slow
def test_a_spare_copy_that_is_read_is_no_spare_any_more(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    keys = shared_by(one, two, range(1, 5))
    fill(two, range(200, 220))
    eventually(lambda: two.peers().spares == 4)
    assert None not in two.get(keys, 5.0)
    eventually(lambda: two.peers().spares < 4)


@pytest.mark.slow
def test_a_node_that_has_nothing_but_copies_of_others_takes_new_blocks_at_once(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    keys = shared_by(one, two, range(1, 21))
    more = blocks_of(range(50, 58), size=MIB)
    one.put(more)
    eventually(lambda: len(two.client.match(two.namespace(), list(more))) == 8)
    assert two.get(list(more), 10.0) == list(more.values())
    two.put(blocks_of(range(200, 216), size=MIB))
    assert here(two, [n.to_bytes(16, "big") for n in range(200, 216)]) == 16
    assert here(one, keys) == 20


@pytest.mark.slow
def test_of_two_nodes_that_computed_the_same_blocks_the_later_one_knows_of_the_others_copies(
    nodes: ClusterNodes,
) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of(range(1, 5), size=MIB)
    keys = list(blocks)
    one.put(blocks)
    eventually(lambda: len(two.client.match(two.namespace(), keys)) == len(keys))
    two.put(blocks)
    eventually(lambda: two.peers().replicas == 4)
    fill(two, range(200, 220))
    eventually(lambda: two.peers().spares == 4)
    fill(two, range(220, 230))
    assert here(two, keys) < 4 and here(one, keys) == 4


# --- who decides ---


def test_of_two_nodes_that_would_forget_the_same_blocks_at_once_one_keeps_each(server: DirectoryServer) -> None:
    asyncio.run(_forget_at_once(server.url))


async def _forget_at_once(url: str) -> None:
    keys = [n.to_bytes(16, "big") for n in range(1, 601)]
    directories = [_directory(url, name) for name in ("n1", "n2", "n3")]
    try:
        for directory in directories:
            await _until(lambda directory=directory: directory.state == "ok")  # type: ignore[misc]
            directory.announce(NS, keys)
        for directory in directories:
            await _until(lambda directory=directory: directory.waiting == 0)  # type: ignore[misc]
        for directory in directories:
            await _until_known(directory, keys, others=2)
        answers = await asyncio.gather(*(one.release(NS, keys, time.monotonic() + 5.0) for one in directories))
        kept = Counter(
            key for answer in answers for key, said in zip(keys, answer, strict=True) if said is Release.LAST
        )
        assert set(kept) == set(keys) and set(kept.values()) == {1}, "one of the three keeps each, and only one"
        again = await asyncio.gather(*(one.release(NS, keys, time.monotonic() + 5.0) for one in directories))
        assert again == answers, "it may be asked again"
    finally:
        for directory in directories:
            await directory.close()


def test_a_copy_at_a_node_that_is_dead_is_none_to_rely_on(server: DirectoryServer) -> None:
    asyncio.run(_rely_on_the_dead(server.url))


async def _rely_on_the_dead(url: str) -> None:
    key = bytes(15) + b"\1"
    one, two = _directory(url, "n1"), _directory(url, "n2")
    try:
        for directory in (one, two):
            await _until(lambda directory=directory: directory.state == "ok")  # type: ignore[misc]
            directory.announce(NS, [key])
        await _until_known(one, [key], others=1)
        await two.close()
        await _until_known(one, [key], others=0)
        assert await one.release(NS, [key], time.monotonic() + 5.0) == [Release.LAST]
    finally:
        await one.close()


def _directory(url: str, name: str) -> ValkeyDirectory:
    record = NodeRecord(name, new_incarnation(name), "127.0.0.1:1")
    return open_valkey_directory(ClusterSection(directory=url, ttl=2.0), lambda: record, lambda: iter(()), Counter())


async def _until(holds: object, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come about in time"
        await asyncio.sleep(0.02)


async def _until_known(directory: ValkeyDirectory, keys: list[bytes], others: int) -> None:
    deadline = time.monotonic() + 15.0
    while any(len(found) != others for found in await directory.lookup(NS, keys, time.monotonic() + 1.0)):
        assert time.monotonic() < deadline, "the directory did not learn of it"
        await asyncio.sleep(0.05)
