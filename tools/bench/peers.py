"""Other stores on the same blocks, for comparison: `--peers`. One that is not installed is skipped, with the reason.

Each peer runs as its makers ship it, on loopback or a Unix socket, with memory only and one client.
"""

import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import numpy as np

from mooncask.tools.bench.memory_limits import Bytes, blocks_of, private_memory
from mooncask.tools.bench.plan import BlockPlan, Plan
from mooncask.tools.bench.result import Findings, Skipped, measured
from mooncask.tools.bench.samples import take_turns, timed

Progress = Callable[[str], None]


class NotInstalled(Exception):
    """A peer that this machine lacks; the text says what is missing."""


class Peer(Protocol):
    """A running store with one client. `put` and `get_into` move a batch in one call and raise on any failure."""

    def use(self, memory: Sequence[Bytes]) -> None:
        """Tells which memory payloads will lie in, before the first put or get."""
        ...

    def put(self, keys: Sequence[str], blocks: Sequence[Bytes]) -> None: ...

    def get_into(self, keys: Sequence[str], targets: Sequence[Bytes]) -> None: ...

    def clear(self) -> None:
        """Forgets all blocks."""
        ...


Starter = Callable[[Path, Plan], AbstractContextManager[Peer]]


def measure_peers(
    starters: Mapping[str, Starter], plan: Plan, folder: Path, findings: Findings, progress: Progress
) -> None:
    for name, start in starters.items():
        try:
            with start(folder, plan) as peer:
                for block in plan.blocks:
                    progress(f"{name}, blocks of {block.block_bytes >> 10} KiB")
                    _measure(name, peer, plan.batch, block, findings)
                    peer.clear()
        except NotInstalled as error:
            findings.skipped.append(Skipped(name, str(error)))


def _measure(name: str, peer: Peer, batch: int, block: BlockPlan, findings: Findings) -> None:
    size, batches = block.block_bytes, block.set_batches
    source, target = private_memory(size * batch, seed=1), private_memory(size * batch, seed=2)
    peer.use([source, target])
    sources, targets = blocks_of(source, size, batch, 0), blocks_of(target, size, batch, 0)

    def keys(i: int) -> list[str]:
        return [f"bench-{size}-{i % batches}-{j}" for j in range(batch)]

    def put(i: int) -> Mapping[str, float]:
        with timed() as watch:
            peer.put(keys(i), sources)
        return {"put": watch.seconds}

    def get(i: int) -> Mapping[str, float]:
        with timed() as watch:
            peer.get_into(keys(i), targets)
        return {"get into a private buffer": watch.seconds}

    found = take_turns([put], batches) | take_turns([get], max(4, block.copy_rounds // 4))
    assert np.array_equal(source, target), f"{name} returned other bytes"
    findings.measures += [measured(name, action, samples, size, batch) for action, samples in found.items()]


def free_port() -> int:
    """A TCP port on loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
