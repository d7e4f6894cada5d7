"""Daemons and a bucket of SeaweedFS: what leaves a node comes back from there byte for byte, or is a miss in time."""

import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from bucket_nodes import Nodes, known, spilled
from bucket_server import BucketServer
from cluster_nodes import blocks_of, eventually
from daemon_process import Setting

from mooncask.client.control_client import ControlClient
from mooncask.client.wire import Tier

pytest.importorskip("obstore", reason="the package obstore (extra cold) is not installed")

SPARE_SECONDS = 0.1
"""Beyond its deadline an acquire may take so long; twice that on a machine that does other things too."""


def test_what_was_put_on_one_node_is_read_on_a_fresh_one_from_the_bucket_alone(nodes: Nodes) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 41))
    one.put(blocks)
    spilled(one, 40)
    one.close_client()
    one.daemon.kill()
    two = nodes.start("n2")
    keys = list(blocks)
    known(two, keys)
    found = two.client.match(two.namespace(), keys)
    assert set(found.tiers) == {Tier.COLD} and found.seconds == sorted(found.seconds) and found.seconds[0] > 0
    with two.client.acquire(two.namespace(), keys, 10.0) as held:
        assert [bytes(block.memory) for block in held] == list(blocks.values())
        assert {block.tier for block in held} == {Tier.COLD}
    counters = two.counters()
    assert counters["cold_blocks_read"] == 40 and counters["cold_reads"] < 10, "neighbours come with one read"
    assert counters.get("cold_spilled_blocks", 0) == 0, "what is in the bucket is not put there again"
    assert {Tier(tier.tier).name for tier in two.client.status().tiers} >= {"DRAM", "NVME", "COLD"}


def text_of(control: ControlClient, name: str, key: bytes) -> str:
    missed = control.why(name, keys=[key]).first_miss
    assert missed is not None
    return missed.text


def test_a_block_is_got_by_name_from_a_fresh_node_that_knows_the_namespace_from_the_bucket_alone(nodes: Nodes) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 3))
    one.put(blocks)
    spilled(one, 2)
    name, (key, payload) = one.namespace().name, next(iter(blocks.items()))
    one.close_client()
    one.daemon.kill()
    two = nodes.start("n2")
    url = f"http://{two.daemon.http_address}"
    eventually(lambda: two.client.status().tiers[-1].blocks == 2)
    with urllib.request.urlopen(f"{url}/{name}/{key.hex()}") as answer:
        assert answer.read() == payload
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{url}/kv-nobody-knows/{key.hex()}")
    with ControlClient(two.daemon.socket_path) as control:
        assert "in the bucket since" in text_of(control, name, list(blocks)[1])
        assert "not in the bucket" in text_of(control, name, bytes(16))


SMALL: dict[str, dict[str, Setting]] = {
    "nvme": {"nvme.capacity": "20 MiB", "nvme.segment": "4 MiB", "dram.capacity": "4 MiB"},
    "dram": {"nvme.path": "", "dram.capacity": "12 MiB"},
}


@pytest.mark.slow
@pytest.mark.parametrize("last", ["nvme", "dram"])
def test_blocks_that_had_to_leave_the_last_tier_come_back_from_the_bucket(nodes: Nodes, last: str) -> None:
    """Most of what is put leaves again, and what is ahead of the victims was spilled."""
    one = nodes.start("n1", SMALL[last], spill="leaving", spill_at=0.3)
    blocks = blocks_of(range(1, 401))
    keys = list(blocks)
    for first in range(0, len(keys), 20):
        one.put({key: blocks[key] for key in keys[first : first + 20]})
        spilled(one, max(0, first - 40))
    counters = one.counters()
    assert counters[f"forgotten_{last}"] > 100
    assert counters.get("cold_blocks_left_unspilled", 0) <= counters[f"forgotten_{last}"] - 100
    local = sum(stat is not None for stat in one.client.stat(one.namespace(), keys))
    assert local < 300
    assert one.get(keys[:20], 10.0) == [blocks[key] for key in keys[:20]]
    assert one.counters()["cold_blocks_read"] == 20
    for first in range(20, len(keys), 20):  # a few at a time: memory has no room for all
        for key, found in zip(keys[first : first + 20], one.get(keys[first : first + 20], 5.0), strict=True):
            assert found in (None, blocks[key])


@pytest.mark.slow
def test_eviction_waits_for_no_bucket(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1", SMALL["nvme"], spill="leaving", spill_at=0.3)
    eventually(lambda: one.client.status().tiers[-1].state == "ok")
    bucket.freeze()
    try:
        blocks = blocks_of(range(1, 401))
        keys = list(blocks)
        began = time.monotonic()
        for first in range(0, len(keys), 20):
            one.put({key: blocks[key] for key in keys[first : first + 20]})
        assert time.monotonic() - began < 15.0, "as without a bucket: of a slow disk, and no deadline of the bucket's"
        assert one.counters()["forgotten_nvme"] > 100
        assert one.get(keys[-5:]) == [blocks[key] for key in keys[-5:]]
    finally:
        bucket.thaw()
    spilled(one, 50)


def test_a_bucket_that_is_gone_or_frozen_is_a_miss_in_time_and_comes_back(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    spilled(one, 8)
    two = nodes.start("n2", refresh="10s", deadline="300ms")
    known(two, keys)
    local = blocks_of([100])
    two.put(local)
    bucket.freeze()
    try:
        for _ in range(4):
            began = time.monotonic()
            assert two.get(keys, 2.0) == [None] * 8
            assert time.monotonic() - began < 0.3 + 2 * SPARE_SECONDS, "cold.deadline, and not the caller's"
        began = time.monotonic()
        assert two.get(keys[:1], 0.2) == [None]
        assert time.monotonic() - began < 0.2 + 2 * SPARE_SECONDS
        assert two.get(list(local)) == list(local.values()), "nothing else is held up"
        [cold] = [tier for tier in two.client.status().tiers if tier.tier == Tier.COLD]
        assert cold.state.startswith("down since"), cold.state
        assert len(two.client.match(two.namespace(), keys).tiers) == 0, "what can't be read is not promised"
    finally:
        bucket.thaw()
    eventually(lambda: two.get(keys, 2.0) == list(blocks.values()))


@pytest.mark.slow
def test_a_bucket_that_was_killed_is_a_miss_in_time(tmp_path: Path) -> None:
    with BucketServer(tmp_path) as bucket:
        nodes = Nodes(tmp_path, bucket)
        try:
            one = nodes.start("n1")
            blocks = blocks_of(range(1, 5))
            keys = list(blocks)
            one.put(blocks)
            spilled(one, 4)
            two = nodes.start("n2", refresh="60s")
            known(two, keys)
            bucket.kill()
            for _ in range(5):
                began = time.monotonic()
                assert two.get(keys, 1.0) == [None] * 4
                assert time.monotonic() - began < 1.0 + 2 * SPARE_SECONDS
            three = nodes.start("n3")
            three.put(blocks)
            assert three.get(keys) == list(blocks.values()), "a node starts and works without its bucket"
        finally:
            nodes.close()


@pytest.mark.slow
def test_a_damaged_pack_gives_misses_and_never_wrong_bytes(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 13))
    one.put(blocks)
    spilled(one, 12)
    one.daemon.freeze()  # its packs are damaged without its help
    for name in bucket.names():
        data = bytearray(bucket.read(name))
        for place in range(40_000, len(data), 65_536):
            data[place] ^= 1
        bucket.write(name, bytes(data))
    two = nodes.start("n2")
    keys = list(blocks)
    known(two, keys)
    assert two.get(keys) == [None] * 12
    assert two.counters()["cold_blocks_wrong"] == 12
    assert "not those of its checksum" in two.daemon.log()
    one.daemon.thaw()


@pytest.mark.slow
def test_two_nodes_with_the_same_blocks_put_each_there_once(nodes: Nodes) -> None:
    one, two = nodes.start("n1"), nodes.start("n2")
    blocks = blocks_of(range(1, 33))
    one.put(blocks)
    spilled(one, 32)
    known(two, list(blocks))
    two.put(blocks)
    more = blocks_of(range(100, 116))
    two.put(more)
    spilled(two, 16)
    assert (one.counters()["cold_spilled_blocks"], two.counters()["cold_spilled_blocks"]) == (32, 16)


@pytest.mark.slow
def test_what_was_deleted_by_name_is_collected_after_the_grace_and_not_found_meanwhile(
    nodes: Nodes, bucket: BucketServer
) -> None:
    one = nodes.start("n1", grace="1s")
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    spilled(one, 8)
    two = nodes.start("n2")
    known(two, keys)
    before = bucket.names()
    assert one.client.evict(one.namespace(), keys) == 8
    assert one.get(keys, 2.0) == [None] * 8
    eventually(lambda: one.counters().get("cold_packs_dead", 0) == len(before))
    assert bucket.names() == before, "others may be about to read it"
    eventually(lambda: bucket.names() == [])
    eventually(lambda: len(two.client.match(two.namespace(), keys).tiers) == 0)
    assert bucket.names("kv/v1/index/") == []


@pytest.mark.slow
def test_a_pack_that_is_gone_is_a_miss(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 5))
    one.put(blocks)
    spilled(one, 4)
    two = nodes.start("n2", refresh="60s")
    known(two, list(blocks))
    for name in bucket.names():
        bucket.client().delete_object(Bucket="cold", Key=name)
    assert two.get(list(blocks)) == [None] * 4
    assert two.counters()["cold_packs_gone"] >= 1


@pytest.mark.slow
def test_with_a_key_nothing_in_the_bucket_can_be_read_and_another_key_misses_and_says_so(
    nodes: Nodes, bucket: BucketServer, tmp_path: Path
) -> None:
    pytest.importorskip("cryptography", reason="the package cryptography (extra cold) is not installed")
    right, wrong = tmp_path / "key", tmp_path / "other"
    for file, digit in ((right, "ab"), (wrong, "cd")):
        file.write_text(digit * 32)
        file.chmod(0o600)
    one = nodes.start("n1", encryption_key_file=str(right))
    blocks = blocks_of(range(1, 9))
    keys = list(blocks)
    one.put(blocks)
    spilled(one, 8)
    everything = b"".join(bucket.read(name) for name in bucket.names("kv/v1/packs/") + bucket.names("kv/v1/index/"))
    for readable in (*keys, b"block_tokens", *(payload[:64] for payload in blocks.values())):
        assert readable not in everything
    two, three = nodes.start("n2", encryption_key_file=str(right)), nodes.start("n3", encryption_key_file=str(wrong))
    known(two, keys)
    assert two.get(keys) == list(blocks.values())
    eventually(lambda: three.counters().get("cold_indexes_unreadable", 0) >= 1)
    assert three.get(keys) == [None] * 8
    [cold] = [tier for tier in three.client.status().tiers if tier.tier == Tier.COLD]
    assert "encrypted with key" in cold.state


@pytest.mark.slow
def test_many_readers_of_one_block_cause_one_read(nodes: Nodes) -> None:
    one = nodes.start("n1")
    blocks = blocks_of([7], size=768 << 10)
    one.put(blocks)
    spilled(one, 1)
    two = nodes.start("n2")
    [(key, payload)] = blocks.items()
    known(two, [key])
    right: list[bool] = []
    ready = threading.Barrier(16, timeout=30.0)

    def read() -> None:
        from cluster_nodes import FAMILY

        from mooncask.client.local import LocalClient

        with LocalClient.connect(two.daemon.socket_path, deadline_seconds=20.0) as client:
            namespace = client.open_namespace("", FAMILY)
            ready.wait()
            with client.acquire(namespace, [key], 10.0) as [block]:
                right.append(block is not None and bytes(block.memory) == payload)

    readers = [threading.Thread(target=read, daemon=True) for _ in range(16)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60.0)
    assert right == [True] * 16
    assert two.counters()["cold_reads"] == 1


@pytest.mark.slow
def test_what_is_deleted_while_it_is_on_its_way_into_the_bucket_does_not_come_back(nodes: Nodes) -> None:
    one = nodes.start("n1", pack_wait="20ms")
    blocks = blocks_of(range(1, 81), 4096)
    for number, (key, payload) in enumerate(blocks.items()):
        one.put({key: payload})
        time.sleep(number % 10 * 0.01)  # so that it is met in every state
        one.client.evict(one.namespace(), [key])
    one.put(blocks_of([1000]))
    known_blocks = one.counters().get("cold_spilled_blocks", 0)
    spilled(one, known_blocks + 1)
    assert known_blocks > 0, "some were there before they were deleted"
    assert one.get(list(blocks)) == [None] * len(blocks)
