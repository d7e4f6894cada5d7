"""One run of `mooncask bench peers`: blocks fetched from another node's memory into local shared memory, beside a bare socket.

Two daemons of its own on loopback. A round asks the second for a batch that only the first has: look-up, lease, transfer straight
into the arena, checksum, publishing, and the lease for the reader are all in it. Forgetting the copies again is not.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.errors import CorruptBlock
from mooncask.tools.bench.counterpart import Counterpart
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.following_run import FOLLOWED, PULLED, Ends, FollowingPlan, measure_following
from mooncask.tools.bench.memory_limits import Bytes, blocks_of, private_memory, shared_memory
from mooncask.tools.bench.mooncake_peer import start_mooncake
from mooncask.tools.bench.peers import NotInstalled, Peer, free_port
from mooncask.tools.bench.plan import FULL as STORE_PLAN
from mooncask.tools.bench.plan import KIB, MIB
from mooncask.tools.bench.result import LIMIT, STORE, Fact, Findings, Measure, Skipped, beside, measured
from mooncask.tools.bench.samples import Runner, Samples, take_turns, timed
from mooncask.tools.bench.targets import AtMost, ShareOfLimit, judge_measure

FAMILY = {"model": "bench", "block_tokens": "16"}
GET, GET_SMALL = "get from a peer", "get from a peer, small blocks"
BARE = "bare recv_into, memory to memory"
BARE_CACHED = "bare recv_into of the same MiB again and again"
MOONCAKE, MOONCAKE_GET = "mooncake store", "TCP batch_get_into"
FASTER = "get from a peer, times as fast as Mooncake Store"
FASTER_MIN = 1.4
SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Batch:
    """One block size: `sets` batches are walked in turn, so that caches don't help."""

    name: str
    block_bytes: int
    blocks: int
    sets: int
    rounds: int

    @property
    def size_bytes(self) -> int:
        return self.block_bytes * self.blocks


@dataclass(frozen=True, slots=True)
class NodesPlan:
    batches: tuple[Batch, ...]
    dram_bytes: int
    following: FollowingPlan
    connections: int = 4
    judged: bool = True

    @property
    def targets(self) -> Mapping[str, AtMost | ShareOfLimit]:
        return {GET: ShareOfLimit(0.85), GET_SMALL: AtMost(20_000)} if self.judged else {}


FULL = NodesPlan(
    (Batch(GET, 2 * MIB, 32, 4, 41), Batch(GET_SMALL, 256 * KIB, 32, 8, 41)),
    768 * MIB,
    FollowingPlan(2 * MIB, 32, layers=32, bytes_per_second=400e6, rounds=15),
)
QUICK = NodesPlan(
    (Batch(GET, 128 * KIB, 4, 2, 3), Batch(GET_SMALL, 4 * KIB, 4, 2, 3)),
    64 * MIB,
    FollowingPlan(128 * KIB, 4, layers=4, bytes_per_second=10e6, rounds=3),
    judged=False,
)


@dataclass(frozen=True, slots=True)
class Nodes:
    """A client of the node that has all blocks, one of the node that has none, and the namespace as each knows it."""

    holder: LocalClient
    reader: LocalClient
    held: NamespaceHandle
    wanted: NamespaceHandle


def run(
    plan: NodesPlan, folder: Path, progress: Callable[[str], None], tls: Mapping[str, str] | None = None
) -> Findings:
    """`folder` is its own; `tls`: cluster.tls_* of both daemons. Raises CorruptBlock when a block is not what was stored."""
    findings = Findings()
    source = private_memory(max(batch.size_bytes for batch in plan.batches))
    target = shared_memory(source.size)
    with (
        _nodes(plan, folder, tls or {}) as nodes,
        Counterpart.over_tcp() as bare,
        _mooncake(folder, findings, progress) as peer,
    ):
        for batch in plan.batches:
            progress(f"{batch.blocks} blocks of {batch.block_bytes >> 10} KiB")
            _fill(nodes, batch, source)
            runners: list[Runner] = [lambda i, b=batch: _get(nodes, b, i), lambda i, b=batch: _bare(bare, b, target)]  # type: ignore[misc]  # a default argument has no type of its own
            if peer is not None and batch.name == GET:
                runners.append(_mooncake_runner(peer, batch, source, target))
            _check(nodes, batch, source)
            _report(plan, batch, take_turns(runners, batch.rounds), findings)
            nodes.holder.evict(nodes.held, [key for number in range(batch.sets) for key in _keys(batch, number)])
        progress("blocks that are followed while they are written")
        _report_following(plan.following, nodes, source, findings)
    return findings


@contextmanager
def _nodes(plan: NodesPlan, folder: Path, tls: Mapping[str, str]) -> Iterator[Nodes]:
    first, second = free_port(), free_port()
    common = {
        "dram_capacity": str(plan.dram_bytes),
        "http_enabled": "false",
        "ghosts_enabled": "false",
        "cluster_connections": str(plan.connections),
        **{f"cluster_{name}": value for name, value in tls.items()},
    }
    folders = [folder / "holder", folder / "reader"]
    for one in folders:
        one.mkdir()
    settings = [
        {**common, "node_name": "holder", "cluster_listen": f"127.0.0.1:{first}"},
        {
            **common,
            "node_name": "reader",
            "cluster_listen": f"127.0.0.1:{second}",
            "cluster_peers": f"127.0.0.1:{first}",
        },
    ]
    with (
        DaemonProcess(folders[0], settings[0]) as holding,
        DaemonProcess(folders[1], settings[1]) as reading,
        holding.connect() as holder,
        reading.connect() as reader,
    ):
        held, wanted = (
            client.open_namespace("bench-peers", family=FAMILY, mode="memory") for client in (holder, reader)
        )
        yield Nodes(holder, reader, held, wanted)


def _keys(batch: Batch, number: int) -> list[bytes]:
    return [f"{batch.name[-5:]}-{number}-{i}".encode() for i in range(batch.blocks)]


def _fill(nodes: Nodes, batch: Batch, source: Bytes) -> None:
    for number in range(batch.sets):
        nodes.holder.put(nodes.held, _keys(batch, number), blocks_of(source, batch.block_bytes, batch.blocks, 0))


def _get(nodes: Nodes, batch: Batch, i: int) -> Mapping[str, float]:
    keys = _keys(batch, i % batch.sets)
    with timed() as watch:
        blocks = nodes.reader.acquire(nodes.wanted, keys, SECONDS)
    missing = sum(block is None for block in blocks)
    assert not missing, f"{missing} of {len(keys)} blocks did not come"
    blocks.close()
    nodes.reader.evict(nodes.wanted, keys)
    return {batch.name: watch.seconds}


def _bare(bare: Counterpart, batch: Batch, target: Bytes) -> Mapping[str, float]:
    with timed() as memory:
        bare.read_memory_into(target.data[: batch.size_bytes])
    with timed() as cached:
        bare.read_into(target.data[: batch.size_bytes])
    return {BARE: memory.seconds, BARE_CACHED: cached.seconds}


def _check(nodes: Nodes, batch: Batch, source: Bytes) -> None:
    """A fast answer with wrong bytes is no answer."""
    keys = _keys(batch, 0)
    expected = blocks_of(source, batch.block_bytes, batch.blocks, 0)
    with nodes.reader.acquire(nodes.wanted, keys, SECONDS) as blocks:
        for key, block, payload in zip(keys, blocks, expected, strict=True):
            if block is None or not np.array_equal(block.numpy(), payload):
                raise CorruptBlock(key.decode(), "dram", "it came from the peer with other bytes, or not at all")
    nodes.reader.evict(nodes.wanted, keys)


def _report(plan: NodesPlan, batch: Batch, found: Mapping[str, Samples], findings: Findings) -> None:
    shape = (batch.block_bytes, batch.blocks)
    limit = measured(LIMIT, BARE, found[BARE], *shape)
    get = judge_measure(beside(measured(STORE, batch.name, found[batch.name], *shape), limit), plan.targets)
    findings.measures += [get, limit, measured(LIMIT, BARE_CACHED, found[BARE_CACHED], *shape)]
    if MOONCAKE_GET in found:
        other = measured(MOONCAKE, MOONCAKE_GET, found[MOONCAKE_GET], *shape)
        findings.measures.append(beside(other, limit))
        findings.facts.append(_times_as_fast(get, other, plan.judged))


def _report_following(plan: FollowingPlan, nodes: Nodes, source: Bytes, findings: Findings) -> None:
    found = measure_following(plan, Ends(nodes.holder, nodes.reader, nodes.held, nodes.wanted), source)
    shape = (plan.block_bytes, plan.blocks)
    findings.measures += [measured(STORE, name, found[name], *shape, moves_bytes=False) for name in (FOLLOWED, PULLED)]


def _times_as_fast(get: Measure, other: Measure, judged: bool) -> Fact:
    times = other.p50_us / get.p50_us
    return Fact(FASTER, times, "", f"≥ {FASTER_MIN:g}", times >= FASTER_MIN) if judged else Fact(FASTER, times, "")


# --- Mooncake Store --------------------------------------------------------------------------------------------------


@contextmanager
def _mooncake(folder: Path, findings: Findings, progress: Callable[[str], None]) -> Iterator[Peer | None]:
    """None, and a line in the findings, where it is not installed."""
    progress("Mooncake Store, if it is installed")
    place = folder / "mooncake"
    place.mkdir()
    try:
        started = start_mooncake(place, STORE_PLAN)
        peer = started.__enter__()
    except NotInstalled as error:
        findings.skipped.append(Skipped(MOONCAKE, str(error)))
        yield None
        return
    try:
        yield peer
    finally:
        started.__exit__(None, None, None)


def _mooncake_runner(peer: Peer, batch: Batch, source: Bytes, target: Bytes) -> Runner:
    """Its own way: registered memory, a batch in one call, from its storage process over TCP."""
    peer.use([source, target])
    sources = blocks_of(source, batch.block_bytes, batch.blocks, 0)
    targets = blocks_of(target, batch.block_bytes, batch.blocks, 0)
    for number in range(batch.sets):
        peer.put([key.decode() for key in _keys(batch, number)], sources)

    def get(i: int) -> Mapping[str, float]:
        keys: Sequence[str] = [key.decode() for key in _keys(batch, i % batch.sets)]
        with timed() as watch:
            peer.get_into(keys, targets)
        return {MOONCAKE_GET: watch.seconds}

    return get
