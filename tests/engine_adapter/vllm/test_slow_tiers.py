"""A tier that delivers more slowly than the engine computes is not waited for twice, and the daemon can say what was computed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")

from local_daemon import LocalDaemon, running_daemon
from small_engine import BLOCK_TOKENS, Request, SmallEngine
from tier_doubles import PacedTier

from mooncask.client.control import WhyRequest
from mooncask.daemon.metrics import Metrics

T = TypeVar("T")
BLOCKS = 12
SLOW = 20_000.0
"""Bytes a second: six blocks of the small engine, which computes all of them in milliseconds."""
TOKENS = [7000 + i for i in range(BLOCKS * BLOCK_TOKENS + 3)]
IDS = list(range(BLOCKS + 1))


@asynccontextmanager
async def with_all_on_nvme(folder: Path, bytes_per_second: float | None) -> AsyncIterator[LocalDaemon]:
    """A daemon that was restarted: what an engine computed is on NVMe only."""
    settings = {"nvme.path": str(folder / "nvme")}
    async with running_daemon(settings) as daemon:
        await asyncio.to_thread(store, daemon.path)
    async with running_daemon(settings) as daemon:
        bring_up = daemon.store._parts.bring_up
        if bytes_per_second is not None:
            bring_up._nvme = PacedTier(bring_up._nvme, bytes_per_second)
        yield daemon


def store(socket: str) -> None:
    with SmallEngine(socket) as engine:
        compute(engine, Request("stored", list(TOKENS)))
        assert engine.counters.totals["saved_blocks"] == BLOCKS


def compute(engine: SmallEngine, one: Request) -> None:
    engine.scheduler.arrived(one)
    engine.compute(one, IDS)
    engine.settle()


def asked(engine: SmallEngine, name: str) -> int:
    """The blocks that a look-up finds worth loading, and then nobody loads."""
    one = Request(name, list(TOKENS))
    engine.scheduler.arrived(one)
    tokens = engine.matched(one)
    engine.scheduler.finished(one, aborted=True)
    return tokens // BLOCK_TOKENS


async def in_engine(daemon: LocalDaemon, use: Callable[[SmallEngine], T], **settings: object) -> T:
    def run() -> T:
        with SmallEngine(daemon.path, load="auto", **settings) as engine:
            compute(engine, Request("speed", [9000 + i for i in range(200)]))
            return use(engine)

    return await asyncio.to_thread(run)


async def told_by(daemon: LocalDaemon) -> str:
    (namespace,) = daemon.store.namespaces()
    why = await daemon.plane.insight.why(namespace, WhyRequest(namespace=namespace.spec.name, tokens=TOKENS))
    return why.recomputed


async def test_a_tier_that_was_late_is_left_from_then_on_and_why_and_metrics_say_so(tmp_path: Path) -> None:
    def twice(engine: SmallEngine) -> tuple[int, int, int]:
        return asked(engine, "first"), asked(engine, "second"), engine.counters.totals["slow_loads"]

    async with with_all_on_nvme(tmp_path, SLOW) as daemon:
        first, second, slow = await in_engine(daemon, twice, deadline_ms=250, threads=1)
        assert first < BLOCKS, (
            "it was given up at the look-up's deadline, which one thread learns before it begins the second"
        )
        assert second < BLOCKS - 2, "what is still on NVMe is computed"
        assert slow <= 1
        assert "although in nvme" in await told_by(daemon)
        metrics = Metrics(daemon.plane, {}).gather().text().decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("mooncask_recomputed_blocks_total")]
        assert 'tier="nvme"' in line and float(line.split()[-1]) >= BLOCKS - 2


async def test_the_same_tier_is_used_when_it_is_fast_and_nothing_is_told(tmp_path: Path) -> None:
    async with with_all_on_nvme(tmp_path, None) as daemon:
        assert await in_engine(daemon, lambda engine: asked(engine, "first")) == BLOCKS
        assert await told_by(daemon) == ""
