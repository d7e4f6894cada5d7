"""Jobs through the dispatcher to real worker servers and a real daemon: the tokens are the engine's, whatever fails."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import torch
from daemon_process import DaemonProcess
from tiny_model import prompt_of, write_tiny_llama
from worker_server import SECRET, WorkerServerProcess

from mooncask.client.socket_path import http_socket_path
from mooncask.client.worker_api import Role, Sampling
from mooncask.conductor.serving.config import Config, LimitsSection, PolicySection, ServerSection, secret_of
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.job import Begun, Ended, Event, Job, Piece
from mooncask.conductor.serving.main import dispatching, listening
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.sampling import choose
from mooncask.errors import ContextTooLong, NoSuchModel

BLOCK = 16
PORT_SECONDS = 60.0
OPTIONS = {"load": "always", "block_tokens": str(BLOCK), "prefill_chunk": "64", "slots": "4", "slot_tokens": "1024"}


@dataclass
class World:
    """What outlives a test: a daemon, the model, and where the Conductor's workers' door is."""

    folder: Path
    daemon: DaemonProcess
    model_folder: Path
    model: Model
    number: int = 0

    def reference(self, job: Job) -> list[int]:
        tokens, answer = list(job.tokens), []
        for position in range(job.max_tokens):
            with torch.inference_mode():
                logits = self.model.module(input_ids=torch.tensor([tokens])).logits[0, -1].float().numpy()
            s = job.sampling
            answer.append(choose(logits, s.temperature, s.seed, position, s.top_p).token)
            tokens.append(answer[-1])
        return answer

    @contextlib.contextmanager
    def worker(self, role: str, conductor: str, **options: str) -> Iterator[WorkerServerProcess]:
        self.number += 1
        pages = f"unix:{http_socket_path(self.daemon.socket_path)}"
        more = {"conductor": conductor, "node": "n1", "node_pages": pages, **OPTIONS, **options}
        name = f"{role}-{self.number}"
        with WorkerServerProcess.start(
            self.folder, name, role, self.model_folder, self.daemon.socket_path, **more
        ) as worker:
            yield worker


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("dispatch")
    model = write_tiny_llama(folder / "tiny")
    with DaemonProcess.start(folder) as daemon:
        yield World(folder, daemon, model, load_model(model, "float32", BLOCK))


@contextlib.asynccontextmanager
async def conductor(**policy: object) -> AsyncIterator[tuple[LiveDispatcher, str]]:
    """A dispatcher and the URL at which workers register."""
    config = Config(
        server=ServerSection(workers_listen="127.0.0.1:0", worker_secret=SECRET),
        policy=PolicySection(admission="none"),
        limits=LimitsSection(inline_tokens=32, inline_prefill_tokens=64, prefix_seconds=1.0),
    )
    async with dispatching(config) as dispatcher:
        door = WorkersDoor(dispatcher.pools, secret_of(config.server)).application()
        async with listening(door, config.server.workers_listen, "server.workers_listen") as address:
            yield dispatcher, f"http://{address}"


def job(id: str, tokens: list[int], max_tokens: int = 8, **sampling: object) -> Job:
    return Job(
        id,
        "tiny",
        tokens,
        max_tokens,
        Sampling(**sampling),
        received_seconds=time.monotonic(),  # type: ignore[arg-type]
    )


async def until(condition: Callable[[], bool], what: str, seconds: float = PORT_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def tokens_of(events: list[Event]) -> list[int]:
    return [token for event in events if isinstance(event, Piece) for token in event.tokens]


async def run(dispatcher: LiveDispatcher, one: Job) -> list[Event]:
    return [event async for event in dispatcher.run(one)]


async def pools_ready(dispatcher: LiveDispatcher, prefills: int, decodes: int) -> None:
    def ready() -> bool:
        now = time.monotonic()
        able = dispatcher.pools.able
        return len(able("tiny", Role.PREFILL, now)) == prefills and len(able("tiny", Role.DECODE, now)) == decodes

    await until(ready, "the workers did not register")


async def test_one_worker_of_each_role_serves_what_an_engine_alone_would_say(world: World) -> None:
    async with conductor() as (dispatcher, url):
        with pytest.raises(NoSuchModel, match="none at all"):
            await run(dispatcher, job("none", [1, 2]))
        with world.worker("prefill", url), world.worker("decode", url) as decode:
            await pools_ready(dispatcher, 1, 1)
            long = job("long", prompt_of(300, seed=1), 12)
            events = await run(dispatcher, long)
            assert isinstance(events[0], Begun)
            assert events[0].prefill_worker.startswith("prefill")
            assert tokens_of(events) == world.reference(long)
            assert events[-1] == Ended("length", 12, 0, {})
            # A second turn: what was answered is a part of its prompt, and all of it is found.
            again = job("again", long.tokens + tokens_of(events) + prompt_of(20, seed=2), 6)
            events = await run(dispatcher, again)
            assert tokens_of(events) == world.reference(again)
            assert isinstance(events[-1], Ended)
            assert events[-1].cached_tokens == 304
            drawn = job("drawn", prompt_of(200, seed=3), 10, temperature=0.8, top_p=0.9, seed=5)
            assert tokens_of(await run(dispatcher, drawn)) == world.reference(drawn)
            with pytest.raises(ContextTooLong, match="1024 positions"):
                await run(dispatcher, job("too-long", prompt_of(1020), 10))
            many = [job(f"many-{i}", prompt_of(60 + 40 * i, seed=20 + i), 10) for i in range(8)]
            answers = await asyncio.gather(*(run(dispatcher, one) for one in many))
            assert [tokens_of(events) for events in answers] == [world.reference(one) for one in many]
            # A client that goes away ends its request at the workers.
            leaving = dispatcher.run(job("leaves", prompt_of(100, seed=4), 800))
            async for event in leaving:
                if isinstance(event, Piece):
                    break
            await leaving.aclose()
            await until(lambda: not decode.state().report.requests, "the worker goes on answering")
            assert dispatcher.running == 0
            assert not dispatcher.books.prefills
            assert not dispatcher.books.decodes
            decision = dispatcher.history.get("again")
            assert decision is not None
            assert decision.matched_tokens == 304
            assert dispatcher.history.outcomes == {"length": 11, "cancelled": 1}


@pytest.mark.slow
async def test_a_decode_worker_that_dies_in_the_middle_costs_no_token_and_repeats_none(world: World) -> None:
    async with conductor() as (dispatcher, url):
        with (
            world.worker("prefill", url),
            world.worker("decode", url) as first,
            world.worker("decode", url) as second,
        ):
            await pools_ready(dispatcher, 1, 2)
            workers = {
                worker.name: process
                for worker, process in zip(
                    sorted(
                        dispatcher.pools.able("tiny", Role.DECODE, time.monotonic()),
                        key=lambda w: int(w.name.split("-")[1]),
                    ),
                    (first, second),
                    strict=True,
                )
            }
            one = job("survives", prompt_of(150, seed=6), 300, temperature=0.7, seed=9)
            events: list[Event] = []
            async for event in dispatcher.run(one):
                events.append(event)
                if len(tokens_of(events)) == 20 and isinstance(event, Piece):
                    decision = dispatcher.history.get("survives")
                    assert decision is not None
                    if decision.attempts == 1:
                        workers[decision.decode_worker].kill()
            assert tokens_of(events) == world.reference(one)
            decision = dispatcher.history.get("survives")
            assert decision is not None
            assert decision.attempts == 2
            assert sum(isinstance(event, Begun) for event in events) == 1


@pytest.mark.slow
async def test_a_prefill_worker_that_dies_is_replaced_by_another(world: World) -> None:
    async with conductor() as (dispatcher, url):
        with (
            world.worker("prefill", url) as first,
            world.worker("prefill", url) as second,
            world.worker("decode", url),
        ):
            await pools_ready(dispatcher, 2, 1)
            names = sorted(
                (w.name for w in dispatcher.pools.able("tiny", Role.PREFILL, time.monotonic())),
                key=lambda name: int(name.split("-")[1]),
            )
            processes = dict(zip(names, (first, second), strict=True))
            one = job("moves", prompt_of(900, seed=7), 5)
            task = asyncio.create_task(run(dispatcher, one))
            await until(lambda: bool(dispatcher.books.prefills), "it was not placed")
            processes[dispatcher.books.prefills["moves"].worker].kill()
            assert tokens_of(await task) == world.reference(one)
