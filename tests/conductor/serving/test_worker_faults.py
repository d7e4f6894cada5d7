"""The dispatcher over scripted workers: whatever they do, an answer is exact or ends in one typed error, and nothing stays."""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_answers import right_answer
from scripted_world import SECRET, World, job, until, world
from worker_faults import DECODE_FAULTS, PREFILL_FAULTS

from mooncask.client.worker_api import PrefillCall, PrefillDone, Role
from mooncask.conductor.serving.dispatch.books import PrefillEntry
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.prefilling import Prefilling
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Begun, Ended, Event, Job, Piece
from mooncask.errors import AnswerBroken, BadRequest, DeadlineExceeded, MooncaskError, NoWorkers, Overloaded


def assert_exact(events: list[Event], one: Job) -> None:
    assert isinstance(events[0], Begun)
    assert [type(event) for event in events].count(Begun) == 1
    assert isinstance(events[-1], Ended)
    assert all(isinstance(event, Piece) for event in events[1:-1])
    said = [token for event in events if isinstance(event, Piece) for token in event.tokens]
    assert said == right_answer(one.tokens, one.max_tokens)
    assert events[-1].output_tokens == len(said)


async def run(dispatcher: LiveDispatcher, one: Job) -> list[Event]:
    return [event async for event in dispatcher.run(one)]


@pytest.mark.parametrize("fault", [fault for fault in DECODE_FAULTS if fault != "refuses"])
async def test_a_decode_worker_that_fails_twice_in_one_way_costs_no_token(fault: str) -> None:
    async with world() as there:
        there.fault("twice", Role.DECODE, [fault, fault])
        one = job("twice")
        assert_exact(await run(there.dispatcher, one), one)
        await there.assert_nothing_left()


@pytest.mark.parametrize("fault", [fault for fault in PREFILL_FAULTS if fault != "refuses"])
async def test_a_prefill_worker_that_fails_twice_in_one_way_costs_no_token(fault: str) -> None:
    async with world() as there:
        there.fault("twice", Role.PREFILL, [fault, fault])
        one = job("twice")
        assert_exact(await run(there.dispatcher, one), one)
        await there.assert_nothing_left()


async def test_nobody_asks_whether_a_prefill_has_begun_that_has_ended() -> None:
    """A node answers few such questions at a time."""
    asked_no_more = asyncio.Event()

    async def seen() -> bool:
        try:
            return await asyncio.Event().wait()
        finally:
            asked_no_more.set()

    async with world(prefills=1) as there, contextlib.AsyncExitStack() as stack:
        client = WorkerClient(SECRET)
        stack.push_async_callback(client.close)
        [worker] = [one for one in there.dispatcher.pools.all() if one.role is Role.PREFILL]
        call, entry = PrefillCall(id="one", tokens=[5, 6, 7]), PrefillEntry(worker.name, 3, 0.1)
        done = list[PrefillDone]()
        prefill = Prefilling(client, worker, call, entry, done.append, lambda error: None, seen)
        await until(lambda: done, "it did not end")
        await asyncio.wait_for(asked_no_more.wait(), 20)
        await prefill.end()


async def test_what_a_worker_refuses_is_the_caller_s_fault_before_the_answer_begins() -> None:
    async with world() as there:
        there.fault("refused", Role.DECODE, ["refuses"])
        with pytest.raises(BadRequest, match="as scripted"):
            await run(there.dispatcher, job("refused"))
        there.fault("behind", Role.DECODE, ["breaks off", "refuses"])
        with pytest.raises(AnswerBroken, match="as scripted"):
            await run(there.dispatcher, job("behind"))
        await there.assert_nothing_left()


async def test_a_request_that_every_worker_bounces_is_told_to_come_again() -> None:
    async with world() as there:
        there.fault("full", Role.DECODE, ["bounces"] * 9)
        with pytest.raises(Overloaded, match="every worker that was asked is full"):
            await run(there.dispatcher, job("full"))
        assert there.dispatcher.history.outcomes == {"rejected": 1}
        await there.assert_nothing_left()


async def test_a_request_that_breaks_everywhere_ends_in_one_error() -> None:
    async with world() as there:
        there.fault("before", Role.DECODE, ["no head"] * 9)
        with pytest.raises(NoWorkers, match="4 attempts failed"):
            await run(there.dispatcher, job("before"))
        there.fault("behind", Role.DECODE, ["breaks off"] * 9)
        with pytest.raises(AnswerBroken):
            await run(there.dispatcher, job("behind", max_tokens=64))
        assert there.dispatcher.history.outcomes == {"failed": 2}
        await there.assert_nothing_left()


async def test_a_job_ends_at_its_deadline_whatever_its_worker_does() -> None:
    async with world() as there:
        there.workers[2].pace_seconds = there.workers[3].pace_seconds = 0.1
        started = time.monotonic()
        with pytest.raises(AnswerBroken, match="no answer within"):
            await run(there.dispatcher, job("late", max_tokens=1000, deadline_seconds=0.4))
        there.fault("later", Role.PREFILL, ["is silent"] * 9)
        with pytest.raises(DeadlineExceeded):
            await run(there.dispatcher, job("later", deadline_seconds=0.1))
        assert time.monotonic() - started < 3
        await there.assert_nothing_left()


async def test_a_client_that_goes_away_ends_its_calls_wherever_it_stood() -> None:
    async with world(slots=1, decodes=1) as there:
        there.fault("waits", Role.PREFILL, ["is silent"])
        task = asyncio.create_task(run(there.dispatcher, job("waits")))
        await until(lambda: there.workers[0].running or there.workers[1].running, "no prefill")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await there.assert_nothing_left()
        there.workers[2].pace_seconds = 0.02
        first = asyncio.create_task(run(there.dispatcher, job("first", max_tokens=1000)))
        await until(lambda: there.workers[2].running, "no answer")
        second = asyncio.create_task(run(there.dispatcher, job("second")))
        await until(lambda: there.dispatcher.waiting, "nobody waits")
        second.cancel()  # while it waits for a slot
        await asyncio.gather(second, return_exceptions=True)
        assert there.dispatcher.waiting == 0
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await there.assert_nothing_left()
        assert there.dispatcher.history.outcomes == {"cancelled": 3}


async def test_the_more_important_request_gets_the_slot_first_and_the_least_important_is_turned_away() -> None:
    async with world(slots=1, decodes=1, waiting_max=2) as there:
        decode = there.workers[2]
        decode.pace_seconds = 0.05
        first = asyncio.create_task(run(there.dispatcher, job("first", max_tokens=8)))
        await until(lambda: decode.running, "no answer")
        tasks = {}
        for waiting, (name, priority) in enumerate([("low", 10), ("mid", 100)], 1):
            tasks[name] = asyncio.create_task(run(there.dispatcher, job(name, max_tokens=1, priority=priority)))
            await until(lambda waiting=waiting: there.dispatcher.waiting == waiting, "it does not wait")  # type: ignore[misc]
        high = job("high", max_tokens=1, priority=200)
        tasks["high"] = asyncio.create_task(run(there.dispatcher, high))
        with pytest.raises(Overloaded, match="2 requests wait"):
            await tasks["low"]
        assert_exact(await tasks["high"], high)
        await asyncio.gather(first, tasks["mid"])
        assert [request for request, role in decode.calls if role is Role.DECODE] == ["first", "high", "mid"]
        await there.assert_nothing_left()


# --- any sequence ---


@dataclass(frozen=True)
class Fate:
    """What happens to one request: what its workers do, and after how many events its client leaves."""

    prefill: list[str]
    decode: list[str]
    leaves_after: int | None


ENDLESS = "never ends its line"
"""Sixteen megabytes a time: tested by itself above."""
FATES = st.builds(
    Fate,
    prefill=st.lists(st.sampled_from(sorted({*PREFILL_FAULTS} - {ENDLESS})), max_size=3),
    decode=st.lists(st.sampled_from(sorted({*DECODE_FAULTS} - {ENDLESS})), max_size=4),
    leaves_after=st.none() | st.integers(1, 6),
)


async def live_through(fates: list[Fate]) -> None:
    async with world() as there:
        await asyncio.gather(*(live(there, f"job-{i}", fate) for i, fate in enumerate(fates)))
        await there.assert_nothing_left()


async def live(there: World, name: str, fate: Fate) -> None:
    one, events = job(name), list[Event]()
    there.fault(name, Role.PREFILL, fate.prefill)
    there.fault(name, Role.DECODE, fate.decode)
    error: MooncaskError | None = None
    try:
        async with contextlib.aclosing(there.dispatcher.run(one)) as answer:
            async for event in answer:
                events.append(event)
                if len(events) == fate.leaves_after:
                    break
    except MooncaskError as exc:
        error = exc
    said = [token for event in events if isinstance(event, Piece) for token in event.tokens]
    assert said == right_answer(one.tokens, one.max_tokens)[: len(said)]
    assert isinstance(error, AnswerBroken) == (error is not None and bool(events))
    if error is None and len(events) != fate.leaves_after:
        assert_exact(events, one)
    decision = there.dispatcher.history.get(name)
    assert decision is not None
    assert decision.ended
    if error is not None and not any("Timeout" in failure for failure in decision.failures):  # nor was the machine slow
        assert "refuses" in fate.prefill + fate.decode or len(fate.prefill) + len(fate.decode) > 3, error


@settings(max_examples=20, deadline=None)
@given(st.lists(FATES, min_size=1, max_size=4))
def test_any_sequence_of_faults_gives_the_exact_answer_or_one_typed_error(fates: list[Fate]) -> None:
    asyncio.run(live_through(fates))
