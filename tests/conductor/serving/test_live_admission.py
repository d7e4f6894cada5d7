"""When the live Conductor rejects: on arrival, or, as the baseline does, when the prefill has begun and decode is looked at."""

import contextlib
import time

import pytest
from scripted_worker import ScriptedWorker

from mooncask.client.worker_api import Role, Sampling
from mooncask.conductor.scheduling.facts import Reason, Slo
from mooncask.conductor.serving.dispatch.dispatcher import Limits, LiveDispatcher
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools
from mooncask.conductor.serving.dispatch.prefixes import Prefixes
from mooncask.conductor.serving.dispatch.worker_client import WorkerClient
from mooncask.conductor.serving.job import Ended, Job, Piece
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.errors import Overloaded

SECRET = "between-workers"
NO_TIME = 1e-4
"""A step takes longer than that, whatever was learned of steps."""


async def outcome(admission: str, tbt_seconds: float, others: int = 1) -> tuple[str, str]:
    """How a request ended that came while `others` were being answered, and why it was rejected. Nothing stays in the books."""
    pools, client, prefixes = Pools(), WorkerClient(SECRET), Prefixes(0.5)
    table = PolicyTable(PolicySettings("kvcache-centric", admission, 1.0, 1.5, {"": Slo(60.0, tbt_seconds)}, ""))
    dispatcher = LiveDispatcher(pools, client, prefixes, table, Limits(inline_tokens=0))
    async with listening(WorkersDoor(pools, SECRET).application(), "127.0.0.1:0", "workers") as address:
        prefill = ScriptedWorker(f"http://{address}", SECRET, "p", Role.PREFILL)
        decode = ScriptedWorker(f"http://{address}", SECRET, "d", Role.DECODE, slots=4, pace_seconds=0.02)
        async with prefill.serving(), decode.serving(), contextlib.AsyncExitStack() as stack:
            for number in range(others):
                events = dispatcher.run(job(f"other {number}", 1000))
                await stack.enter_async_context(contextlib.aclosing(events))
                while not isinstance(await anext(events), Piece):
                    pass
            with contextlib.suppress(Overloaded):
                assert isinstance([event async for event in dispatcher.run(job("one", 2))][-1], Ended)
            decision = dispatcher.history.newest(1)[0]
    await prefixes.close()
    await client.close()
    assert not dispatcher.books.prefills
    assert not dispatcher.books.decodes
    return decision.ended, decision.rejected


def job(name: str, max_tokens: int) -> Job:
    return Job(name, "scripted", list(range(3, 40)), max_tokens, Sampling(), received_seconds=time.monotonic())


@pytest.mark.parametrize("admission", ["none", "baseline", "early", "predicted"])
async def test_whoever_has_time_is_served_whatever_the_policy(admission: str) -> None:
    assert await outcome(admission, 60.0) == ("length", "")


@pytest.mark.parametrize(
    ("admission", "reason"),
    [("baseline", Reason.TBT_AFTER_PREFILL), ("early", Reason.TBT), ("predicted", Reason.TBT)],
)
async def test_decode_without_time_is_seen_on_arrival_but_by_the_baseline_when_the_prefill_has_begun(
    admission: str, reason: Reason
) -> None:
    assert await outcome(admission, NO_TIME) == ("rejected", reason.value)


async def test_without_admission_nobody_is_rejected_for_his_level() -> None:
    assert await outcome("none", NO_TIME) == ("length", "")


@pytest.mark.parametrize("admission", ["baseline", "early", "predicted"])
async def test_where_nothing_runs_nobody_is_turned_away_for_a_level_that_no_waiting_would_meet(admission: str) -> None:
    assert await outcome(admission, NO_TIME, others=0) == ("length", "")
