"""One run of `mooncask bench mount`: blocks read and listed through a mount, beside a plain mfusepy file system and plain files.

All three hold the same bytes in memory. "Cold" means that the kernel has none of a file's pages; "again" that it has all.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mooncask.client.local import LocalClient
from mooncask.errors import ConfigError, CorruptBlock
from mooncask.fuse_mount.mounts import find_mount
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.bench.memory_limits import private_memory
from mooncask.tools.bench.plan import KIB, MIB
from mooncask.tools.bench.result import LIMIT, STORE, Findings, beside, measured
from mooncask.tools.bench.samples import take_turns, timed
from mooncask.tools.bench.targets import AtMost, ShareOfLimit, judge_measure

COLD, AGAIN, LIST, LIST_LONG = "mount: read, cold", "mount: read again", "mount: ls", "mount: ls with attributes"
PLAIN_COLD, PLAIN_AGAIN = "plain mfusepy: read, cold", "plain mfusepy: read again"
FILE_AGAIN, PLAIN_LIST = "plain files: read again", "plain mfusepy: ls"
MOUNTED_SECONDS_MAX = 30.0
READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class MountPlan:
    blocks: int
    block_bytes: int
    listed: int
    rounds: int
    judged: bool = True

    @property
    def targets(self) -> Mapping[str, AtMost | ShareOfLimit]:
        """1 GB/s where a plain mfusepy file system reads 1.3; the second time, page-cache speed with opening; a second for ls."""
        return {COLD: ShareOfLimit(0.77), AGAIN: ShareOfLimit(0.5), LIST: AtMost(1e6)} if self.judged else {}


FULL = MountPlan(blocks=128, block_bytes=2 * MIB, listed=10_000, rounds=9)
QUICK = MountPlan(blocks=4, block_bytes=64 * KIB, listed=50, rounds=3, judged=False)


def run(plan: MountPlan, folder: Path, progress: Callable[[str], None]) -> Findings:
    """`folder` is its own, on a file system in memory. Raises ConfigError where nothing can be mounted."""
    findings = Findings()
    plain = folder / "plain"
    plain.mkdir()
    settings = {"dram_capacity": str(plan.blocks * plan.block_bytes * 4 + 256 * MIB), "http_listen": "127.0.0.1:0"}
    with DaemonProcess(folder, settings) as daemon:
        with daemon.connect() as client:
            progress("filling")
            _fill(client, plan, plain)
        with _mounted(daemon.socket, folder / "mnt") as mount, _passed_through(plain, folder / "through") as through:
            progress("reading")
            _measure_reading(plan, mount / "blocks2m" / "blocks", through, plain, findings)
            progress("listing")
            _measure_listing(plan, mount / "many" / "blocks", findings)
    return findings


def _fill(client: LocalClient, plan: MountPlan, plain: Path) -> None:
    memory = private_memory(plan.block_bytes * 2)
    namespace = client.open_namespace("blocks2m", {"model": "bench"}, mode="memory")
    for number in range(plan.blocks):
        key, payload = number.to_bytes(16, "big"), np.roll(memory, number * 4096)[: plan.block_bytes]
        client.put(namespace, [key], [payload])
        (plain / key.hex()).write_bytes(payload.tobytes())
    many = client.open_namespace("many", {"model": "many"}, mode="memory")
    keys = [(number * 0x9E3779B97F4A7C15 % (1 << 64)).to_bytes(16, "big") for number in range(plan.listed)]
    client.put(many, keys, [bytes(64)] * len(keys))


def _measure_reading(plan: MountPlan, mount: Path, through: Path, plain: Path, findings: Findings) -> None:
    names = sorted(path.name for path in plain.iterdir())
    for name in names:  # a fast wrong byte would be no figure
        if (mount / name).read_bytes() != (plain / name).read_bytes():
            raise CorruptBlock(name, "dram", "its file has other bytes")

    def reader(folder: Path, cold: str, again: str) -> Callable[[int], Mapping[str, float]]:
        paths = [str(folder / name) for name in names]

        def read(_: int) -> Mapping[str, float]:
            _forget_pages(paths)
            with timed() as first:
                _read_all(paths)
            with timed() as second:
                _read_all(paths)
            return {cold: first.seconds, again: second.seconds}

        return read

    def read_plain(_: int) -> Mapping[str, float]:
        with timed() as watch:
            _read_all([str(plain / name) for name in names])
        return {FILE_AGAIN: watch.seconds}

    found = take_turns([reader(mount, COLD, AGAIN), reader(through, PLAIN_COLD, PLAIN_AGAIN), read_plain], plan.rounds)
    figures = {
        name: measured(STORE if name in (COLD, AGAIN) else LIMIT, name, samples, plan.block_bytes, plan.blocks)
        for name, samples in found.items()
    }
    for name, limit in ((COLD, PLAIN_COLD), (AGAIN, FILE_AGAIN)):
        figures[name] = judge_measure(beside(figures[name], figures[limit]), plan.targets)
    findings.measures += figures.values()


def _measure_listing(plan: MountPlan, folder: Path, findings: Findings) -> None:
    def names(_: int) -> Mapping[str, float]:
        with timed() as watch:
            found = len([entry.name for entry in os.scandir(folder)])
        assert found == plan.listed, found
        return {LIST: watch.seconds}

    def attributes(_: int) -> Mapping[str, float]:
        with timed() as watch:
            found = sum(1 for entry in os.scandir(folder) if entry.stat().st_size == 64)
        assert found == plan.listed, found
        return {LIST_LONG: watch.seconds}

    for name, samples in take_turns([names, attributes], plan.rounds).items():
        figure = measured(STORE, name, samples, 0, plan.listed, moves_bytes=False)
        findings.measures.append(judge_measure(figure, plan.targets))


def _read_all(paths: list[str]) -> None:
    buffer = [bytearray(READ_BYTES)]
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        while os.readv(descriptor, buffer):
            pass
        os.close(descriptor)


def _forget_pages(paths: list[str]) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


@contextmanager
def _mounted(socket: Path, path: Path) -> Iterator[Path]:
    path.mkdir()
    command = [sys.executable, "-m", "mooncask.tools", "mount", str(path), "--socket", str(socket)]
    with _serving(command, path):
        yield path


@contextmanager
def _passed_through(source: Path, path: Path) -> Iterator[Path]:
    path.mkdir()
    with _serving([sys.executable, "-m", "mooncask.tools.bench.passthrough", str(source), str(path)], path):
        yield path


@contextmanager
def _serving(command: list[str], path: Path) -> Iterator[None]:
    process = subprocess.Popen(command, env={**os.environ, "FUSE_LIBRARY_NAME": "fuse3"})
    try:
        deadline = time.monotonic() + MOUNTED_SECONDS_MAX
        while find_mount(str(path)) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise ConfigError("mount", str(path), f"its process did not mount (status {process.poll()})")
            time.sleep(0.01)
        path.stat()
        yield
    finally:
        subprocess.run(["fusermount3", "-u", "-z", str(path)], check=False, capture_output=True)
        try:
            process.wait(MOUNTED_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
