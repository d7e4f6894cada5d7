"""Three nodes and a directory under random kills, pauses, cuts of the network and restarts of the directory while clients put and
get: every read is checked, each request keeps its deadline, and in the end the nodes find together again and nothing is held.

MOONCASK_TEST_FAULT_SECONDS is how long it goes on, MOONCASK_TEST_FAULT_SEED the dice of a run that failed.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from cluster_nodes import FAMILY, Node, blocks_of, eventually
from directory_server import DirectoryServer
from network_faults import NAMES, TTL, FaultyNetwork, faulty_network
from placed_nodes import Lag, all_find_all, nothing_is_held

from mooncask.client.local import LocalClient
from mooncask.client.operations import GRACE_SECONDS
from mooncask.errors import DeadlineExceeded, MooncaskError

SECONDS = float(os.environ.get("MOONCASK_TEST_FAULT_SECONDS", "20"))
SEED = int(os.environ.get("MOONCASK_TEST_FAULT_SEED", str(random.randrange(1 << 30))))
KEYS = 200
DEADLINE = 1.0
LAST = {name: blocks_of(range(number * 1000, number * 1000 + 6)) for number, name in enumerate(NAMES, 1)}


class Load:
    """One client of one node: puts and gets what its own dice say."""

    def __init__(self, node: Node, lag: Lag, seed: int) -> None:
        self.node, self.dice = node, random.Random(seed)
        self.faults: list[str] = []
        self.figures: Counter[str] = Counter()
        self.hurt_until = 0.0
        """Until when its daemon was killed or paused; requests that began before may fail."""
        self._lag = lag
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
            what = self.dice.choices(["evict", "put", "get"], [1, 1, 3])[0]
            with self._timed(what):
                if what == "evict":  # else all would soon be everywhere
                    self.figures["evicted"] += client.evict(namespace, list(blocks))
                    continue
                if what == "put":
                    client.put(namespace, list(blocks), list(blocks.values()), deadline_seconds=DEADLINE)
                    continue
                with client.acquire(namespace, list(blocks), DEADLINE) as found:
                    for block, payload in zip(found, blocks.values(), strict=True):
                        self.figures["reads"] += 1
                        if block is not None:
                            self.figures["hits"] += 1
                            if bytes(block.memory) != payload:
                                self.faults.append("wrong bytes")

    @contextmanager
    def _timed(self, what: str) -> Iterator[None]:
        """An answer is in time; so is an error, but for the moment in which a client still listens for its daemon's own "too
        late". What only other nodes or the directory delay is no error at all."""
        began = time.monotonic()
        self.figures["requests"] += 1
        late, outcome = False, "answer"
        try:
            yield
        except MooncaskError as error:
            outcome = type(error).__name__
            late = isinstance(error, DeadlineExceeded) and began > self.hurt_until
            raise
        finally:
            seconds, allowance = time.monotonic() - began, self._lag.allowance_since(began)
            if outcome != "answer" or began <= self.hurt_until:  # a daemon that was stopped answers when it goes on
                allowance += GRACE_SECONDS
            if seconds > DEADLINE + allowance:
                self.faults.append(f"{what}: {outcome} after {seconds:.2f} s, {allowance:.2f} s late are allowed")
            if late and began > self.hurt_until:
                self.figures["not answered"] += 1


@contextmanager
def node_fault(load: Load, dice: random.Random) -> Iterator[str]:
    """Inside, one node is killed, or stopped without being told."""
    daemon, kind = load.node.daemon, dice.choice(["kill", "pause"])
    load.hurt_until = float("inf")
    if kind == "kill":
        daemon.kill()
    else:
        daemon.freeze()
    try:
        yield f"{kind} {load.node.name}"
    finally:
        if kind == "kill":
            daemon.run()
        else:
            daemon.thaw()
        load.hurt_until = time.monotonic() + DEADLINE


@contextmanager
def directory_fault(directory: DirectoryServer, dice: random.Random) -> Iterator[str]:
    kind = dice.choice(["kill", "freeze", "flush"])
    match kind:
        case "kill":
            directory.kill()
        case "freeze":
            directory.freeze()
        case _:
            directory.flush()
    try:
        yield f"{kind} directory"
    finally:
        match kind:
            case "kill":
                directory.start()
            case "freeze":
                directory.thaw()


def disturb(network: FaultyNetwork, loads: list[Load], dice: random.Random, done: list[str]) -> None:
    """One fault or two at once, their end, and a moment without any."""
    makers = [
        lambda: node_fault(dice.choice(loads), dice),
        lambda: directory_fault(network.directory, dice),
        lambda: network.fault(dice),
    ]
    with ExitStack() as stack:
        chosen = dice.sample(makers, dice.choice([1, 1, 2]))
        done.append(" + ".join([stack.enter_context(make()) for make in chosen]))
        time.sleep(dice.uniform(0.2, 1.5))
    time.sleep(dice.uniform(0.0, 0.5))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 180)
def test_every_read_under_random_faults_is_right_and_in_time_and_nothing_is_left(tmp_path: Path) -> None:
    dice = random.Random(SEED)
    done: list[str] = []
    with faulty_network(tmp_path) as network, Lag() as lag:
        nodes = network.nodes.start(*NAMES, ttl=TTL)
        loads = [Load(node, lag, SEED + number) for number, node in enumerate(nodes)]
        try:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                disturb(network, loads, dice, done)
        finally:
            for load in loads:
                load.stop()
        figures = sum((load.figures for load in loads), Counter[str]())
        pulled = sum(node.counters().get("peer_blocks_pulled", 0) for node in nodes)
        print(
            f"seed {SEED}, {len(done)} times: {figures}, {pulled} pulled, the machine at most {lag.seconds:.3f} s late"
        )
        assert [load.faults for load in loads] == [[], [], []], f"seed {SEED}: {done}"
        assert figures["hits"] > 100, f"seed {SEED}"
        assert figures["not answered"] <= figures["requests"] / 500, f"seed {SEED}: {figures}, {done}"
        for node in nodes:
            eventually(lambda node=node: node.peers().directory_state == "ok")
        all_find_all(nodes, LAST, 60.0)
        nothing_is_held(nodes)
        assert pulled >= 100, "all of this was about blocks of other nodes"
