"""Requests for thousands of blocks of another node: answered in time, and others are served meanwhile."""

import time
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, Node, blocks_of, eventually

from mooncask.client.control_client import ControlClient
from mooncask.errors import DeadlineExceeded

COUNT = 4096
"""The most that one request may ask for."""

pytestmark = pytest.mark.slow


def in_time(node: Node, keys: list[bytes]) -> bool:
    """Whether what can't all come within the deadline is answered by then. On a machine that does much else not each time."""
    node.client.evict(node.namespace(), keys)
    try:
        node.get(keys, 0.3)
    except DeadlineExceeded:
        return False
    return True


def test_thousands_of_blocks_at_once_keep_to_the_deadline_and_to_what_a_node_can_do_meanwhile(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path, {"nvme.path": ""}) as nodes:
        one, two = nodes.start("n1", "n2")
        blocks = blocks_of(range(1, COUNT + 1), size=256)
        keys = list(blocks)
        one.client.put(one.namespace(), keys, list(blocks.values()), deadline_seconds=20.0)
        two.namespace()
        eventually(lambda: in_time(two, keys))
        unknown = [number.to_bytes(16, "big") for number in range(1 << 20, (1 << 20) + 60_000)]
        with ControlClient(two.daemon.socket_path) as control:
            began = time.monotonic()
            warming = control.warm(two.namespace().name, keys=[*keys, *unknown])
            assert time.monotonic() - began < 5.0
        assert warming.blocks == len(keys) + len(unknown) and warming.coming + warming.in_memory > 0
        eventually(lambda: two.get(keys, 20.0) == list(blocks.values()), 60.0)
        assert all(tier.reserved_bytes == 0 for tier in two.client.status().tiers)
