"""`mooncask peers`: what it shows of nodes that are linked, that fail, and of a node that is alone."""

from pathlib import Path

from cluster_nodes import ClusterNodes, blocks_of, free_port
from command_line import CommandLine
from daemon_process import DaemonProcess


def test_peers_are_shown_with_what_came_from_them_and_with_what_is_wrong(tmp_path: Path) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    with ClusterNodes(tmp_path) as nodes:
        [one] = nodes.start("n1")
        [two] = nodes.start("n2", peers=[one.address, nowhere])
        blocks = blocks_of(range(1, 5))
        one.put(blocks)
        assert two.get(list(blocks)) == list(blocks.values())
        command = CommandLine(two.daemon.socket_path)
        text = command.run("peers")
        assert "n2 at" in text and "static directory ok; 4 blocks pulled (256 KiB)" in text
        [linked] = [line for line in text.splitlines() if line.split()[:1] == ["n1"] and " linked " in line]
        assert one.address in linked and "tcp" in linked
        assert nowhere in text and "failing" in text
        page = command.json("peers")
        assert page["node"] == "n2" and {peer["name"] for peer in page["peers"]} == {"n1", nowhere}


def test_a_node_that_is_alone_says_so(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"node.name": "only"}) as daemon:
        assert CommandLine(daemon.socket_path).run("peers") == "only is alone: cluster.listen is empty\n"
