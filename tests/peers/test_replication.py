"""Blocks that go to other nodes ahead of need: asked for by name, since they are hot there, or into memory before they are read."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import FAMILY, ClusterNodes, Node, blocks_of, eventually
from command_line import CommandLine
from directory_server import DirectoryServer

from mooncask.client.ahead_calls import Warming
from mooncask.client.aio import AsyncLocalClient
from mooncask.client.control import Peers
from mooncask.client.control_client import ControlClient
from mooncask.client.hashing import chain
from mooncask.client.wire import Tier
from mooncask.errors import BadRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterNodes]:
    with ClusterNodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def nodes_of_directory(tmp_path: Path) -> Iterator[ClusterNodes]:
    with DirectoryServer(tmp_path) as server, ClusterNodes(tmp_path, directory=server.url) as nodes:
        yield nodes


def tiers_at(node: Node, name: str, keys: list[bytes]) -> list[list[str]]:
    """Of each block that is there."""
    with ControlClient(node.daemon.socket_path) as control:
        nodes = control.tips(name, limit=1000).nodes
        found = {bytes.fromhex(block.key): block.tiers for block in nodes}
    return [found.get(key, []) for key in keys]


def knows(node: Node, *names: str) -> None:
    eventually(lambda: {peer.name for peer in node.peers().peers if peer.state in ("linked", "known")} >= set(names))


# --- push ---


def test_blocks_are_pushed_to_a_node_that_never_saw_their_namespace(nodes_of_directory: ClusterNodes) -> None:
    one, two = nodes_of_directory.start("n1", "n2")
    blocks = blocks_of(range(1, 33))
    keys = list(blocks)
    one.put(blocks)
    knows(one, "n2")
    assert two.client.status().namespaces == []
    name = one.namespace().name
    done = one.client.replicate(one.namespace(), [*keys, bytes(16)], "n2", 20.0)
    assert (done.node, done.copied, done.missing, done.refused) == ("n2", 32, 1, 0), done.reason
    assert done.copied_bytes == 32 * 65536
    with ControlClient(one.daemon.socket_path) as control:
        again = control.replicate(name, "n2", keys=keys)
        assert (again.there, again.copied) == (32, 0)
    [there] = two.client.status().namespaces
    assert (there.name, there.family, there.blocks) == (name, FAMILY, 32)
    one.close_client()
    one.daemon.kill()
    assert two.get(keys) == list(blocks.values()), "it needs nobody else"


def test_a_node_that_is_not_known_and_one_that_is_alone_say_so(tmp_path: Path, nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    one.put(blocks_of([1]))
    two.get([bytes(16)])
    with ControlClient(two.daemon.socket_path) as control, pytest.raises(BadRequest, match=r'"n9".*known are: n1'):
        control.replicate(two.namespace().name, "n9", keys=[bytes(16)])
    with ClusterNodes(tmp_path, settings={"cluster.listen": "", "cluster.secret": ""}) as others:
        [alone] = others.start("alone", peers=[])
        with ControlClient(alone.daemon.socket_path) as control, pytest.raises(BadRequest, match="alone"):
            control.replicate(alone.namespace().name, "n1", keys=[bytes(16)])


@pytest.mark.slow
def test_a_push_that_finds_no_room_is_refused_with_the_reason(nodes_of_directory: ClusterNodes) -> None:
    one, two = nodes_of_directory.start("n1", "n2")
    held = blocks_of(range(100, 111), size=2 << 20)
    two.put(held)
    blocks = blocks_of(range(1, 4), size=2 << 20)
    one.put(blocks)
    knows(one, "n2")
    with two.client.acquire(two.namespace(), list(held), 5.0), ControlClient(one.daemon.socket_path) as control:
        done = control.replicate(one.namespace().name, "n2", keys=list(blocks), deadline_seconds=3.0)
    assert done.refused == 3 and "DRAM" in done.reason
    assert one.counters()["replications_refused"] == 3
    assert all(tier.reserved_bytes == 0 for tier in two.client.status().tiers)


@pytest.mark.slow
def test_a_prompts_blocks_are_pushed_and_warmed_by_command(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    tokens = ",".join(map(str, range(48)))
    keys = chain(one.namespace().root(), range(48), 16)
    one.put(dict(zip(keys, blocks_of(range(1, 4)).values(), strict=True)))
    name = one.namespace().name
    assert two.get(keys[:1], 10.0) != [None]  # they have met
    command = CommandLine(two.daemon.socket_path)
    said = command.run("warm", name, "--tokens", tokens)
    assert "2 blocks coming, 1 in memory already" in said
    eventually(lambda: two.counters().get("blocks_warmed") == 2)
    said = command.run("replicate", name, "--to", "n1", "--tokens", tokens)
    assert "0 blocks copied to n1 (0 B), 3 there already" in said
    assert "2 blocks coming" not in command.run("warm", name, keys[2].hex(), "--chain")
    shown = command.run("peers")
    assert "3 blocks that others have too" in shown and "pushed" in shown


# --- warm ---


def test_what_is_only_on_nvme_is_warmed_into_memory_and_stays_there(nodes: ClusterNodes) -> None:
    [one] = nodes.start("n1")
    blocks = blocks_of(range(1, 17))
    keys = list(blocks)
    one.put(blocks)
    eventually(lambda: all(stat is not None and stat.durable for stat in one.client.stat(one.namespace(), keys)))
    one.restart()
    name = one.namespace().name
    assert tiers_at(one, name, keys) == [["nvme"]] * 16
    begun = asyncio.run(_warm(one, [*keys, bytes(16)]))
    assert (begun.coming, begun.in_memory, begun.left_out, begun.missing) == (16, 0, 0, 1)
    eventually(lambda: tiers_at(one, name, keys) == [["dram", "nvme"]] * 16)
    assert one.client.warm(one.namespace(), keys).in_memory == 16
    eventually(lambda: one.counters()["blocks_warmed"] == 16)


async def _warm(node: Node, keys: list[bytes]) -> Warming:
    async with await AsyncLocalClient.connect(node.daemon.socket_path, deadline_seconds=10.0) as client:
        return await client.warm(await client.open_namespace("", FAMILY), keys)


def test_what_another_node_has_is_warmed_here_also_in_a_namespace_that_only_that_one_knows(
    nodes: ClusterNodes,
) -> None:
    [one] = nodes.start("n1")
    blocks = blocks_of(range(1, 17))
    keys = list(blocks)
    one.put(blocks)
    [two] = nodes.start("n2")
    name = one.namespace().name
    with ControlClient(two.daemon.socket_path) as control:
        begun = control.warm(name, keys=keys)
        assert (begun.coming, begun.missing) == (16, 0)
    eventually(lambda: two.counters().get("blocks_warmed") == 16)
    found = two.client.match(two.namespace(), keys)
    assert Tier.PEER not in found.tiers and len(found) == 16
    one.close_client()
    one.daemon.kill()
    assert two.get(keys) == list(blocks.values())


# --- hot spots ---


@pytest.mark.slow
def test_a_chain_that_is_read_often_elsewhere_comes_to_more_nodes_and_to_no_more_than_the_cap(
    nodes_of_directory: ClusterNodes,
) -> None:
    one, two, three, four = nodes_of_directory.start("n1", "n2", "n3", "n4", replicate_after=1, replicas_max=3)
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    for node in (one, two, three, four):
        knows(node, *({"n1", "n2", "n3", "n4"} - {node.name}))
    name = two.namespace().name
    for _ in range(2):
        eventually(lambda: len(two.client.match(two.namespace(), keys)) == len(keys))
        assert two.get(keys, 10.0) == list(blocks.values())
        if not copies([three, four], name, keys):
            two.client.evict(two.namespace(), keys)
    eventually(lambda: one.counters().get("replications_done", 0) >= len(keys))
    assert two.get(keys, 10.0) == list(blocks.values())
    page: Peers = one.peers()
    assert page.hot_blocks >= len(keys) and page.blocks_pushed >= len(keys) and page.replicas == len(keys)
    for _ in range(4):  # still hot: no further copy comes of it
        two.client.evict(two.namespace(), keys)
        assert two.get(keys, 10.0) == list(blocks.values())
    eventually(lambda: one.counters()["hot_blocks"] >= 2 * len(keys))
    assert copies([one, two, three, four], name, keys) == 3 * len(keys)


def copies(nodes: list[Node], name: str, keys: list[bytes]) -> int:
    """How many of these there are, over all nodes. A node that never saw the namespace has none."""
    known = [node for node in nodes if any(found.name == name for found in node.client.status().namespaces)]
    return sum(stat is not None for node in known for stat in node.client.stat(node.namespace(), keys))
