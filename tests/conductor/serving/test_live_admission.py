"""When the live Conductor rejects: on arrival, or, as the baseline does, when the prefill has begun and decode is looked at."""

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
from mooncask.conductor.serving.job import Ended, Job
from mooncask.conductor.serving.main import listening
from mooncask.conductor.serving.workers_door import WorkersDoor
from mooncask.errors import Overloaded

SECRET = "between-workers"
NO_TIME = 1e-4
"""A step takes longer than that, whatever was learned of steps."""


async def outcome(admission: str, tbt_seconds: float) -> tuple[str, str, int]:
    """How one request ended, why it was rejected, and how many prefills and answers are still in the books."""
    pools, client, prefixes = Pools(), WorkerClient(SECRET), Prefixes(0.5)
    table = PolicyTable(PolicySettings("kvcache-centric", admission, 1.0, 1.5, {"": Slo(60.0, tbt_seconds)}, ""))
    dispatcher = LiveDispatcher(pools, client, prefixes, table, Limits(inline_tokens=0))
    async with listening(WorkersDoor(pools, SECRET).application(), "127.0.0.1:0", "workers") as address:
        prefill = ScriptedWorker(f"http://{address}", SECRET, "p", Role.PREFILL)
        decode = ScriptedWorker(f"http://{address}", SECRET, "d", Role.DECODE)
        async with prefill.serving(), decode.serving():
            job = Job("one", "scripted", list(range(3, 40)), 4, Sampling(), received_seconds=time.monotonic())
            try:
                events = [event async for event in dispatcher.run(job)]
                assert isinstance(events[-1], Ended)
            except Overloaded as exc:
                assert exc.reason
            decision = dispatcher.history.newest(1)[0]
    await prefixes.close()
    await client.close()
    return decision.ended, decision.rejected, len(dispatcher.books.prefills) + len(dispatcher.books.decodes)


@pytest.mark.parametrize("admission", ["none", "baseline", "early", "predicted"])
async def test_whoever_has_time_is_served_whatever_the_policy(admission: str) -> None:
    assert await outcome(admission, 60.0) == ("length", "", 0)


@pytest.mark.parametrize(
    ("admission", "reason"),
    [("baseline", Reason.TBT_AFTER_PREFILL), ("early", Reason.TBT), ("predicted", Reason.TBT)],
)
async def test_decode_without_time_is_seen_on_arrival_but_by_the_baseline_when_the_prefill_has_begun(
    admission: str, reason: Reason
) -> None:
    assert await outcome(admission, NO_TIME) == ("rejected", reason.value, 0)


async def test_without_admission_nobody_is_rejected_for_his_level() -> None:
    assert await outcome("none", NO_TIME) == ("length", "", 0)
