"""One run of `mooncask bench directory`: real servers, real clients of it, blocks that are made up.

Nodes are those of `daemon.directory.measuring`, many in a process, since as many daemons want more memory than a small machine has;
a daemon adds a store to each and nothing to what the directory sees. What sixteen real daemons announce is measured beside it.
"""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from mooncask.tools.bench.directory_daemons import have_cpu_seconds, measure_daemons
from mooncask.tools.bench.directory_model import LOOKUP_KEYS, Costs
from mooncask.tools.bench.directory_server import Servers, directory_servers
from mooncask.tools.bench.peers import NotInstalled
from mooncask.tools.bench.result import STORE, Fact, Findings, Measure, Skipped, measured
from mooncask.tools.bench.samples import Samples
from mooncask.tools.bench.targets import AtMost, judge_measure

LOOKUP, LOOKUP_CLUSTER = "look-up of 256 keys", "look-up of 256 keys, Cluster"
TARGETS: dict[str, AtMost] = {LOOKUP: AtMost(2_000), LOOKUP_CLUSTER: AtMost(5_000)}
ANNOUNCE_MIN, KEY_BYTES_MAX = 50_000, 200
BEAT_TTL_SECONDS = 0.6
"""Of nodes that do nothing but live: a heartbeat every 0.2 s."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DirectoryPlan:
    """`told`: blocks that each of `nodes` nodes has announced after each stage, over all growing."""

    nodes: int
    processes: int
    told: tuple[int, ...]
    told_cluster: tuple[int, ...]
    rounds: int
    beating: tuple[int, int]
    """Nodes of the two measures of heartbeats."""
    beat_seconds: float
    daemons: int
    blocks_of_daemon: int
    judged: bool = True


FULL = DirectoryPlan(16, 2, (7_813, 15_625, 31_250, 62_500, 125_000), (15_625, 62_500), 200, (16, 64), 5.0, 16, 4096)
QUICK = DirectoryPlan(4, 2, (50, 100), (50,), 5, (4, 8), 0.5, 2, 64, judged=False)


@dataclass(frozen=True, slots=True)
class Point:
    """After one stage. Microseconds, bytes, keys a second."""

    servers: int
    nodes: int
    entries: int
    announce_rate: float
    key_bytes: float
    lookup_p50_us: float
    lookup_p99_us: float


@dataclass(slots=True)
class DirectoryFindings:
    findings: Findings = field(default_factory=Findings)
    growth: list[Point] = field(default_factory=list)
    costs: Costs | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "growth": [asdict(point) for point in self.growth],
            "costs": asdict(self.costs) if self.costs is not None else None,
        }


class Process:
    """Some nodes in a process of their own."""

    def __init__(self, urls: str, first: int, count: int, ttl_seconds: float) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mooncask.daemon.directory.measuring"),
                *(urls, str(first), str(count), str(ttl_seconds)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, do: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"do": do, **arguments}) + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"a process of the bench's nodes ended with {self._process.wait()}")
        found: dict[str, Any] = msgspec.json.decode(line)
        return found

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def together(processes: Sequence[Process], do: str, **arguments: Any) -> tuple[float, list[dict[str, Any]]]:
    """All do it at the same time: seconds until the last has done, and what each answered."""
    began = time.perf_counter()
    for process in processes:
        process.start(do, **arguments)
    answers = [process.answer() for process in processes]
    return time.perf_counter() - began, answers


@contextmanager
def nodes_in_processes(urls: str, nodes: int, processes: int, ttl_seconds: float = 30.0) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        started = []
        for number in range(processes):
            first, end = nodes * number // processes, nodes * (number + 1) // processes
            started.append(Process(urls, first, end - first, ttl_seconds))
            stack.callback(started[-1].close)
        together(started, "up")
        yield started


def run(plan: DirectoryPlan, folder: Path, progress: Progress) -> DirectoryFindings:
    """`folder` is its own."""
    found = DirectoryFindings()
    try:
        _single(plan, folder, found, progress)
        _cluster(plan, folder, found, progress)
    except NotInstalled as error:
        found.findings.skipped.append(Skipped("directory", str(error)))
    return found


def _single(plan: DirectoryPlan, folder: Path, found: DirectoryFindings, progress: Progress) -> None:
    place = folder / "single"
    place.mkdir()
    with directory_servers(place, cluster=False) as servers:
        with nodes_in_processes(servers.urls, plan.nodes, plan.processes) as processes:
            costs = _grow(plan, servers, processes, plan.told, LOOKUP, found, progress)
        progress("nodes that only live")
        beats = _beats(plan, servers)
        progress(f"{plan.daemons} daemons")
        daemons = measure_daemons(folder, servers, plan.daemons, plan.blocks_of_daemon)
    found.findings.facts.append(Fact(f"{plan.daemons} daemons: blocks put and announced", daemons.rate, "keys/s"))
    connections = max(costs.pop("connections_per_node"), daemons.connections)
    found.findings.facts.append(Fact("connections of a node to the directory, at most", connections, ""))
    progress("questions between two daemons without a directory")
    have = have_cpu_seconds(folder, plan.rounds)
    found.costs = Costs(**costs, **beats, connections_per_node=connections, have_cpu=have)


def _cluster(plan: DirectoryPlan, folder: Path, found: DirectoryFindings, progress: Progress) -> None:
    place = folder / "cluster"
    place.mkdir()
    with (
        directory_servers(place, cluster=True) as servers,
        nodes_in_processes(servers.urls, plan.nodes, plan.processes) as processes,
    ):
        _grow(plan, servers, processes, plan.told_cluster, LOOKUP_CLUSTER, found, progress)


def _grow(
    plan: DirectoryPlan,
    servers: Servers,
    processes: Sequence[Process],
    stages: Sequence[int],
    name: str,
    found: DirectoryFindings,
    progress: Progress,
) -> dict[str, float]:
    """Announce more and look up, stage by stage. What a key and a look-up cost in the last stage."""
    empty, told, costs, samples = servers.memory_bytes(), 0, {}, Samples()
    for stage in stages:
        entries = stage * plan.nodes
        progress(f"{entries:,} entries, {len(servers.servers)} servers")
        together(processes, "prepare", keys=stage - told)
        cpu, network = servers.cpu_seconds(), servers.network_bytes()
        seconds, _ = together(processes, "announce")
        new = (stage - told) * plan.nodes
        costs["announce_cpu"] = (servers.cpu_seconds() - cpu) / new
        costs["announce_bytes"] = (servers.network_bytes() - network) / new
        told = stage
        key_bytes = (servers.memory_bytes() - empty) / entries
        costs["key_memory"] = key_bytes
        costs["connections_per_node"] = servers.connections() / plan.nodes
        samples, lookups = _look(plan, servers, processes[0], told)
        costs |= lookups
        found.growth.append(
            Point(
                len(servers.servers),
                plan.nodes,
                entries,
                new / seconds,
                key_bytes,
                samples.p50_seconds * 1e6,
                samples.p99_seconds * 1e6,
            )
        )
    _report(plan, name, measured(STORE, name, samples, 0, LOOKUP_KEYS, moves_bytes=False), found)
    return costs


def _look(plan: DirectoryPlan, servers: Servers, reader: Process, told: int) -> tuple[Samples, dict[str, float]]:
    """Of the blocks of all nodes but the reader, which is the first."""
    cpu, network = servers.cpu_seconds(), servers.network_bytes()
    others = list(range(1, plan.nodes))
    _, [answer] = together([reader], "look", keys=LOOKUP_KEYS, rounds=plan.rounds, nodes=others, told=told)
    expected = LOOKUP_KEYS * (plan.rounds - answer["late"])  # late ones are in the times
    if answer["found"] != expected:
        raise RuntimeError(f"{answer['found']} of {expected} keys were found")
    costs = {
        "lookup_cpu": (servers.cpu_seconds() - cpu) / plan.rounds,
        "lookup_bytes": (servers.network_bytes() - network) / plan.rounds,
    }
    return Samples(answer["seconds"]), costs


def _beats(plan: DirectoryPlan, servers: Servers) -> dict[str, float]:
    """A heartbeat costs so much, and so much more for each record that the node reads with it: from two numbers of nodes."""
    cpu, traffic = [], []
    for nodes in plan.beating:
        with nodes_in_processes(servers.urls, nodes, plan.processes, BEAT_TTL_SECONDS):
            before, bytes_before, beats = servers.cpu_seconds(), servers.network_bytes(), servers.calls("evalsha")
            time.sleep(plan.beat_seconds)
            beats = servers.calls("evalsha") - beats
            cpu.append((servers.cpu_seconds() - before) / beats)
            traffic.append((servers.network_bytes() - bytes_before) / beats)
    few, many = plan.beating
    record_cpu, record_bytes = (max(0.0, (b - a) / (many - few)) for a, b in (cpu, traffic))
    return {
        "record_cpu": record_cpu,
        "beat_cpu": max(0.0, cpu[0] - few * record_cpu),
        "record_bytes": record_bytes,
        "beat_bytes": max(0.0, traffic[0] - few * record_bytes),
    }


def _report(plan: DirectoryPlan, name: str, measure: Measure, found: DirectoryFindings) -> None:
    last, findings = found.growth[-1], found.findings
    findings.measures.append(judge_measure(measure, TARGETS) if plan.judged else measure)
    where = "" if last.servers == 1 else ", Cluster"
    rate = Fact(f"announce rate{where}", last.announce_rate, "keys/s")
    size = Fact(f"memory of a key{where}", last.key_bytes, "bytes")
    if plan.judged:
        met = last.announce_rate >= ANNOUNCE_MIN, last.key_bytes <= KEY_BYTES_MAX
        rate = Fact(rate.name, rate.value, rate.unit, f"≥ {ANNOUNCE_MIN:,} keys/s", met[0])
        size = Fact(size.name, size.value, size.unit, f"≤ {KEY_BYTES_MAX} bytes", met[1])
    findings.facts += [rate, size]
