"""Requests for thousands of blocks of another node: answered in time, and others are served meanwhile."""

import time
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, blocks_of, eventually

from mooncask.client.control_client import ControlClient

COUNT = 4096
"""The most that one request may ask for."""

pytestmark = pytest.mark.slow


def test_thousands_of_blocks_at_once_keep_to_the_deadline_and_to_what_a_node_can_do_meanwhile(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path, {"nvme.path": ""}) as nodes:
        one, two = nodes.start("n1", "n2")
        blocks = blocks_of(range(1, COUNT + 1), size=256)
        keys = list(blocks)
        one.client.put(one.namespace(), keys, list(blocks.values()), deadline_seconds=20.0)
        two.namespace()
        for seconds in (0.3, 0.1):
            two.get(keys, seconds)  # raises when the answer is late
        eventually(lambda: two.client.status().counters["peer_blocks_pulled"] >= 1)
        unknown = [number.to_bytes(16, "big") for number in range(1 << 20, (1 << 20) + 60_000)]
        with ControlClient(two.daemon.socket_path) as control:
            began = time.monotonic()
            warming = control.warm(two.namespace().name, keys=[*keys, *unknown])
            assert time.monotonic() - began < 3.0
        assert warming.blocks == len(keys) + len(unknown) and warming.coming + warming.in_memory > 0
        assert two.get(keys, 20.0) == list(blocks.values())
        assert all(tier.reserved_bytes == 0 for tier in two.client.status().tiers)
