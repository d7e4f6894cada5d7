"""The power goes: all that was not fsynced is gone too. A real daemon on a file system that forgets it.

SIGKILL alone can't show a missing fsync, since the kernel keeps what was written.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from crash_workload import CrashWorkload
from daemon_process import DaemonProcess

from mooncask.errors import MooncaskError

SCRIPT = Path(__file__).parents[1] / "support" / "powercut_fs.py"
SETTINGS = {"nvme.capacity": "64 MiB", "nvme.segment": "8 MiB", "dram.capacity": "32 MiB"}


def why_not() -> str:
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "needs /dev/fuse (root)"
    if shutil.which("fusermount3") is None:
        return "needs Debian's fuse3; make test-deps installs it"
    return ""


pytestmark = [pytest.mark.fuse, pytest.mark.skipif(bool(why_not()), reason=why_not())]


class Disk:
    """A mounted folder whose power can be cut. `backing` is what is on the disk."""

    def __init__(self, folder: Path, seed: int | None) -> None:
        self.backing, self.mount = folder / "disk", folder / "mount"
        self.backing.mkdir()
        self.mount.mkdir()
        arguments = [] if seed is None else [str(seed)]
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(self.backing), str(self.mount), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "mounted\n"

    def cut(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    def unmount(self) -> None:
        if self.process.poll() is None:
            subprocess.run(["fusermount3", "-u", "-z", str(self.mount)], check=False)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def mounted(folder: Path, seed: int | None) -> Iterator[Disk]:
    disk = Disk(folder, seed)
    try:
        yield disk
    finally:
        disk.unmount()


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_what_was_acknowledged_survives_a_power_cut(seed: int | None, tmp_path: Path) -> None:
    """With no seed all unsynced changes are lost; with one, a random half of them and parts of the others."""
    workload = CrashWorkload(seed or 7)
    with mounted(tmp_path, seed) as disk:
        settings = {**SETTINGS, "nvme.path": str(disk.mount / "nvme")}
        with DaemonProcess.start(tmp_path, settings) as daemon:
            workload.run(daemon.socket_path, steps=15)
            timer = threading.Timer(0.3, disk.cut)
            timer.start()
            run_until_errors(workload, daemon)
            timer.join()
            daemon.kill()
        disk.unmount()
        assert workload.acknowledged > 0
        with DaemonProcess.start(tmp_path, {**SETTINGS, "nvme.path": str(disk.backing / "nvme")}) as daemon:
            there = workload.check(daemon.socket_path)
            assert there > 0
            daemon.kill()
            shutil.rmtree(disk.backing / "nvme" / "index")
            daemon.run()
            workload.check(daemon.socket_path)


def run_until_errors(workload: CrashWorkload, daemon: DaemonProcess) -> None:
    """Without power every durable write fails: nothing is acknowledged from then on."""
    try:
        workload.run(daemon.socket_path, steps=100_000)
    except MooncaskError:
        return
    raise AssertionError("writes went on without power")
