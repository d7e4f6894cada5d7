"""Whole daemons that take blocks from each other by RDMA: needs a device, as `test_verbs.py` does."""

import os
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, blocks_of, eventually
from layer_writer import LayerWriter, Waiting
from rdma_world import why_no_device

_why = why_no_device()
_may_skip = bool(_why) and not os.environ.get("MOONCASK_RDMA")
pytestmark = [pytest.mark.rdma, pytest.mark.timeout(600), pytest.mark.skipif(_may_skip, reason=_why)]


def test_what_one_daemon_was_given_is_read_at_another_by_rdma(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path, {"nvme.path": "", "cluster.transport": "rdma"}) as nodes:
        one, two = nodes.start("n1", "n2")
        blocks = blocks_of(range(1, 33))
        one.put(blocks)
        assert two.get(list(blocks), 60.0) == list(blocks.values())
        assert two.counters()["peer_blocks_pulled"] == 32
        [peer] = two.peers().peers
        assert (peer.name, peer.transport, peer.failures) == ("n1", "rdma", 0)


def test_layers_come_by_rdma_while_they_are_written(tmp_path: Path) -> None:
    with ClusterNodes(tmp_path, {"nvme.path": "", "cluster.transport": "rdma"}) as nodes:
        one, two = nodes.start("n1", "n2")
        with LayerWriter(one.client, [1, 2]) as writer, Waiting(two, writer.keys, 60.0) as reader:
            for done in (2, 5):
                writer.write(done)
                eventually(lambda done=done: two.counters().get("peer_layers_pulled", 0) == 2 * done, 60.0)  # type: ignore[misc]
            writer.commit()
        assert reader.payloads == writer.payloads
        assert two.counters()["peer_blocks_followed"] == 2
        [peer] = two.peers().peers
        assert (peer.name, peer.transport, peer.failures) == ("n1", "rdma", 0)
