"""Engines that start, preempt, abort and finish requests at random over shared prefixes and few blocks, at a daemon that stops and
starts: whatever a load brings is the KV of exactly those tokens, and every request's load and saves come to an end.

The engines' rules: tests/support/random_engine.py. A failure names its seed.
"""

import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from daemon_process import DaemonProcess
from late_device import LateDevice
from random_engine import RandomEngine
from small_engine import BLOCK_TOKENS, Request

STEPS = 180


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """After a restart its blocks are on NVMe, from where they come in any order."""
    with DaemonProcess.start(tmp_path, {"dram.capacity": "16 MiB", "nvme.path": str(tmp_path / "nvme")}) as running:
        yield running


def new_request(chance: random.Random, names: Iterator[int]) -> Request:
    """Its prompt begins as many others do."""
    prefix = chance.randrange(3)
    tokens = [100 * prefix + i for i in range(chance.randrange(1, 6) * BLOCK_TOKENS)]
    tail = [chance.randrange(4) for _ in range(chance.randrange(2 * BLOCK_TOKENS))]
    return Request(f"r{next(names)}", tokens + tail, cache_salt=chance.choice([None, None, "a", "b"]))


def full_engines(socket: str, chance: random.Random) -> list[RandomEngine]:
    return [
        RandomEngine(socket, chance, "one", 1),
        RandomEngine(socket, chance, "one", 1, lease_bytes=1),
        RandomEngine(socket, chance, "two", 2, lease_bytes=8000, save_backlog_max=4),
    ]


def hybrid_engines(socket: str, chance: random.Random) -> list[RandomEngine]:
    """With windows that end inside a block, at its end, and one token behind it."""
    return [
        RandomEngine(socket, chance, "one", 1, (0, 2 * BLOCK_TOKENS), lease_bytes=1),
        RandomEngine(socket, chance, "one", 1, (0, 2 * BLOCK_TOKENS), capture_bytes=1),
        RandomEngine(socket, chance, "two", 2, (21, 0, BLOCK_TOKENS + 1), lease_bytes=8000, save_backlog_max=4),
    ]


def layerwise_engines(socket: str, chance: random.Random) -> list[RandomEngine]:
    return [
        RandomEngine(socket, chance, "one", 1, load_mode="layerwise"),
        RandomEngine(socket, chance, "one", 1, load_mode="layerwise", lease_bytes=20_000),
        RandomEngine(socket, chance, "two", 2, load_mode="layerwise"),
    ]


def device_engines(socket: str, chance: random.Random) -> list[RandomEngine]:
    """With KV on devices that do everything late (late_device.py); the last shares its blocks with one in memory."""
    return [
        RandomEngine(socket, chance, "one", 1, device=LateDevice(1)),
        RandomEngine(socket, chance, "one", 1, (0, 2 * BLOCK_TOKENS), device=LateDevice(2), lease_bytes=1),
        RandomEngine(socket, chance, "two", 2, device=LateDevice(3), lease_bytes=8000, save_backlog_max=4),
        RandomEngine(socket, chance, "two", 2),
    ]


@pytest.mark.parametrize(
    ("make", "seed"),
    [
        (full_engines, 0),
        (hybrid_engines, 0),
        *(
            pytest.param(make, seed, marks=pytest.mark.slow)
            for make, seed in (
                (full_engines, 1),
                (full_engines, 2),
                (hybrid_engines, 1),
                (layerwise_engines, 0),
                (device_engines, 0),
            )
        ),
    ],
)
def test_no_request_ever_gets_the_kv_of_other_tokens_and_each_comes_to_its_end(
    daemon: DaemonProcess, make: Callable[[str, random.Random], list[RandomEngine]], seed: int
) -> None:
    chance, names = random.Random(seed), count()
    engines = make(daemon.socket_path, chance)
    try:
        for step in range(STEPS):
            for engine in engines:
                disturb(engine, chance, names)
                engine.step()
            if step % 60 == 59:
                daemon.restart() if step % 120 == 59 else freeze(daemon, engines)
        for engine in engines:
            engine.settle()
        assert sum(engine.loaded_blocks for engine in engines) > 20, "it was no test of loads"
    finally:
        for engine in engines:
            engine.small.close()


def disturb(engine: RandomEngine, chance: random.Random, names: Iterator[int]) -> None:
    running = [one for one in engine.requests.values() if one.state != "aborted"]
    if len(running) < 5 and chance.random() < 0.5:
        engine.add(new_request(chance, names))
    if running and chance.random() < 0.05:
        engine.end(chance.choice(running), aborted=True)
    computing = [one for one in engine.requests.values() if one.state == "running"]
    if computing and chance.random() < 0.1:
        engine.preempt(chance.choice(computing))


def freeze(daemon: DaemonProcess, engines: list[RandomEngine]) -> None:
    """For some steps."""
    daemon.freeze()
    try:
        for engine in engines:
            for _ in range(3):
                engine.step()
    finally:
        daemon.thaw()
