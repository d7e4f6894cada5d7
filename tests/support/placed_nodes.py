"""Daemons of one cluster, each in a place of its own of a `Network`, and what is asked of them after every fault."""

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from cluster_nodes import ClusterNodes, Node, eventually
from daemon_process import DaemonProcess, Setting
from network_places import Network

LATE_SECONDS = 0.1
"""What a request may take beside its deadline."""
LAGS = 3.0
"""Steps that a late answer takes through processes which this machine may keep waiting, each as long as it kept this one."""
PORT = 7700


class PlacedNodes(ClusterNodes):
    """See `ClusterNodes`; each node runs in the place of its name."""

    def __init__(
        self, folder: Path, network: Network, settings: Mapping[str, Setting] | None = None, directory: str = ""
    ) -> None:
        super().__init__(folder, settings, directory)
        self._network = network

    def address_for(self, name: str) -> str:
        return f"{self._network[name].address}:{PORT}"

    def daemon_for(self, name: str, folder: Path, settings: Mapping[str, Setting]) -> DaemonProcess:
        daemon = DaemonProcess(folder, settings)
        daemon.under = self._network[name].prefix
        try:
            daemon.run()
        except BaseException:
            daemon.close()
            raise
        return daemon


class Lag:
    """How late this machine was at most in waking a thread that had slept; other users of its processors make it so."""

    STEP_SECONDS = 0.005
    WORTH_NOTING_SECONDS = 0.002
    REMEMBERED = 10_000

    def __init__(self) -> None:
        self.seconds = 0.0
        self._late: deque[tuple[float, float]] = deque(maxlen=self.REMEMBERED)
        """When it woke, and how late."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def allowance(self) -> float:
        return LATE_SECONDS + LAGS * self.seconds

    def allowance_since(self, began: float) -> float:
        """What a request that began then may have been late by now."""
        return LATE_SECONDS + LAGS * max((late for woke, late in list(self._late) if woke >= began), default=0.0)

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(self.STEP_SECONDS)
            woke = time.monotonic()
            late = woke - began - self.STEP_SECONDS
            self.seconds = max(self.seconds, late)
            if late > self.WORTH_NOTING_SECONDS:
                self._late.append((woke, late))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def in_time(seconds: float) -> Iterator[None]:
    """What runs inside takes no longer than that, plus 100 ms and what the machine itself was late meanwhile."""
    with Lag() as lag:
        began = time.monotonic()
        yield
        took = time.monotonic() - began
    assert took < seconds + lag.allowance, (
        f"{took:.3f} s; the deadline was {seconds} s, the machine {lag.seconds:.3f} s late"
    )


def right_or_missed(node: Node, blocks: Mapping[bytes, bytes], seconds: float) -> list[bytes | None]:
    """One get, in time and without a wrong byte."""
    node.namespace()
    with in_time(seconds):
        found = node.get(list(blocks), seconds)
    assert all(block is None or block == payload for block, payload in zip(found, blocks.values(), strict=True))
    return found


def nothing_is_held(nodes: Sequence[Node], seconds: float = 20.0) -> None:
    """No lease and no reservation, on any side."""
    for node in nodes:
        eventually(
            lambda node=node: all(t.reserved_bytes == t.leased_bytes == 0 for t in node.client.status().tiers), seconds
        )
        eventually(lambda node=node: not any(peer.leases for peer in node.peers().peers), seconds)
        said = node.daemon.log()
        assert "Traceback" not in said and "fault of this daemon" not in said, said[-4000:]


def all_find_all(nodes: Sequence[Node], numbers: Mapping[str, Mapping[bytes, bytes]], seconds: float = 30.0) -> None:
    """What each node puts now, the others get soon."""
    for node in nodes:
        node.put(numbers[node.name])
    for node in nodes:
        for other in nodes:
            blocks = numbers[other.name]
            eventually(lambda node=node, b=blocks: node.get(list(b), 2.0) == list(b.values()), seconds)
