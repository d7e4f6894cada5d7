"""A dispatcher over scripted workers, all in one event loop."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from scripted_worker import ScriptedWorker

from mooncask.client.worker_api import Role, Sampling
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Job
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.workers_door import WorkersDoor

SECRET = "scripted"
PAUSES = (0.0, 0.01, 0.02, 0.04)
SILENCE_SECONDS = 0.25


async def until(condition: Callable[[], object], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.005)


@dataclass
class World:
    dispatcher: LiveDispatcher
    workers: list[ScriptedWorker]

    def fault(self, job: str, role: Role, faults: Sequence[str]) -> None:
        """Used up in this order by whichever worker of the role is asked."""
        left = deque(faults)
        for worker in self.workers:
            worker.faults[job, role] = left

    async def assert_nothing_left(self) -> None:
        await until(lambda: not any(worker.running for worker in self.workers), "calls go on at the workers")
        assert not self.dispatcher.books.prefills
        assert not self.dispatcher.books.decodes
        assert self.dispatcher.running == self.dispatcher.waiting == 0


@contextlib.asynccontextmanager
async def world(
    prefills: int = 2, decodes: int = 2, slots: int = 4, waiting_max: int = 64, ttft_seconds: float = 5.0
) -> AsyncIterator[World]:
    pools, client, prefixes = Pools(), WorkerClient(SECRET, SILENCE_SECONDS), Prefixes(0.5)
    classes = {"low": Slo(ttft_seconds, 1.0), "high": Slo(ttft_seconds, 1.0)}
    table = PolicyTable(PolicySettings("kvcache-centric", "none", 1.0, 1.5, classes, "low"))
    limits = Limits(waiting_max=waiting_max, inline_tokens=0, pauses_seconds=PAUSES)
    dispatcher = LiveDispatcher(pools, client, prefixes, table, limits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.push_async_callback(prefixes.close)
        door = WorkersDoor(pools, SECRET).application()
        address = await stack.enter_async_context(listening(door, "127.0.0.1:0", "workers"))
        names = [(f"p{i}", Role.PREFILL) for i in range(prefills)] + [(f"d{i}", Role.DECODE) for i in range(decodes)]
        workers = [
            await stack.enter_async_context(
                ScriptedWorker(f"http://{address}", SECRET, name, role, slots=slots).serving()
            )
            for name, role in names
        ]
        yield World(dispatcher, workers)


def job(name: str, max_tokens: int = 8, **more: object) -> Job:
    tokens = [3 + (ord(letter) * 7 + i) % 200 for i, letter in enumerate(name * 5)]
    return Job(name, "scripted", tokens, max_tokens, Sampling(), received_seconds=time.monotonic(), **more)  # type: ignore[arg-type]
