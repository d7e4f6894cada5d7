"""Daemons that share nothing but a bucket, and what tests wait for at them."""

from pathlib import Path

from bucket_server import BucketServer
from cluster_nodes import Node, eventually
from daemon_process import DaemonProcess, Setting


class Nodes:
    """Daemons that share nothing but the bucket."""

    def __init__(self, folder: Path, bucket: BucketServer) -> None:
        self._folder, self._bucket = folder, bucket
        self.nodes: list[Node] = []

    def start(self, name: str, settings: dict[str, Setting] | None = None, **cold: Setting) -> Node:
        folder = self._folder / name
        folder.mkdir()
        keys = {"node.name": name, "dram.capacity": "16 MiB", **self._bucket.settings(**cold), **(settings or {})}
        node = Node(name, DaemonProcess.start(folder, keys), "")
        self.nodes.append(node)
        return node

    def close(self) -> None:
        for node in self.nodes:
            node.close_client()
            node.daemon.close()


def spilled(node: Node, blocks: int) -> None:
    eventually(lambda: node.counters().get("cold_spilled_blocks", 0) >= blocks)


def known(node: Node, keys: list[bytes]) -> None:
    """Until the node has read of them in the bucket."""
    eventually(lambda: len(node.client.match(node.namespace(), keys).tiers) == len(keys))
