"""Three nodes and a directory under random kills and pauses while clients put and get: every read is checked, none hangs, and in
the end the nodes find together again and nothing is held."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
from cluster_nodes import FAMILY, ClusterNodes, Node, blocks_of, eventually
from directory_server import DirectoryServer

from mooncask.client.local import LocalClient
from mooncask.errors import MooncaskError

SECONDS = float(os.environ.get("MOONCASK_TEST_FAULT_SECONDS", "20"))
KEYS = 200
DEADLINE = 1.0
LATE = 3.0
"""Beside the deadline, on a machine whose processors others use too."""


class Load:
    """One client of one node: puts and gets what its own dice say."""

    def __init__(self, node: Node, seed: int) -> None:
        self.node, self.dice = node, random.Random(seed)
        self.faults: list[str] = []
        self.reads = self.hits = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive(), "a client hangs"

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with LocalClient.connect(self.node.daemon.socket_path, deadline_seconds=DEADLINE) as client:
                    self._work(client)
            except MooncaskError:
                self._over.wait(0.05)  # its daemon is down, paused or busy

    def _work(self, client: LocalClient) -> None:
        namespace = client.open_namespace("", FAMILY)
        while not self._over.is_set():
            blocks = blocks_of(self.dice.sample(range(1, KEYS), 8), size=32 << 10)
            if self.dice.random() < 0.3:
                client.put(namespace, list(blocks), list(blocks.values()), deadline_seconds=DEADLINE)
                continue
            began = time.monotonic()
            with client.acquire(namespace, list(blocks), DEADLINE) as found:
                seconds = time.monotonic() - began
                for block, payload in zip(found, blocks.values(), strict=True):
                    self.reads += 1
                    if block is not None:
                        self.hits += 1
                        if bytes(block.memory) != payload:
                            self.faults.append("wrong bytes")
            if seconds > DEADLINE + LATE:
                self.faults.append(f"an acquire took {seconds:.1f} s")


def disturb(nodes: list[Node], directory: DirectoryServer, dice: random.Random) -> None:
    """One fault, and its end."""
    what, node = dice.choice(["kill", "pause", "directory", "freeze directory", "flush"]), dice.choice(nodes)
    pause = dice.uniform(0.2, 1.0)
    match what:
        case "kill":
            node.daemon.kill()
            time.sleep(pause)
            node.daemon.run()
        case "pause":
            node.daemon.freeze()
            time.sleep(min(pause, DEADLINE))
            node.daemon.thaw()
        case "directory":
            directory.kill()
            time.sleep(pause)
            directory.start()
        case "freeze directory":
            directory.freeze()
            time.sleep(pause)
            directory.thaw()
        case _:
            directory.flush()
            time.sleep(pause)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 150)
def test_every_read_under_random_faults_is_right_and_in_time_and_nothing_is_left(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    dice = random.Random(seed)
    with DirectoryServer(tmp_path) as directory, ClusterNodes(tmp_path, directory=directory.url) as cluster:
        nodes = cluster.start("n1", "n2", "n3", ttl="2s")
        loads = [Load(node, seed + number) for number, node in enumerate(nodes)]
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            disturb(nodes, directory, dice)
        for load in loads:
            load.stop()
        assert [load.faults for load in loads] == [[], [], []], f"seed {seed}"
        assert sum(load.hits for load in loads) > 100, f"seed {seed}"
        one, two, three = nodes
        fresh = blocks_of(range(1000, 1010))
        one.put(fresh)
        for other in (two, three):
            eventually(lambda node=other: node.get(list(fresh), 2.0) == list(fresh.values()))
        for node in nodes:
            eventually(lambda node=node: node.peers().directory_state == "ok")
            eventually(
                lambda node=node: all(
                    tier.reserved_bytes == tier.leased_bytes == 0 for tier in node.client.status().tiers
                )
            )
            assert "fault of this daemon" not in node.daemon.log() and "Traceback" not in node.daemon.log()
        pulled = sum(node.counters().get("peer_blocks_pulled", 0) for node in nodes)
        assert pulled >= 20, "all of this was about blocks of other nodes"
