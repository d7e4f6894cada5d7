"""Pauses of decode on live facts: when a worker is told to stand still, for how long, and that it is told to go on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from scripted_worker import ScriptedWorker
from scripted_world import until

from mooncask.client.worker_api import Node, Registration, Report, Role, Sampling, WorkerKind
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.scheduling.pause import PauseSettings
from mooncask.conductor.serving.config import Config
from mooncask.conductor.serving.dispatch.books import Books, DecodeEntry, PrefillEntry
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.dispatch.pausing import Pausing, Slowdown
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Event, Job, Piece
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.workers_door import WorkersDoor

SECRET = "between-workers"
SLO = PauseSettings("slo", slowdown=2.0, seconds_max=0.5)


@dataclass
class Node1:
    """One node with a prefill and a decode worker, and the time as the test says."""

    settings: PauseSettings = SLO
    now: float = 100.0
    told: list[tuple[str, float]] = field(default_factory=list)
    grants: float = 1.0
    """The share of what it is asked for that a worker does."""

    def __post_init__(self) -> None:
        self.pools, self.books = Pools(), Books()
        for name, role, node in (("p", Role.PREFILL, "n1"), ("d", Role.DECODE, "n1"), ("far", Role.DECODE, "n2")):
            self.register(name, role, node)

        async def tell(worker: Worker, seconds: float) -> float:
            self.told.append((worker.name, round(seconds, 3)))
            return seconds * self.grants

        self.pausing = Pausing(self.pools, self.books, self.settings, tell, lambda: self.now)

    def register(self, name: str, role: Role, node: str, kind: WorkerKind = WorkerKind.MOONCASK) -> None:
        told = Registration(
            name=name, incarnation="1", address="", role=role, kind=kind, model="m", family={}, node=Node(name=node),
            positions_max=9999, slots=4, gone_seconds=1e9, prefill_tokens_per_second=100.0,
        )  # fmt: skip
        self.pools.register(told, self.now)

    def worker(self, name: str) -> Worker:
        return next(one for one in self.pools.all() if one.name == name)

    def prefill(self, request: str, work: float, left: float, started: bool = True) -> Decision:
        """A prefill on p with so much work, late in `left` seconds."""
        tokens = round(100 * work)
        entry = self.books.prefills[request] = PrefillEntry("p", tokens, work, self.now if started else None)
        decision = Decision(id=request, at=0.0, model="m", tenant="", service_class="", prompt_tokens=100, max_tokens=1)
        self.pausing.placed(request, self.worker("p"), entry, self.now + left, decision)
        return decision

    def answer(self, request: str, worker: str = "d", tokens: int = 100, tbt: float = 0.1) -> None:
        """One that began a second ago."""
        self.books.decodes[request] = DecodeEntry(worker, 100, 0.0, self.now - 1.0, tokens, tbt)

    async def passes(self, seconds: float = 0.0) -> list[tuple[str, float]]:
        """What workers were told since the last call, when time has passed."""
        self.now += seconds
        self.pausing.look("n1")
        for _ in range(5):
            await asyncio.sleep(0)
        told, self.told = self.told, []
        return told


async def test_decode_stands_still_for_a_prefill_that_would_be_late_and_goes_on_when_that_has_ended() -> None:
    node = Node1()
    node.answer("a")
    decision = node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == [("d", 0.2)]
    assert await node.passes(0.1) == []  # it still does
    node.pausing.done("b", 0.1, 60)
    assert await node.passes() == [("d", 0.0)]
    assert decision.paused_seconds == node.pausing.paused_seconds == pytest.approx(0.1)
    assert node.pausing.pauses == 1


async def test_a_pause_that_was_enough_is_not_asked_for_again() -> None:
    node = Node1()
    node.answer("a")
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == [("d", 0.2)]
    assert await node.passes(0.2) == []
    assert await node.passes(0.2) == []
    node.pausing.ended("b")
    assert await node.passes() == []  # it goes on by itself since long
    assert node.pausing.paused_seconds == pytest.approx(0.2)


async def test_what_needs_a_long_pause_gets_one_after_the_other() -> None:
    node = Node1()
    node.answer("a", tokens=1000)
    node.prefill("b", work=1.6, left=1.8)
    assert await node.passes() == [("d", 0.5)]
    assert await node.passes(0.5) == [("d", 0.5)]
    assert await node.passes(0.5) == [("d", 0.4)]


async def test_no_answer_is_stopped_that_would_be_late_and_none_on_other_nodes() -> None:
    node = Node1()
    node.answer("a", tokens=10)  # 10 tokens in 1 s at 0.1 s a token: nothing to give
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == []
    node = Node1()
    node.answer("a", worker="far")
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == []


async def test_who_waits_behind_a_prefill_counts_with_what_is_before_him() -> None:
    node = Node1()
    node.answer("a")
    first = node.prefill("b", work=0.3, left=9.0)
    second = node.prefill("c", work=0.3, left=1.0, started=False)
    assert await node.passes() == [("d", 0.2)]
    node.now += 0.1
    node.pausing.ended("c")
    assert await node.passes() == [("d", 0.0)]
    assert (first.paused_seconds, second.paused_seconds > 0) == (0.0, True)


async def test_answers_of_other_conductors_are_left_alone() -> None:
    node = Node1()
    node.answer("a")
    node.prefill("b", work=0.6, left=1.0)
    report = Report(name="d", incarnation="1", role=Role.DECODE, running=2, requests=["a", "theirs"])
    node.pools.report(report, node.now)
    assert await node.passes() == []


async def test_a_worker_that_does_nothing_of_it_counts_nothing_and_is_asked_again() -> None:
    node = Node1(grants=0.0)
    node.answer("a")
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == [("d", 0.2)]
    assert await node.passes(0.05) != []
    node.pausing.ended("b")
    assert (node.pausing.pauses, node.pausing.paused_seconds) == (0, 0.0)


async def test_where_nothing_is_switched_on_nobody_is_told_or_learned_of() -> None:
    node = Node1(PauseSettings())
    node.answer("a")
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == []
    node.pausing.done("b", 5.0, 60)
    assert node.pausing.slowdown.factor == 2.0
    assert Config().policy.pause_decode == "never"


async def test_servers_that_can_not_be_told_are_not_counted_on() -> None:
    node = Node1()
    node.register("v", Role.DECODE, "n1", WorkerKind.VLLM)
    node.answer("a", worker="v")
    node.prefill("b", work=0.6, left=1.0)
    assert await node.passes() == []


async def test_nothing_is_kept_of_what_has_ended() -> None:
    node = Node1()
    node.answer("a")
    for number in range(5):
        node.prefill(f"r{number}", work=0.6, left=1.0)
        await node.passes(0.01)
        node.pausing.done(f"r{number}", 0.3, 60) if number % 2 else node.pausing.ended(f"r{number}")
    await node.passes()
    pausing = node.pausing
    assert not pausing._prefills
    assert not pausing._still
    assert not pausing._seen
    assert not pausing._telling


async def test_how_much_slower_prefills_are_beside_decode_is_learned_from_the_time_that_they_shared() -> None:
    node = Node1(PauseSettings("slo", slowdown=2.0))
    node.answer("a", tokens=0)  # nothing to give: never stopped
    for number in range(60):
        if number % 2:
            node.answer("a", tokens=0)
        else:
            node.books.decodes.clear()
        seconds = 1.5 if number % 2 else 0.5  # predicted is 1.0: the mean of both, and so was the warm-up
        node.prefill(f"r{number}", work=1.0, left=99.0)
        for _ in range(int(seconds * 10)):
            await node.passes(0.1)
        node.pausing.done(f"r{number}", seconds, 100)
    assert node.pausing.slowdown.factor == pytest.approx(3.0, rel=0.1)
    assert node.pausing.slowdown.alone == pytest.approx(0.5, rel=0.1)


async def test_where_decode_always_runs_what_is_predicted_does_not_pass_for_what_it_takes_alone() -> None:
    node = Node1(PauseSettings("slo", slowdown=2.0))
    predicted = 1.0
    for number in range(40):
        node.answer("a", tokens=0)
        node.prefill(f"r{number}", work=1.0, left=99.0)
        node.books.prefills[f"r{number}"].seconds = predicted
        for _ in range(20):
            await node.passes(0.1)
        node.pausing.done(f"r{number}", 2.0, 100)
        predicted += (2.0 - predicted) / 10  # the model learns what they take beside decode
    assert node.pausing.slowdown.factor == pytest.approx(2.0, rel=0.1)
    assert node.pausing.slowdown.alone == pytest.approx(1.0, rel=0.1)


def test_a_slowdown_is_at_least_one_and_bounded_whatever_is_told() -> None:
    for seconds, busy in ((0.0, 1.0), (1e9, 1.0), (1e9, 0.0), (0.1, 0.5)):
        slowdown = Slowdown(2.0)
        for _ in range(50):
            slowdown.observe(seconds, 1.0, busy)
        assert 1.0 <= slowdown.factor <= 8.0
        assert 0.1 <= slowdown.alone <= 20.0


# --- over HTTP ---


@contextlib.asynccontextmanager
async def world(pause: str) -> AsyncIterator[tuple[LiveDispatcher, ScriptedWorker]]:
    """A prefill worker of 0.6 s and a decode worker on one node."""
    pools, client, prefixes = Pools(), WorkerClient(SECRET), Prefixes(0.5)
    settings = PolicySettings(
        "kvcache-centric", "none", 1.0, 1.5, {"": Slo(3.5, 1.0)}, "", pause=PauseSettings(pause, 2.0, 0.5)
    )
    dispatcher = LiveDispatcher(pools, client, prefixes, PolicyTable(settings), Limits(inline_tokens=0))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        stack.push_async_callback(prefixes.close)
        stack.push_async_callback(dispatcher.pausing.close)
        address = await stack.enter_async_context(
            listening(WorkersDoor(pools, SECRET).application(), "127.0.0.1:0", "workers")
        )
        kinds = (("p", Role.PREFILL, 0.6), ("d", Role.DECODE, 0.0))
        workers = [
            ScriptedWorker(
                f"http://{address}",
                SECRET,
                name,
                role,
                node=Node(name="n1"),
                pace_seconds=0.01,
                prefill_seconds=seconds,
            )
            for name, role, seconds in kinds
        ]
        for worker in workers:
            await stack.enter_async_context(worker.serving())
        yield dispatcher, workers[1]


async def answered(dispatcher: LiveDispatcher, name: str, tokens: int, max_tokens: int) -> list[Event]:
    job = Job(name, "scripted", [5] * tokens, max_tokens, Sampling(), received_seconds=time.monotonic())
    return [event async for event in dispatcher.run(job)]


@pytest.mark.parametrize(("pause", "expected"), [("slo", True), ("never", False)])
async def test_a_running_answer_is_stopped_for_a_late_prefill_on_its_node_and_both_are_whole(
    pause: str, expected: bool
) -> None:
    async with world(pause) as (dispatcher, decode):
        running = asyncio.create_task(answered(dispatcher, "long", 10, 250))
        decodes = dispatcher.books.decodes
        await until(lambda: any(entry.output_tokens > 3 for entry in decodes.values()), "no answer has begun")
        await answered(dispatcher, "late", 2500, 3)  # 2.5 s of work by the worker's own measure, 5 s beside decode
        events = await running
        assert sum(len(event.tokens) for event in events if isinstance(event, Piece)) == 250
        late = dispatcher.history.get("late")
        assert late is not None
        assert bool(decode.pauses) is expected
        assert (late.paused_seconds > 0) is expected
        assert (dispatcher.pausing.pauses > 0) is expected
        assert all(seconds <= 0.5 for seconds in decode.pauses)
        if expected:
            assert decode.pauses[-1] == 0.0 or late.paused_seconds >= 0.5
