"""How soon what one node has committed can be read at another: blocks that were followed while they were written, beside blocks that
are pulled when they are there.

The writer stores layer by layer at a pace, as a prefill does. What is measured is the time from its commit call until a reader at
the other node has leases on all blocks; the reader of the first kind waits from the beginning, that of the second asks when the
commit is answered. Both are on one machine: a real network makes the difference larger.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.reservations import Reservations
from mooncask.tools.bench.memory_limits import Bytes
from mooncask.tools.bench.samples import Samples, take_turns

FOLLOWED = "commit to readable at a peer, followed while written"
PULLED = "commit to readable at a peer, pulled afterwards"
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class FollowingPlan:
    block_bytes: int
    blocks: int
    layers: int
    bytes_per_second: float
    rounds: int


@dataclass(frozen=True, slots=True)
class Ends:
    """A client of the node that is written at, one of the node that is read at, and the namespace as each knows it."""

    writer: LocalClient
    reader: LocalClient
    written: NamespaceHandle
    wanted: NamespaceHandle


def measure_following(plan: FollowingPlan, ends: Ends, source: Bytes) -> Mapping[str, Samples]:
    """By FOLLOWED and PULLED, in turns."""
    return take_turns(
        [
            lambda i: {FOLLOWED: _round(plan, ends, source, f"followed-{i}", follow=True)},
            lambda i: {PULLED: _round(plan, ends, source, f"pulled-{i}", follow=False)},
        ],
        plan.rounds,
    )


def _round(plan: FollowingPlan, ends: Ends, source: Bytes, name: str, *, follow: bool) -> float:
    keys = [f"{name}-{i}".encode() for i in range(plan.blocks)]
    committed = threading.Event()
    with (
        ThreadPoolExecutor(1) as thread,
        ends.writer.reserve(ends.written, keys, [plan.block_bytes] * plan.blocks, layers=plan.layers) as places,
    ):
        if follow:
            committed.set()
        reading = thread.submit(_read, ends, keys, committed, follow)
        try:
            _write(plan, places, source)
            began = time.perf_counter()
            places.commit()
        finally:
            committed.set()
        readable_at = reading.result()
    ends.reader.evict(ends.wanted, keys)
    ends.writer.evict(ends.written, keys)
    return readable_at - began


def _read(ends: Ends, keys: list[bytes], may_begin: threading.Event, wait: bool) -> float:
    """When all blocks could be read."""
    may_begin.wait()
    with ends.reader.acquire(ends.wanted, keys, SECONDS, wait=wait) as blocks:
        readable_at = time.perf_counter()
        missing = sum(block is None for block in blocks)
    assert not missing, f"{missing} of {len(keys)} blocks did not come"
    return readable_at


def _write(plan: FollowingPlan, places: Reservations, source: Bytes) -> None:
    layer_bytes = plan.block_bytes // plan.layers
    due = time.perf_counter()
    for layer in range(plan.layers):
        start, end = layer * layer_bytes, (layer + 1) * layer_bytes
        for place in places.to_write:
            place.memory[start:end] = source.data[start:end]
        due += layer_bytes * plan.blocks / plan.bytes_per_second
        time.sleep(max(0.0, due - time.perf_counter()))
        places.advance(layer + 1)
