"""Daemons in network namespaces of their own while the network between them is cut, slow or bad, and after it has healed."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_nodes import blocks_of, eventually
from directory_server import DirectoryServer
from network_places import Network
from placed_nodes import PlacedNodes, all_find_all, in_time, nothing_is_held, right_or_missed

SECONDS = 1.5
"""A request's deadline."""
NAMES = ("n1", "n2", "n3")
ANYWHERE = {"nvme.direct": False}
"""The disk does not matter here, and these also run under file systems that refuse O_DIRECT."""
FRESH = {name: blocks_of(range(number * 1000, number * 1000 + 4)) for number, name in enumerate(NAMES, 1)}


@pytest.fixture
def network() -> Iterator[Network]:
    with Network(*NAMES, "directory") as network:
        yield network


@pytest.fixture
def directory(network: Network, tmp_path: Path) -> Iterator[DirectoryServer]:
    with DirectoryServer(tmp_path, place=network["directory"]) as server:
        yield server


@pytest.fixture
def listed(network: Network, tmp_path: Path) -> Iterator[PlacedNodes]:
    """Nodes that know each other by a list."""
    with PlacedNodes(tmp_path, network, ANYWHERE) as nodes:
        yield nodes


@pytest.fixture
def nodes(network: Network, tmp_path: Path, directory: DirectoryServer) -> Iterator[PlacedNodes]:
    with PlacedNodes(tmp_path, network, ANYWHERE, directory.url) as nodes:
        yield nodes


def known(nodes: PlacedNodes, reader: int, keys: list[bytes]) -> None:
    node = nodes.nodes[reader]
    eventually(lambda: len(node.client.match(node.namespace(), keys).tiers) == len(keys))


@pytest.mark.parametrize("how", [pytest.param("listed", marks=pytest.mark.slow), "nodes"])
def test_a_cut_between_two_of_three_costs_misses_in_time_and_heals(
    how: str, request: pytest.FixtureRequest, network: Network
) -> None:
    cluster: PlacedNodes = request.getfixturevalue(how)
    one, two, three = cluster.start(*NAMES, ttl="2s")
    blocks = blocks_of(range(1, 17))
    keys = list(blocks)
    one.put(blocks)
    known(cluster, 2, keys)
    assert three.get(keys[:8], 10.0) == list(blocks.values())[:8]
    known(cluster, 1, keys)
    network.cut("n1", "n2")
    first = right_or_missed(two, {key: blocks[key] for key in keys[8:]}, SECONDS)
    assert first == [None] * 8, "only the other side of the cut has them"
    for _ in range(3):
        right_or_missed(two, blocks, SECONDS)
    eventually(lambda: two.get(keys[:8], SECONDS) == list(blocks.values())[:8])  # the third node has these
    with in_time(SECONDS):
        assert one.get(keys, SECONDS) == list(blocks.values())
    assert three.get(keys, 10.0) == list(blocks.values())
    network.heal("n1", "n2")
    eventually(lambda: two.get(keys, SECONDS) == list(blocks.values()), 40.0)
    all_find_all(cluster.nodes, FRESH)
    nothing_is_held(cluster.nodes)


@pytest.mark.slow
def test_a_cut_in_mid_transfer_is_a_miss_in_time_and_what_was_reserved_is_free_again(
    nodes: PlacedNodes, network: Network
) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of(range(1, 9), size=1 << 20)
    one.put(blocks)
    known(nodes, 1, list(blocks))
    network.slow("n1", 4 << 20)
    cutter = threading.Timer(0.4, network.cut, ("n1", "n2"))
    cutter.start()
    found = right_or_missed(two, blocks, SECONDS)
    cutter.join()
    assert None in found, "it was cut too late to hurt"
    right_or_missed(two, blocks, SECONDS)
    nothing_is_held(nodes.nodes, 40.0)
    network.mend("n1")
    network.heal("n1", "n2")
    eventually(lambda: two.get(list(blocks), 3.0) == list(blocks.values()), 40.0)
    nothing_is_held(nodes.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "unplugged"])
def test_a_node_that_the_directory_does_not_reach_serves_itself_and_is_told_of_again(
    how: str, nodes: PlacedNodes, network: Network
) -> None:
    one, two, three = nodes.start(*NAMES, ttl="2s")
    blocks, alone = blocks_of(range(1, 9)), blocks_of(range(20, 28))
    one.put(blocks)
    known(nodes, 1, list(blocks))
    known(nodes, 2, list(blocks))
    cut: Callable[[], None] = (
        (lambda: network.cut("n1", "directory")) if how == "cut" else lambda: network.pull_plug("n1")
    )
    heal = (lambda: network.heal("n1", "directory")) if how == "cut" else lambda: network.put_plug("n1")
    cut()
    for _ in range(2):
        assert right_or_missed(one, blocks_of([99]), SECONDS) == [None]
    eventually(lambda: one.peers().directory_state.startswith("down since"))
    with in_time(0.3):
        assert one.get([bytes(16)], SECONDS) == [None], "nobody waits for a directory that is down"
    one.put(alone)
    assert right_or_missed(one, {**blocks, **alone}, SECONDS) == [*blocks.values(), *alone.values()]
    two.put(FRESH["n2"])
    eventually(lambda: three.get(list(FRESH["n2"]), SECONDS) == list(FRESH["n2"].values()))
    assert right_or_missed(two, alone, SECONDS) == [None] * 8
    heal()
    eventually(lambda: one.peers().directory_state == "ok")
    eventually(lambda: two.get(list(alone), SECONDS) == list(alone.values()), 40.0)
    all_find_all(nodes.nodes, FRESH)
    nothing_is_held(nodes.nodes)


def _served_beside_a_bad_one(nodes: PlacedNodes, worsen: Callable[[], None], mend: Callable[[], None]) -> None:
    """n2 wants much of n1, whose network is bad, and a little of n3 again and again."""
    one, two, three = nodes.start(*NAMES, connections=2)
    much, little = blocks_of(range(1, 17), size=1 << 20), blocks_of(range(100, 140))
    one.put(much)
    three.put(little)
    for blocks in (much, little):
        known(nodes, 1, list(blocks))
    worsen()
    with ThreadPoolExecutor(1) as pool:
        bad = pool.submit(right_or_missed, two, much, 3.0)
        number = 0
        while not bad.done():
            some = dict(list(little.items())[number % 40 :][:1])
            number += 1
            with in_time(SECONDS):
                found = two.get(list(some), SECONDS)
            assert found == list(some.values()), "a peer that is not slow gives its blocks"
            time.sleep(0.05)
        bad.result()
    mend()
    eventually(lambda: two.get(list(much), 5.0) == list(much.values()), 40.0)
    nothing_is_held(nodes.nodes)


@pytest.mark.slow
def test_a_peer_behind_a_slow_link_delays_nobody_else(nodes: PlacedNodes, network: Network) -> None:
    _served_beside_a_bad_one(nodes, lambda: network.slow("n1", 1 << 20), lambda: network.mend("n1"))


@pytest.mark.slow
def test_a_peer_behind_a_link_with_delay_and_loss_delays_nobody_else(nodes: PlacedNodes, network: Network) -> None:
    network.worsen("n1", 1, 0.0)  # skips before anything is started
    _served_beside_a_bad_one(nodes, lambda: network.worsen("n1", 100, 2.0), lambda: network.mend("n1"))
