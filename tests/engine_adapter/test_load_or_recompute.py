"""A tier or another node that delivers more slowly than the worker computes is not used for long, and the daemon can say so."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from local_daemon import LocalDaemon, running_daemon
from peer_proxy import proxy_to
from tier_doubles import PacedTier
from tiny_model import prompt_of, write_tiny_llama

from mooncask.client.control import WhyRequest
from mooncask.daemon.metrics import Metrics
from mooncask.daemon.peers.cluster import Cluster
from mooncask.engine_adapter.transformers.decode import DecodeWorker
from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.messages import DecodeResult, Request
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink

BLOCK = 16
BLOCKS = 16
TOKENS = BLOCKS * BLOCK + 1
SLOW = 100_000.0
"""Bytes a second: less than one block of the tiny model in the time that it computes the whole prompt in."""
REQUEST = Request("1", prompt_of(TOKENS, 7), max_tokens=2, write_back=False)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny"), "float32", BLOCK)


@dataclass
class Worker:
    engine: Engine

    async def store(self) -> None:
        await asyncio.to_thread(PrefillWorker(self.engine).run, REQUEST)

    async def answer(self) -> DecodeResult:
        return await asyncio.to_thread(DecodeWorker(self.engine).run, REQUEST)


@asynccontextmanager
async def worker_at(daemon: LocalDaemon, model: Model) -> AsyncIterator[Worker]:
    link = StoreLink(StoreAddress(daemon.path), "tests", model.family, model.layout)
    engine = Engine(model, link, Options())
    try:
        await asyncio.to_thread(engine.warm_up)
        yield Worker(engine)
    finally:
        await asyncio.to_thread(link.close)


@pytest.fixture
def nvme(tmp_path: Path) -> Iterator[dict[str, object]]:
    yield {"nvme.path": str(tmp_path / "nvme"), "dram.capacity": "64MiB"}


@asynccontextmanager
async def with_all_on_nvme(settings: dict[str, object], model: Model) -> AsyncIterator[LocalDaemon]:
    """A daemon that was restarted: its blocks are on NVMe only."""
    async with running_daemon(settings) as daemon, worker_at(daemon, model) as worker:
        await worker.store()
    async with running_daemon(settings) as daemon:
        yield daemon


async def told_by(daemon: LocalDaemon, model: Model) -> str:
    """What `mooncask why` says of the prompt."""
    (namespace,) = daemon.store.namespaces()
    why = await daemon.plane.insight.why(namespace, WhyRequest(namespace=namespace.spec.name, tokens=REQUEST.tokens))
    return why.recomputed


async def test_a_tier_slower_than_computing_is_left_alone_after_one_slow_load(
    nvme: dict[str, object], model: Model
) -> None:
    async with with_all_on_nvme(nvme, model) as daemon, worker_at(daemon, model) as worker:
        bring_up = daemon.store._parts.bring_up
        bring_up._nvme = PacedTier(bring_up._nvme, SLOW)
        first = await worker.answer()
        assert first.decision.load_blocks == BLOCKS, "nothing is known of the tier yet but the daemon's guess"
        assert first.loaded.total < BLOCKS * BLOCK, "it was given up in the time that computing takes"
        later = await worker.answer()
        assert (later.decision.load_blocks, later.decision.reason) == (
            later.loaded.dram // BLOCK,
            later.decision.reason,
        )
        assert later.decision.load_blocks < BLOCKS and later.loaded.nvme == 0
        assert later.tokens == first.tokens
        told = await told_by(daemon, model)
        assert "although in nvme" in told and "for loading and" in told
        metrics = Metrics(daemon.plane, {}).gather().text().decode()
        (line,) = [line for line in metrics.splitlines() if line.startswith("mooncask_recomputed_blocks_total")]
        assert 'tier="nvme"' in line and float(line.split()[-1]) == BLOCKS - later.decision.load_blocks


async def test_the_same_tier_is_used_when_it_is_fast_and_nothing_is_told(nvme: dict[str, object], model: Model) -> None:
    async with with_all_on_nvme(nvme, model) as daemon, worker_at(daemon, model) as worker:
        answer = await worker.answer()
        assert answer.loaded.nvme == BLOCKS * BLOCK
        assert await told_by(daemon, model) == ""
        assert not daemon.plane.insight.recomputed.blocks


async def test_another_node_slower_than_computing_is_left_alone_too(model: Model) -> None:
    async with running_daemon({"cluster.listen": "127.0.0.1:0", "node.name": "holder"}) as holder:
        far = await Cluster.open(holder.service, holder.config)
        async with worker_at(holder, model) as worker, proxy_to(far.endpoint.identity.address) as proxy:
            await worker.store()
            proxy.bytes_per_second = SLOW
            settings = {"cluster.listen": "127.0.0.1:0", "node.name": "reader", "cluster.peers": [proxy.address]}
            async with running_daemon(settings) as reader:
                near = await Cluster.open(reader.service, reader.config)
                async with worker_at(reader, model) as mine:
                    first = await mine.answer()
                    assert first.decision.hit_blocks == BLOCKS and first.loaded.total < BLOCKS * BLOCK
                    later = await mine.answer()
                    assert later.loaded.peer == 0 and later.tokens == first.tokens
                    assert "although in peer" in await told_by(reader, model)
                    assert reader.plane.insight.recomputed.blocks["peer"] > 0
                await near.close()
        await far.close()
