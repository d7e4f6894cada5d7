"""Daemons as processes of their own that take blocks from each other, by a static list of nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, blocks_of

from mooncask.client.wire import Tier


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ClusterNodes]:
    with ClusterNodes(tmp_path) as nodes:
        yield nodes


def test_what_one_node_was_given_is_read_at_another_and_stays_there(nodes: ClusterNodes) -> None:
    one, two = nodes.start("n1", "n2")
    blocks = blocks_of(range(1, 33))
    one.put(blocks)
    keys = list(blocks)
    found = two.client.match(two.namespace(), keys)
    assert [Tier.PEER] * len(keys) == list(found.tiers) and found.seconds == sorted(found.seconds)
    assert two.get(keys) == list(blocks.values())
    assert two.counters()["peer_blocks_pulled"] == 32
    one.close_client()
    one.daemon.kill()
    assert two.get(keys) == list(blocks.values()), "the replica does not need its origin"
