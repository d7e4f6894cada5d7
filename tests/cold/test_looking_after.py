"""Who looks after which packs: restarts, crashes, nodes that are dead; and a bucket that is another daemon's S3 door."""

import urllib.request
from pathlib import Path

import pytest
from bucket_nodes import Nodes, known, spilled
from bucket_server import BUCKET, BucketServer
from cluster_nodes import ClusterNodes, blocks_of, eventually
from daemon_process import DaemonProcess

from mooncask.client.wire import Tier

pytest.importorskip("obstore", reason="the package obstore (extra cold) is not installed")
pytestmark = pytest.mark.slow


def test_a_node_that_starts_anew_looks_after_what_its_earlier_runs_put_there(
    nodes: Nodes, bucket: BucketServer
) -> None:
    one = nodes.start("n1", grace="300ms")
    blocks = blocks_of(range(1, 9))
    one.put(blocks)
    spilled(one, 8)
    [pack] = bucket.names()
    orphan = pack[:-8] + "0000ffff"
    bucket.write(orphan, b"what a crash between a pack and its index object leaves")
    one.restart()
    keys = list(blocks)
    eventually(lambda: bucket.names() == [pack], 30.0)
    assert one.counters().get("cold_spilled_blocks", 0) == 0
    one.client.evict(one.namespace(), keys)
    eventually(lambda: bucket.names() == [], 30.0)


def test_index_objects_become_few(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1", grace="2s", pack="64 KiB", queue_max="1 MiB")
    blocks = blocks_of(range(1, 41), size=60 << 10)
    one.put(blocks)
    spilled(one, 40)
    eventually(lambda: len(bucket.names("kv/v1/index/")) < 20)
    assert len(bucket.names()) == 40
    two = nodes.start("n2")
    known(two, list(blocks))
    assert two.get(list(blocks), 10.0) == list(blocks.values())


def test_the_packs_of_a_dead_node_are_claimed_by_one_other_and_given_back_when_it_returns(
    nodes: Nodes, bucket: BucketServer
) -> None:
    one = nodes.start("n1", dead_after="4s", grace="500ms")
    blocks = blocks_of(range(1, 5))
    one.put(blocks)
    spilled(one, 4)
    one.close_client()
    one.daemon.stop()
    two, three = (nodes.start(name, dead_after="4s", grace="500ms") for name in ("n2", "n3"))
    eventually(lambda: len(bucket.names("kv/v1/claims/")) == 1, 30.0)
    known(two, list(blocks))
    assert two.get(list(blocks)) == list(blocks.values()), "what a dead node has left is of use"

    def owned(node: object) -> int:
        with urllib.request.urlopen(f"http://{node.daemon.http_address}/-/metrics", timeout=20) as answer:
            text = answer.read().decode()
        [line] = [line for line in text.splitlines() if line.startswith("mooncask_cold_own_packs ")]
        return int(float(line.split()[1]))

    eventually(lambda: sorted([owned(two), owned(three)]) == [0, 1], 30.0)
    one.daemon.run()
    eventually(lambda: bucket.names("kv/v1/claims/") == [], 30.0)
    eventually(lambda: (owned(one), owned(two), owned(three)) == (1, 0, 0), 30.0)


def test_of_two_nodes_that_have_the_same_block_only_one_puts_it_there(tmp_path: Path, bucket: BucketServer) -> None:
    with ClusterNodes(tmp_path, bucket.settings(pack_wait="500ms", refresh="10s", age_min="2s")) as cluster:
        one, two = cluster.start("n1", "n2")
        blocks = blocks_of(range(1, 9))
        one.put(blocks)
        assert two.get(list(blocks)) == list(blocks.values())

        def sums(name: str) -> int:
            return sum(node.counters().get(name, 0) for node in (one, two))

        eventually(lambda: sums("cold_spilled_blocks") >= 8)
        eventually(lambda: sums("cold_spills_spared") >= 8)
        assert sums("cold_spilled_blocks") == 8


def test_the_bucket_may_be_another_daemons_s3_door(tmp_path: Path) -> None:
    (tmp_path / "door").mkdir()
    door = DaemonProcess.start(tmp_path / "door", {"dram.capacity": "64 MiB", "nvme.capacity": "512 MiB"})
    try:

        class Door(BucketServer):
            def __init__(self) -> None:
                self.endpoint = f"http://{door.http_address}"

        nodes = Nodes(tmp_path, Door())
        unsigned = {"access_key": "", "secret": "", "grace": "1s"}
        try:
            one = nodes.start("n1", **unsigned)
            blocks = blocks_of(range(1, 41))
            keys = list(blocks)
            one.put(blocks)
            eventually(lambda: "there is no such bucket" in one.client.status().tiers[-1].state)
            request = urllib.request.Request(f"http://{door.http_address}/{BUCKET}", method="PUT")
            urllib.request.urlopen(request, timeout=20).close()
            spilled(one, 40)
            two = nodes.start("n2", **unsigned)
            known(two, keys)
            with two.client.acquire(two.namespace(), keys, 10.0) as held:
                assert [bytes(block.memory) for block in held] == list(blocks.values())
                assert {block.tier for block in held} == {Tier.COLD}
            one.client.evict(one.namespace(), keys)
            eventually(lambda: one.counters().get("cold_packs_deleted", 0) >= 3)
        finally:
            nodes.close()
    finally:
        door.close()
