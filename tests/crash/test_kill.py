"""A real daemon is killed in mid-write, at every named point and at random: what it acknowledged is there, nothing else is.

`MOONCASK_TORTURE_LOOPS` (make torture N=...) sets how many random kills; a failure prints its seed.
"""

import os
import random
import re
import shutil
import threading
from pathlib import Path

import pytest
from crash_workload import CrashWorkload
from daemon_process import DaemonProcess

ROOT = Path(__file__).parents[2]
SETTINGS = {"nvme.capacity": "96 MiB", "nvme.segment": "8 MiB", "dram.capacity": "32 MiB", "shutdown.flush_seconds": 5}
LOOPS = int(os.environ.get("MOONCASK_TORTURE_LOOPS", "20"))
FIRST_SEED = int(os.environ.get("MOONCASK_TORTURE_SEED", "1"))


def crash_points() -> list[str]:
    """The points of commit, delete, reclaim and segment change, as the code names them."""
    found: set[str] = set()
    for path in (ROOT / "tiers").rglob("*.py"):
        for name in re.findall(r'crash_point\(f?"([^"]+)"\)', path.read_text()):
            kinds = ("commit", "delete") if "{kind}" in name else ("",)
            found.update(name.replace("{kind}", kind) for kind in kinds)
    return sorted(found - {"nvme.rebuild.filled", "nvme.namespace.dropped"})  # not on the path of this workload


def test_there_are_crash_points_to_try() -> None:
    assert {"nvme.commit.written", "nvme.commit.synced", "nvme.commit.indexed", "nvme.delete.written"} <= {
        *crash_points()
    }


@pytest.mark.parametrize("point", crash_points())
def test_what_was_acknowledged_survives_a_kill_at_a_named_point(point: str, tmp_path: Path) -> None:
    workload = CrashWorkload(seed=len(point))
    with DaemonProcess.start(tmp_path, SETTINGS) as daemon:
        workload.run(daemon.socket_path, steps=30)
        daemon.stop()
        daemon.environment["MOONCASK_CRASH_AT"] = f"{point}:2"
        assert start_and_run(daemon, workload, steps=3000), f"the workload never came through {point} twice"
        daemon.environment.clear()
        daemon.restart()
        workload.check(daemon.socket_path)


def start_and_run(daemon: DaemonProcess, workload: CrashWorkload, steps: int) -> bool:
    """Whether the daemon died of it; some points are passed before it is even ready."""
    try:
        daemon.run()
    except RuntimeError:
        return True
    return workload.run(daemon.socket_path, steps)


def test_what_was_acknowledged_survives_kills_at_random(tmp_path: Path) -> None:
    workload = CrashWorkload(FIRST_SEED)
    moments = random.Random(FIRST_SEED)
    with DaemonProcess.start(tmp_path, SETTINGS) as daemon:
        for loop in range(LOOPS):
            killer = threading.Timer(moments.uniform(0.0, 0.4), os.kill, (daemon.pid, 9))
            killer.start()
            assert workload.run(daemon.socket_path, steps=100_000), "only the kill ends it"
            killer.join()
            daemon.restart()
            workload.check(daemon.socket_path)
            workload.settle(daemon.socket_path)
            assert loop < 3 or workload.acknowledged > 0
        daemon.kill()
        index = next(path for path in (tmp_path / "nvme").rglob("index") if path.is_dir())
        shutil.rmtree(index)
        daemon.run()
        there = workload.check(daemon.socket_path)
        assert there > 0, "the index was rebuilt from the segments"
    assert workload.acknowledged > 10 * LOOPS
