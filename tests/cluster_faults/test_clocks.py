"""Daemons whose clocks are hours apart: blocks travel, deadlines hold, and a clock that was put back makes no run older.

Times that matter between nodes are loop times of one process or the directory's server's own (expiry of records). The wall clock is in
two things: in the epoch of a run, which is compared only with other epochs of the same node in the directory's scripts, where a later
one is kept beside and gives no credit; and in what people read.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from cluster_nodes import ClusterNodes, blocks_of, eventually
from daemon_process import DaemonProcess, Setting
from directory_server import DirectoryServer
from placed_nodes import all_find_all, in_time, nothing_is_held

NAMES = ("n1", "n2", "n3")
FRESH = {name: blocks_of(range(number * 1000, number * 1000 + 4)) for number, name in enumerate(NAMES, 1)}


def library() -> str:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed")
    return str(found[0])


def clock(offset: str) -> dict[str, str]:
    """Only the wall clock: a monotonic clock can't be put."""
    return {
        "LD_PRELOAD": library(),
        "FAKETIME": offset,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


class Skewed(ClusterNodes):
    """Each node with the clock that `OFFSETS` says."""

    OFFSETS: Mapping[str, str] = {"n1": "+1h", "n2": "-1h", "n3": "+0"}

    def daemon_for(self, name: str, folder: Path, settings: Mapping[str, Setting]) -> DaemonProcess:
        return DaemonProcess.start(folder, settings, clock(self.OFFSETS[name]))


@pytest.fixture(autouse=True)
def no_clock_is_left() -> Iterator[None]:
    """The library's own files, which a daemon that is killed leaves behind."""
    before = set(Path("/dev/shm").glob("*faketime*"))
    yield
    for path in set(Path("/dev/shm").glob("*faketime*")) - before:
        path.unlink(missing_ok=True)


@pytest.mark.slow
def test_nodes_whose_clocks_are_hours_apart_are_one_cluster_and_a_clock_put_back_makes_no_run_older(
    tmp_path: Path,
) -> None:
    library()
    with DirectoryServer(tmp_path) as server, Skewed(tmp_path, directory=server.url) as nodes:
        one, two, three = nodes.start(*NAMES, ttl="2s")
        all_find_all(nodes.nodes, FRESH)
        early = int(one.peers().incarnation[16:], 16)
        with in_time(1.0):
            assert two.get([bytes(16)], 1.0) == [None]
        kept = list(FRESH["n1"])
        eventually(lambda: all(stat.durable for stat in one.client.stat(one.namespace(), kept)))
        for node in (two, three):
            node.client.evict(node.namespace(), kept)
        one.daemon.environment = clock("-1h")
        one.restart()
        assert int(one.peers().incarnation[16:], 16) < early, "its clock was put back by two hours"
        for node in (two, three):
            eventually(lambda node=node: node.get(kept, 2.0) == list(FRESH["n1"].values()))
        later = {name: blocks_of(range(number * 2000, number * 2000 + 4)) for number, name in enumerate(NAMES, 5)}
        all_find_all(nodes.nodes, later)
        nothing_is_held(nodes.nodes)
