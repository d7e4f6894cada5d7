"""Daemons as processes of their own that take blocks from each other, by a static list of nodes or by a directory."""

import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import FAMILY, ClusterNodes, Node, blocks_of, eventually
from directory_server import DirectoryServer

from mooncask.client.control_client import ControlClient
from mooncask.client.local import LocalClient
from mooncask.client.wire import Tier

HANG_SECONDS = 2.0
"""What an acquire may take at most beside its deadline, on a machine that does other things too."""


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterNodes]:
    with ClusterNodes(tmp_path) as nodes:
        yield nodes


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[DirectoryServer]:
    with DirectoryServer(tmp_path) as server:
        yield server


@pytest.fixture
def nodes_of_directory(tmp_path: Path, directory: DirectoryServer) -> Iterator[ClusterNodes]:
    with ClusterNodes(tmp_path, directory=directory.url) as nodes:
        yield nodes


def far(node: Node, keys: list[bytes], blocks: int) -> None:
    """Until the node knows of so many of these, here or elsewhere."""
    eventually(lambda: len(node.client.match(node.namespace(), keys).tiers) == blocks)


def test_what_one_node_was_given_is_read_at_another_and_stays_there(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of(range(1, 33))
    one.put(blocks)
    keys = list(blocks)
    found = two.client.match(two.namespace(), keys)
    assert [Tier.PEER] * len(keys) == list(found.tiers) and found.seconds == sorted(found.seconds)
    with two.client.acquire(two.namespace(), keys, 10.0) as held:
        assert [bytes(block.memory) for block in held] == list(blocks.values())
        assert {block.tier for block in held} == {Tier.PEER}
    assert two.counters()["peer_blocks_pulled"] == 32
    assert [stat.parent for stat in two.client.stat(two.namespace(), keys)] == [b""] * 32
    [peer] = two.peers().peers
    assert (peer.name, peer.state, peer.blocks_pulled, peer.failures) == ("n1", "linked", 32, 0)
    assert peer.bytes_pulled == 32 * 65536 and peer.rate_bytes > 0
    one.close_client()
    one.daemon.kill()
    assert two.get(keys) == list(blocks.values()), "the replica does not need its origin"


def test_a_prefix_goes_on_over_blocks_here_and_elsewhere_and_ends_where_nobody_has_one(nodes: ClusterNodes) -> None:
    one, two, three = nodes.start("n1", "n2", "n3")
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    two.put({key: blocks[key] for key in keys[:2]})
    one.put({key: blocks[key] for key in keys[2:4]})
    two.put({key: blocks[key] for key in keys[4:5]})
    three.put({key: blocks[key] for key in keys[5:6]})
    found = two.client.match(two.namespace(), keys)
    assert list(found.tiers) == [Tier.DRAM] * 2 + [Tier.PEER] * 2 + [Tier.DRAM, Tier.PEER]
    with ControlClient(two.daemon.socket_path) as pages:
        eventually(lambda: pages.overview().hit_rate == pytest.approx(6 / 8))
    assert two.get(keys) == [*list(blocks.values())[:6], None, None]


def test_many_readers_of_one_block_cause_one_transfer(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([7], size=4 << 20)
    one.put(blocks)
    [(key, payload)] = blocks.items()
    two.namespace()
    right: list[bool] = []
    ready = threading.Barrier(50, timeout=30.0)

    def read() -> None:
        with LocalClient.connect(two.daemon.socket_path, deadline_seconds=20.0) as client:
            namespace = client.open_namespace("", FAMILY)
            ready.wait()
            with client.acquire(namespace, [key], 20.0) as [block]:
                right.append(block is not None and bytes(block.memory) == payload)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(50)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60.0)
    assert right == [True] * 50
    [peer] = two.peers().peers
    assert peer.bytes_received == len(payload) and two.counters()["peer_blocks_pulled"] == 1


def test_a_block_of_another_family_or_shard_or_of_nobody_is_a_miss(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([1])
    one.put(blocks)
    began = time.monotonic()
    assert two.get(list(blocks), family={**FAMILY, "dtype": "float16"}) == [None]
    assert two.get([bytes(16)]) == [None]
    assert time.monotonic() - began < HANG_SECONDS
    assert two.counters().get("peer_blocks_pulled", 0) == 0


def test_a_get_over_http_brings_the_block_too(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([3])
    one.put(blocks)
    [(key, payload)] = blocks.items()
    name = two.namespace().name
    with urllib.request.urlopen(f"http://{two.daemon.http_address}/{name}/{key.hex()}", timeout=20) as answer:
        assert answer.read() == payload


def test_head_over_http_says_of_a_block_that_another_node_has_what_get_says(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([3])
    one.put(blocks)
    [(key, payload)] = blocks.items()
    place = f"http://{two.daemon.http_address}/{two.namespace().name}"
    with urllib.request.urlopen(urllib.request.Request(f"{place}/{key.hex()}", method="HEAD"), timeout=20) as answer:
        told = {name: answer.headers[name] for name in ("Content-Length", "ETag", "Last-Modified")}
    with urllib.request.urlopen(f"{place}/{key.hex()}", timeout=20) as answer:
        assert {name: answer.headers[name] for name in told} == told and answer.read() == payload
    for method in ("HEAD", "GET"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(f"{place}/{bytes(16).hex()}", method=method), timeout=20)
        with refused.value as error:
            assert error.code == 404


def test_a_metric_that_is_counted_by_peer_stands_once_in_the_page(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([4])
    one.put(blocks)
    assert two.get(list(blocks), 15.0) == list(blocks.values())
    with urllib.request.urlopen(f"http://{two.daemon.http_address}/-/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    headers = [line.split()[2] for line in lines if line.startswith("# HELP ")]
    assert [name for name in headers if headers.count(name) > 1] == []
    assert 'mooncask_peer_blocks_pulled_total{peer="n1"} 1.0' in lines


@pytest.mark.slow
def test_blocks_that_are_on_the_disk_of_their_holder_come_as_well(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of(range(1, 17))
    one.put(blocks)
    keys = list(blocks)
    eventually(lambda: all(stat.durable for stat in one.client.stat(one.namespace(), keys)))
    one.restart()
    one.namespace()
    assert two.get(keys, 15.0) == list(blocks.values())


@pytest.mark.slow
def test_a_peer_that_hangs_is_a_miss_in_time_and_another_holder_serves(nodes: ClusterNodes) -> None:
    one, two, three = nodes.start("n1", "n2", "n3")
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    assert three.get(keys[:4]) == list(blocks.values())[:4]
    two.get([bytes(16)])  # it has links to both
    one.daemon.freeze()
    try:
        began = time.monotonic()
        found = two.get(keys, 3.0)
        assert time.monotonic() - began < 3.0 + HANG_SECONDS
        assert found[4:] == [None] * 4
        assert all(block is None or block == blocks[key] for key, block in zip(keys, found, strict=True))
        assert two.get(keys[:4], 5.0) == list(blocks.values())[:4], "the one that hangs is left alone for a while"
    finally:
        one.daemon.thaw()
    eventually(lambda: two.get(keys, 5.0) == list(blocks.values()))


def test_a_holder_killed_in_mid_transfer_costs_misses_and_no_wrong_byte(nodes: ClusterNodes) -> None:
    one, two, three = nodes.start("n1", "n2", "n3", connections=1)
    blocks = blocks_of(range(1, 17), size=1 << 20)
    keys = list(blocks)
    one.put(blocks)
    assert three.get(keys[:8], 15.0) == list(blocks.values())[:8]
    two.namespace()
    killer = threading.Timer(0.01, one.daemon.kill)
    one.close_client()
    began = time.monotonic()
    killer.start()
    found = two.get(keys, 8.0)
    killer.join()
    assert time.monotonic() - began < 8.0 + HANG_SECONDS
    assert all(block is None or block == blocks[key] for key, block in zip(keys, found, strict=True))
    assert two.get(keys[:8], 8.0) == list(blocks.values())[:8], "the other holder has these"
    status = two.client.status()
    assert all(tier.reserved_bytes == 0 for tier in status.tiers)


def test_nodes_of_another_secret_say_so_and_miss(nodes: ClusterNodes) -> None:
    [one] = nodes.start("n1")
    [two] = nodes.start("n2", secret="something else entirely")
    blocks = blocks_of([1])
    one.put(blocks)
    began = time.monotonic()
    assert two.get(list(blocks), 3.0) == [None]
    assert time.monotonic() - began < 3.0 + HANG_SECONDS
    [peer] = two.peers().peers
    assert peer.state == "failing" and "secret" in peer.problem


# --- with a directory ---


def test_nodes_find_each_others_blocks_through_the_directory(nodes_of_directory: ClusterNodes) -> None:
    one, two = nodes_of_directory.start("n1", "n2")
    blocks = blocks_of(range(1, 65))
    keys = list(blocks)
    one.put(blocks)
    far(two, keys, 64)
    assert two.get(keys, 10.0) == list(blocks.values())
    [three] = nodes_of_directory.start("n3")
    far(three, keys, 64)
    assert three.get(keys, 10.0) == list(blocks.values())
    page = three.peers()
    assert page.directory == "valkey" and page.directory_state == "ok"
    assert sorted(peer.name for peer in page.peers) == ["n1", "n2"]


@pytest.mark.slow
def test_what_a_node_evicts_is_withdrawn_and_an_old_run_of_it_gives_no_credit(
    nodes_of_directory: ClusterNodes,
) -> None:
    one, two = nodes_of_directory.start("n1", "n2", ttl="2s")
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    far(two, keys, 8)
    assert one.client.evict(one.namespace(), keys[4:]) == 4
    far(two, keys, 4)
    eventually(lambda: all(stat.durable for stat in one.client.stat(one.namespace(), keys[:4])))
    one.close_client()
    one.daemon.kill()
    far(two, keys, 0)  # its record has expired
    one.daemon.run()
    far(two, keys, 4)  # told anew under its new incarnation
    assert two.get(keys[:4], 10.0) == list(blocks.values())[:4]


@pytest.mark.slow
def test_a_directory_that_is_killed_frozen_or_emptied_hurts_nobody_and_nodes_find_together_again(
    nodes_of_directory: ClusterNodes, directory: DirectoryServer
) -> None:
    one, two = nodes_of_directory.start("n1", "n2")
    blocks = blocks_of(range(1, 33))
    keys = list(blocks)
    one.put({key: blocks[key] for key in keys[:16]})
    far(two, keys, 16)
    directory.freeze()
    try:
        began = time.monotonic()
        two.get(keys[:2], 3.0)
        assert two.get(keys[4:6], 3.0) in ([None] * 2, list(blocks.values())[4:6])
        assert time.monotonic() - began < 3.0 + HANG_SECONDS
        eventually(lambda: two.peers().directory_state.startswith("down since"))
    finally:
        directory.thaw()
    far(two, keys, 16)
    directory.kill()
    eventually(lambda: two.peers().directory_state.startswith("down since"))
    one.put({key: blocks[key] for key in keys[16:]})  # nobody hears of it
    assert one.get(keys) == list(blocks.values())
    directory.start()
    far(two, keys, 32)
    directory.flush()
    far(two, keys, 32)
    assert two.get(keys, 10.0) == list(blocks.values())


def test_why_says_which_node_has_what_is_missed_here(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of([1, 2])
    keys = list(blocks)
    one.put({keys[0]: blocks[keys[0]]})
    name = two.namespace().name
    with ControlClient(two.daemon.socket_path) as control:
        first = control.why(name, keys=[keys[0].hex()]).first_miss
        assert first is not None and "n1 has it" in first.text
        first = control.why(name, keys=[keys[1].hex()]).first_miss
        assert first is not None and "no other node has it" in first.text
