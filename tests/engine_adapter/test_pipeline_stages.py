"""Prefill by several processes that have a part of the layers each: the stored bytes are those of one process, to the bit, and
whatever becomes of a stage, nothing wrong is stored and nothing stays reserved."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import numpy as np
import psutil
import requests
from daemon_process import DaemonProcess
from tiny_model import prompt_of, write_tiny_llama
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.local import LocalClient
from mooncask.client.wire import Tier
from mooncask.client.worker_api import (
    Admitted,
    Failure,
    PrefillCall,
    PrefillDone,
    Role,
    Started,
)
from mooncask.engine_adapter.transformers.decode import DecodeWorker
from mooncask.engine_adapter.transformers.engine import Engine, Options
from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.pipeline.head import PipelineHead
from mooncask.engine_adapter.transformers.pipeline.stages import StagePlan
from mooncask.engine_adapter.transformers.prefill import Prefilling, RunningPrefill, WholeModel
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink, StoreSession
from mooncask.errors import WorkerUnavailable

BLOCK = 16
CHUNK = 24
"""No multiple of a block: blocks begin in one chunk and end in the next."""
LAYERS = 4
OPTIONS = Options(CHUNK, LoadPolicy.ALWAYS)
SERVER = {"load": "always", "block_tokens": str(BLOCK), "prefill_chunk": str(CHUNK)}
SILENT_SECONDS = 20.0


@dataclass
class World:
    folder: Path
    daemon: DaemonProcess
    whole: WholeModel
    heads: dict[int, PipelineHead]
    decode: DecodeWorker

    def head(self, stages: int) -> PipelineHead:
        """Started when it is first asked for."""
        if stages not in self.heads:
            store, model = StoreAddress(self.daemon.socket_path), self.whole.model
            plan = StagePlan(self.folder / "tiny", model, stages, store, f"pipeline of {stages}", 1, SILENT_SECONDS)
            self.heads[stages] = PipelineHead(plan, OPTIONS)
        return self.heads[stages]

    def on(self, stages: int) -> Prefilling:
        return self.whole if stages == 1 else self.head(stages)

    def begin(
        self, stages: int, tokens: list[int], salt: str, wanted: Callable[[], bool] = lambda: True
    ) -> tuple[RunningPrefill, StoreSession, list[bytes]]:
        engine = self.on(stages)
        session = engine.link.session()
        keys = session.keys(tokens, salt)
        return engine.job(session, tokens, keys, wanted), session, keys

    def prefill(self, stages: int, tokens: list[int], salt: str) -> RunningPrefill:
        job, session, keys = self.begin(stages, tokens, salt)
        job.run(session.match(keys))
        assert session.faults == {}
        return job

    def stored(self, tokens: list[int], salt: str) -> list[bytes]:
        """The bytes of each block that there is."""
        session = self.whole.link.session()
        keys = session.keys(tokens, salt)
        client, namespace = self.whole.link.connect()
        with client.acquire(namespace, keys) as blocks:
            return [bytes(block.memory) for block in blocks if block is not None]

    def nothing_is_held(self) -> bool:
        """No reservation and no lease of anybody."""
        client = self.whole.link.connect()[0]
        client.flush()
        (dram,) = (tier for tier in client.status().tiers if tier.tier == Tier.DRAM)
        return dram.leased_bytes == 0 and dram.reserved_bytes == 0


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("stages")
    model = write_tiny_llama(folder / "tiny", num_hidden_layers=LAYERS)
    with ExitStack() as stack:
        # Memory only: a block on its way to a disk would be held by the daemon itself.
        daemon = stack.enter_context(DaemonProcess.start(folder, {"nvme.path": ""}))
        loaded = load_model(model, "float32", BLOCK)
        link = StoreLink(StoreAddress(daemon.socket_path), "whole", loaded.family, loaded.layout)
        engine = Engine(loaded, link, OPTIONS)
        stack.callback(engine.close)
        found = World(folder, daemon, WholeModel(engine), {}, DecodeWorker(engine))
        stack.callback(lambda: [head.close() for head in found.heads.values()])
        yield found


@pytest.fixture(autouse=True)
def leaves_nothing_behind(world: World) -> Iterator[None]:
    """In place of the general check, which would take stages that were started again for a leak."""
    before = others(world)
    yield
    for head in world.heads.values():
        head.stages.ready()
    assert psutil.wait_procs(others(world) - before, 5.0)[1] == []


def others(world: World) -> set[psutil.Process]:
    """Children that are no stage of now."""
    ours = {world.daemon.pid, *(pid for head in world.heads.values() for pid in head.stages.pids)}
    return {child for child in psutil.Process().children(recursive=True) if child.pid not in ours}


def until(condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


# --- the same bytes --------------------------------------------------------------------------------------------------


TWO_OR_THREE = pytest.mark.parametrize("stages", [2, pytest.param(3, marks=pytest.mark.slow)])


@TWO_OR_THREE
def test_what_several_stages_store_is_what_one_process_stores_to_the_bit(world: World, stages: int) -> None:
    for tokens in (15, 16, 333):
        prompt, salts = prompt_of(tokens, seed=tokens), (f"one {stages} {tokens}", f"several {stages} {tokens}")
        for by, salt in zip((1, stages), salts, strict=True):
            job = world.prefill(by, prompt, salt)
            assert (job.computed, job.stored) == (tokens // BLOCK * BLOCK, tokens // BLOCK)
        one, several = (world.stored(prompt, salt) for salt in salts)
        assert len(one) == tokens // BLOCK
        assert several == one
    until(world.nothing_is_held, "every stage gives its places back")


def test_an_answer_over_blocks_of_several_stages_is_that_of_an_engine_without_a_store(world: World) -> None:
    request = Request("one", prompt_of(300, seed=1), max_tokens=20, cache_salt="answer", write_back=False)
    world.prefill(2, request.tokens, "answer")
    answer = world.decode.run(request)
    alone = world.decode.run(Request("two", request.tokens, max_tokens=20, use_store=False))
    assert answer.loaded.total == 288
    assert answer.tokens == alone.tokens


@TWO_OR_THREE
def test_every_stage_loads_its_layers_of_a_prefix_and_only_the_rest_is_computed(world: World, stages: int) -> None:
    first = prompt_of(250, seed=2)
    second = first[:170] + prompt_of(200, seed=3)
    for by, salt in ((1, f"prefix one {stages}"), (stages, f"prefix {stages}")):
        world.prefill(by, first, salt)
        job = world.prefill(by, second, salt)
        assert (job.computed, job.stored) == (368 - 160, 13)
    assert world.stored(second, f"prefix {stages}") == world.stored(second, f"prefix one {stages}")


def test_a_prefix_that_is_gone_again_when_the_stages_ask_for_it_is_computed(world: World) -> None:
    prompt = prompt_of(120, seed=4)
    world.prefill(2, prompt, "gone")
    want = world.stored(prompt, "gone")
    job, session, keys = world.begin(2, prompt[:100] + prompt_of(60, seed=5), "gone")
    hit = session.match(keys)
    client, namespace = world.whole.link.connect()
    assert client.evict(namespace, keys[3:4]) == 1
    job.run(hit)
    assert job.computed == 160 - 3 * BLOCK
    assert world.stored(prompt, "gone")[:3] == want[:3]
    found = np.frombuffer(world.stored(prompt, "gone")[3], np.float32)
    np.testing.assert_allclose(found, np.frombuffer(want[3], np.float32), rtol=1e-3, atol=1e-4)


def test_who_waits_is_told_of_layers_as_stage_after_stage_has_written_them(world: World) -> None:
    prompt, seen, found = prompt_of(48, seed=6), [], []
    job, session, keys = world.begin(2, prompt, "waits")
    session.expect(keys, 30.0)
    with LocalClient.connect(world.daemon.socket_path, populate=False) as client:
        namespace = client.open_namespace(family=world.whole.model.family)

        def wait() -> None:
            told = lambda index, layer, layers: seen.append((layer, layers)) if index == 1 else None
            with client.acquire(namespace, keys, deadline_seconds=30, wait=True, progress=told) as blocks:
                found.append(blocks.prefix)

        waiter = threading.Thread(target=wait)
        waiter.start()
        job.run(session.match(keys))
        waiter.join()
    assert found == [3]
    assert seen == sorted(seen)


# --- what goes wrong -------------------------------------------------------------------------------------------------


def after(calls: int, act: Callable[[], None]) -> Callable[[], bool]:
    """A `wanted` that does something when it is asked for the so manieth time: between two chunks."""
    asked = 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        if asked == calls:
            act()
        return True

    return wanted


@pytest.mark.parametrize("stage", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_killed_stage_ends_the_prefill_and_is_replaced(world: World, stage: int) -> None:
    prompt, salt = prompt_of(400, seed=7), f"killed {stage}"
    pids = world.head(2).stages.pids
    kill = after(3, lambda: os.kill(pids[stage], signal.SIGKILL))
    job, session, keys = world.begin(2, prompt, salt, kill)
    with pytest.raises(WorkerUnavailable, match="pipeline"):
        job.run(session.match(keys))
    until(world.nothing_is_held, "the reservation is given up")
    world.prefill(1, prompt, f"{salt}, one process")
    want = world.stored(prompt, f"{salt}, one process")
    kept = world.stored(prompt, salt)
    assert len(kept) < len(want)
    assert kept == want[: len(kept)], "what had been committed is right"
    assert set(world.head(2).stages.pids).isdisjoint(pids)
    world.prefill(2, prompt, f"{salt}, again")
    assert world.stored(prompt, f"{salt}, again") == want


@pytest.mark.slow
def test_a_stage_that_died_while_there_was_nothing_to_do_is_replaced_before_the_next_prefill(world: World) -> None:
    os.kill(world.head(2).stages.pids[1], signal.SIGKILL)
    until(lambda: psutil.Process(world.head(2).stages.pids[1]).status() == psutil.STATUS_ZOMBIE, "it dies")
    assert world.prefill(2, prompt_of(100, seed=8), "idle").stored == 6


def test_a_prefill_that_nobody_wants_any_more_ends_between_chunks_and_the_stages_live_on(world: World) -> None:
    prompt, pids, asked = prompt_of(800, seed=9), world.head(2).stages.pids, 0

    def wanted() -> bool:
        nonlocal asked
        asked += 1
        return asked < 4

    job, session, keys = world.begin(2, prompt, "cancelled", wanted)
    job.run(session.match(keys))
    assert 0 < job.computed < 800
    assert job.stored == job.computed // BLOCK
    until(world.nothing_is_held, "what was under way is committed")
    assert world.prefill(2, prompt, "cancelled").computed == 800 - job.stored * BLOCK
    assert world.head(2).stages.pids == pids


@pytest.mark.slow
def test_a_stage_that_is_stuck_ends_the_prefill_as_a_dead_one_does(world: World) -> None:
    stop = after(2, lambda: os.kill(world.head(3).stages.pids[2], signal.SIGSTOP))
    job, session, keys = world.begin(3, prompt_of(200, seed=10), "stuck", stop)
    with pytest.raises(WorkerUnavailable, match="said nothing for"):
        job.run(session.match(keys))
    until(world.nothing_is_held, "the reservation is given up")
    assert world.prefill(3, prompt_of(200, seed=10), "stuck").stored > 0


# --- as a worker -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_worker_of_two_stages_prefills_for_a_decode_worker_and_keeps_its_role(world: World, tmp_path: Path) -> None:
    model, prompt = world.folder / "tiny", prompt_of(200, seed=11)
    start = WorkerServerProcess.start
    with start(tmp_path, "p", "prefill", model, world.daemon.socket_path, pipeline="2", **SERVER) as prefill:
        lines = prefill.lines(PrefillCall(id="p", tokens=prompt))
        told = [type(line) for line in lines]
        assert (told[0], Started in told, told[-1]) == (Admitted, True, PrefillDone)
        assert isinstance(done := lines[-1], PrefillDone)
        assert (done.computed_tokens, done.stored_blocks, done.faults) == (192, 12, {})
        answer = world.decode.run(Request("loaded", prompt, write_back=False))
        assert answer.loaded.total == 192
        assert answer.tokens == world.decode.run(Request("computed", prompt, use_store=False)).tokens
        refused = requests.post(
            f"{prefill.address}/v1/role", json={"role": "decode"}, headers={"Authorization": f"Bearer {SECRET}"}
        )
        assert (refused.status_code, refused.json()["error"]) == (400, "BadRequest")
        assert prefill.state().registration.role is Role.PREFILL
        victims = psutil.Process(prefill.process.pid).children()
        assert len(victims) == 2
        victims[1].kill()
        assert isinstance(prefill.lines(PrefillCall(id="q", tokens=prompt_of(100, seed=12)))[-1], PrefillDone | Failure)
        again = prefill.lines(PrefillCall(id="r", tokens=prompt_of(100, seed=13)))[-1]
        assert isinstance(again, PrefillDone)
        assert again.stored_blocks == 6


@pytest.mark.slow
def test_the_stages_of_a_killed_worker_end_and_hold_nothing(world: World, tmp_path: Path) -> None:
    model = world.folder / "tiny"
    with WorkerServerProcess.start(
        tmp_path, "p", "prefill", model, world.daemon.socket_path, pipeline="2", **SERVER
    ) as worker:
        stages = psutil.Process(worker.process.pid).children()
        with worker.open(PrefillCall(id="long", tokens=prompt_of(2000, seed=14))) as response:
            next(response.iter_lines())
            worker.kill()
        assert psutil.wait_procs(stages, 20.0)[1] == []
        until(world.nothing_is_held, "the daemon frees what they held")
