"""What others put below the prefix, by mistake or on purpose: misses in time, never wrong bytes, and what is ours is found as before."""

import os
import time

import pytest
from bucket_nodes import Nodes, known, spilled
from bucket_server import BUCKET, BucketServer
from cluster_nodes import blocks_of, eventually

from mooncask.client.wire import Tier
from mooncask.daemon.cold.index_object import IndexBody, PackEntry, column, decode_index, encode_index
from mooncask.daemon.cold.names import INDEX, parse_numbered
from mooncask.daemon.cold.sealing import NO_KEY_ID, Plain

pytestmark = pytest.mark.slow

RUN = bytes(16)
NODE = f"other-{RUN[:8].hex()}"
EPOCH = RUN[8:].hex()
SPARE_SECONDS = 0.5


def lying_pack(number: int, keys: list[bytes], offsets: list[int], lengths: list[int]) -> PackEntry:
    columns = column([0] * len(keys)), column(offsets), column(lengths)
    return PackEntry(RUN, number, NODE, 4 * 10**9, 0, NO_KEY_ID, keys, *columns)


def index_of(bucket: BucketServer) -> IndexBody:
    """What the node has put there."""
    [name] = [name.removeprefix("kv/") for name in bucket.names("kv/v1/index/")][:1]
    named = parse_numbered(name, INDEX)
    assert named is not None
    return decode_index(bucket.read(f"kv/{name}"), Plain(), named.run.incarnation, named.number)


def test_what_is_not_ours_below_the_prefix_is_a_miss_in_time(nodes: Nodes, bucket: BucketServer) -> None:
    one = nodes.start("n1")
    blocks = blocks_of(range(1, 41))
    one.put(blocks)
    spilled(one, 40)
    huge, wrong, absent = ([bytes([first]) * 8 + i.to_bytes(8, "big") for i in range(20)] for first in (1, 2, 3))
    many = [os.urandom(16) for _ in range(50_000)]
    lies = [
        lying_pack(1, huge + wrong, [80] * 20 + [80 + 1000 * i for i in range(20)], [10**9] * 20 + [1000] * 20),
        lying_pack(2, absent + many, [80] * 50_020, [1000] * 50_020),
    ]
    [namespace] = index_of(bucket).namespaces
    junk = {
        "v1/index/junk": b"x",
        f"v1/index/{NODE}/{EPOCH}/00000001": b"y" * 1000,
        f"v1/index/{NODE}/{EPOCH}/00000002": b"",
        f"v1/index/{NODE}/{EPOCH}/00000003": encode_index(RUN, 3, IndexBody([namespace], lies), Plain()),
        f"v1/packs/{NODE}/{EPOCH}/00000001": os.urandom(100_000),
        "v1/packs/junk": b"q",
        f"v1/alive/{NODE}/{EPOCH}": os.urandom(5000),
        "v1/alive/junk": b"z",
        f"v1/claims/{NODE}": b"no claim",
        "v1/claims/junk": b"q",
    }
    for name, data in junk.items():
        bucket.client().put_object(Bucket=BUCKET, Key=f"kv/{name}", Body=data)
    two = nodes.start("n2")
    eventually(lambda: next(tier.blocks for tier in two.client.status().tiers if tier.tier == Tier.COLD) > 50_000)
    known(two, list(blocks))
    assert two.get(list(blocks), 10.0) == list(blocks.values())
    for keys in (huge, wrong, absent):
        began = time.monotonic()
        assert two.get(keys, 2.0) == [None] * 20
        assert time.monotonic() - began < 2.0 + SPARE_SECONDS
    counters = two.counters()
    assert counters["cold_indexes_unreadable"] == 2 and counters["cold_blocks_wrong"] == 20
    assert counters["cold_packs_gone"] == 1 and counters["cold_read_bytes"] < 10 << 20
    assert all(tier.reserved_bytes == 0 for tier in two.client.status().tiers)
    assert set(bucket.names("kv/")) >= {f"kv/{name}" for name in junk}, "what is not ours is not taken away"
