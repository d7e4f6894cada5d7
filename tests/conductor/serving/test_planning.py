"""Pool planning on recorded load: slots, recommendations, roles that change, hooks that nobody waits for; on a fast clock."""

import asyncio
import math
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from aiohttp import web

from mooncask.client.worker_api import Hashing, Leave, Registration, Report, Role, WorkerKind
from mooncask.conductor.serving.config import Config, PlanSection, load_config
from mooncask.conductor.serving.dispatch.dispatcher import LiveDispatcher
from mooncask.conductor.serving.dispatch.history import Decision
from mooncask.conductor.serving.main import dispatching, listening
from mooncask.conductor.serving.planning.hooks import ScaleHook
from mooncask.conductor.serving.planning.load import DAYS_MAX, LoadRecord
from mooncask.conductor.serving.planning.plan import Change, Member, Outlook, recommend
from mooncask.conductor.serving.planning.planner import Planner, read_records, write_records
from mooncask.errors import BadRequest, ConfigError

HOUR, DAY = 3600.0, 86400.0
OUTLOOK = Outlook(24, 6, 0.1)


def members(prefills: int, decodes: int) -> list[Member]:
    return [
        *(Member(f"p{i}", Role.PREFILL, float(i)) for i in range(prefills)),
        *(Member(f"d{i}", Role.DECODE, float(i)) for i in range(decodes)),
    ]


def test_load_is_counted_by_slots_in_workers_that_it_keeps_busy() -> None:
    record = LoadRecord(100.0)
    record.add(20.0, 10.0, 1000.0)
    record.add(30.0, 10.0, 1099.0)
    assert not record.advance(1099.9)
    assert record.advance(1301.0)
    assert record.past == [(0.5, 0.2), (0.0, 0.0), (0.0, 0.0)]
    assert record.first_slot == 10
    record.add(10.0, 0.0, 1350.0)
    assert record.advance(1400.0)
    assert record.loads()[-1].tolist() == [0.1, 0.0]


def test_a_slot_that_was_heard_of_in_part_counts_for_its_part() -> None:
    record = LoadRecord(100.0)
    record.add(25.0, 0.0, 1050.0)
    record.advance(1100.0)
    assert record.past == [(0.5, 0.0)]


def test_a_record_is_bounded() -> None:
    record = LoadRecord(HOUR)
    for hour in range(24 * (DAYS_MAX + 2)):
        record.add(HOUR, 0.0, hour * HOUR)
    assert len(record.past) == 24 * DAYS_MAX
    assert record.first_slot == 24 * (DAYS_MAX + 2) - 1 - 24 * DAYS_MAX


def test_the_tide_is_planned_for_before_it_comes() -> None:
    """Prefill is busy by day and decode by night; before the morning the recommendation already has more prefill."""
    hours = np.arange(24 * 3)
    swing = np.sin(2 * math.pi * (hours - 6) / 24)
    loads = np.stack([4 + 2.5 * swing, 4 - 2.5 * swing], axis=1)
    by_hour = {}
    for now in range(48, 72):
        told = recommend("m", now * HOUR, loads[:now], members(4, 4), OUTLOOK)
        assert told is not None
        by_hour[now % 24] = told.prefill
    assert by_hour[12] > 4 > by_hour[0]
    assert by_hour[7] > by_hour[1]
    assert all(1 <= prefill <= 7 for prefill in by_hour.values())


def test_a_recommendation_names_the_least_busy_workers_and_keeps_one_of_each() -> None:
    loads = np.array([[0.0, 9.0]] * 30)
    told = recommend("m", 0.0, loads, members(3, 2), OUTLOOK)
    assert told is not None
    assert (told.prefill, told.decode) == (1, 4)
    assert [(change.worker, change.role) for change in told.changes] == [("p0", Role.DECODE), ("p1", Role.DECODE)]
    assert told.wanted == 1 + 10
    fixed = [Member(one.name, one.role, one.busy, may_change=False) for one in members(3, 2)]
    kept = recommend("m", 0.0, loads, fixed, OUTLOOK)
    assert kept is not None
    assert (kept.prefill, kept.changes) == (3, [])


def test_who_must_be_started_anew_for_another_role_is_recommended_last_and_said_to_be() -> None:
    loads = np.array([[0.0, 9.0]] * 30)
    fixed = Member("v0", Role.PREFILL, 0.0, restart=True)
    told = recommend("m", 0.0, loads, [fixed, *members(2, 2)], OUTLOOK)
    assert told is not None
    assert (told.prefill, told.changes) == (1, [Change("p0", Role.DECODE), Change("p1", Role.DECODE)])
    told = recommend("m", 0.0, loads, [fixed, *members(1, 2)], OUTLOOK)
    assert told is not None and told.changes == [Change("p0", Role.DECODE)]
    told = recommend("m", 0.0, loads, [fixed, Member("v1", Role.PREFILL, 1.0, restart=True), *members(0, 2)], OUTLOOK)
    assert told is not None
    assert (told.prefill, told.changes) == (1, [Change("v0", Role.DECODE, restart=True)])


def test_nothing_is_recommended_of_too_little() -> None:
    assert recommend("m", 0.0, np.ones((1, 2)), members(1, 1), OUTLOOK) is None
    assert recommend("m", 0.0, np.ones((9, 2)), members(1, 0), OUTLOOK) is None


# --- over a dispatcher ---


def register(dispatcher: LiveDispatcher, name: str, role: Role, **more: Any) -> None:
    hashing = Hashing(namespace="n", fingerprint="", tenant_salt="", hash="sha256", block_tokens=16, block_bytes=1024)
    told = Registration(
        name=name,
        incarnation="1",
        address="http://127.0.0.1:1",
        role=role,
        model="m",
        family={},
        hashing=hashing,
        positions_max=2048,
        **{"slots": 2, "prefill_tokens_per_second": 1000.0, **more},
    )
    dispatcher.pools.register(told, time.monotonic())


def report(dispatcher: LiveDispatcher, name: str, role: Role) -> Role | None:
    told = Report(name=name, incarnation="1", role=role)
    return dispatcher.pools.report(told, time.monotonic()).role


def ended(dispatcher: LiveDispatcher, seconds: float, decode: str = "") -> None:
    """A request that prefilled for a second or so, and decoded for `seconds`."""
    told = Decision("r", 0.0, "m", "t", "", 1000, 8, ttft=0.001, prefill_worker="p", decode_worker=decode)
    dispatcher.history.add(told)
    dispatcher.history.ended(told, "stop", seconds)


async def test_with_apply_workers_are_told_their_role_and_without_it_nothing_changes() -> None:
    async with dispatching(Config()) as dispatcher:
        for name in ("p0", "p1", "p2"):
            register(dispatcher, name, Role.PREFILL)
        register(dispatcher, "d0", Role.DECODE)
        dispatcher.costs_of("m")
        now = [DAY]
        planners = [
            Planner(dispatcher, PlanSection(apply=apply, slot_seconds=100.0), lambda: now[0]) for apply in (False, True)
        ]
        for _ in range(5):
            for _ in range(3):
                ended(dispatcher, 200.0)
            now[0] += 100.0
            await planners[0].step()
        page = planners[0].page()
        assert [one.decode for one in page.recommendations] == [3]
        assert page.loads["m"][-1][1] == pytest.approx(3.0, rel=0.01)
        assert report(dispatcher, "p0", Role.PREFILL) is None
        await planners[1].step()
        changed = [name for name in ("p0", "p1", "p2") if report(dispatcher, name, Role.PREFILL) is Role.DECODE]
        assert len(changed) == 2
        for name in changed:
            assert report(dispatcher, name, Role.DECODE) is None


async def test_vllm_servers_count_by_the_kv_that_fits_and_those_with_one_role_are_left_to_the_scale_hook() -> None:
    async with dispatching(Config()) as dispatcher:
        vllm = {"kind": WorkerKind.VLLM, "slots": 256, "kv_tokens": 4000, "prefill_tokens_per_second": 0.0}
        for name, may in (("fixed", False), ("free-0", True), ("free-1", True)):
            register(dispatcher, name, Role.PREFILL, may_change_role=may, **vllm)
        register(dispatcher, "d0", Role.DECODE, may_change_role=False, **vllm)
        dispatcher.costs_of("m")
        now = [DAY]
        planner = Planner(dispatcher, PlanSection(apply=True, slot_seconds=100.0), lambda: now[0])
        changes = []
        for _ in range(3):
            for _ in range(4):  # 1,000 of 4,000 tokens: four such answers fill a server, whatever its slots
                ended(dispatcher, 300.0, "d0")
            now[0] += 100.0
            await planner.step()
            changes += [change for told in planner.page().recommendations for change in told.changes]
        assert planner.page().loads["m"][-1][1] == pytest.approx(3.0, rel=0.01)
        assert changes == [Change("free-0", Role.DECODE), Change("free-1", Role.DECODE)]
        assert report(dispatcher, "free-0", Role.PREFILL) is Role.DECODE
        with pytest.raises(BadRequest, match="start its server anew"):
            dispatcher.pools.want_role("fixed", Role.DECODE)
        dispatcher.pools.leave(Leave(name="free-1", incarnation="1"))
        report(dispatcher, "free-0", Role.DECODE)
        register(dispatcher, "fixed-1", Role.PREFILL, may_change_role=False, **vllm)
        ended(dispatcher, 300.0, "d0")
        now[0] += 100.0
        await planner.step()
        [told] = planner.page().recommendations
        assert told.changes == [Change("fixed", Role.DECODE, restart=True)]
        assert msgspec.json.decode(msgspec.json.encode(told))["changes"][0]["restart"] is True


# --- the record on disk ---


def test_a_record_outlives_the_process_and_a_pause_is_filled(tmp_path: Path) -> None:
    record = LoadRecord(HOUR)
    for hour in range(30):
        record.add(HOUR * (hour % 24), 0.0, hour * HOUR)
    path = tmp_path / "load.json"
    write_records(path, {"m": record})
    again = read_records(path, HOUR, 33.5 * HOUR)["m"]
    assert again.past == [*record.past, (5.0, 0.0), (6.0, 0.0), (7.0, 0.0), (8.0, 0.0)]
    again.add(HOUR, 0.0, 33.5 * HOUR)
    again.advance(34 * HOUR)
    assert again.first_slot == 0
    assert len(again.past) == 34
    assert read_records(path, 900.0, 0.0) == {}
    assert read_records(path, HOUR, 1e9)["m"].past == []
    assert read_records(tmp_path / "none", HOUR, 0.0) == {}
    path.write_text("[]")
    with pytest.raises(ConfigError, match=r"plan\.record"):
        read_records(path, HOUR, 0.0)


async def test_a_record_that_can_not_be_written_is_said_and_planning_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with dispatching(Config()) as dispatcher:
        register(dispatcher, "p0", Role.PREFILL)
        dispatcher.costs_of("m")
        now = [DAY]
        section = PlanSection(slot_seconds=100.0, record=str(tmp_path / "none" / "load.json"))
        planner = Planner(dispatcher, section, lambda: now[0])
        ended(dispatcher, 10.0)
        now[0] += 100.0
        await planner.step()
        assert "can't be written" in caplog.text
        assert len(planner.page().loads["m"]) == 1
    caplog.clear()


def test_a_hook_is_a_command_or_an_address(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[plan]\nhook_command = ["a"]\nhook_url = "http://b"\n')
    with pytest.raises(ConfigError, match="either hook_command or hook_url"):
        load_config(path, {})


# --- hooks ---


async def finished(hook: ScaleHook) -> str:
    assert hook._running is not None
    await hook._running
    return hook.last


async def test_a_command_gets_the_recommendation_on_stdin(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = f"import sys, pathlib; pathlib.Path({str(told)!r}).write_text(sys.stdin.read())"
    hook = ScaleHook([sys.executable, "-c", program], "", 20.0)
    hook.tell(b'{"model": "m"}')
    assert await finished(hook) == "done"
    assert msgspec.json.decode(told.read_bytes()) == {"model": "m"}


async def test_a_hook_that_hangs_is_ended_and_nobody_waits_for_it() -> None:
    hook = ScaleHook([sys.executable, "-c", "import time; time.sleep(60)"], "", 0.3)
    begun = time.monotonic()
    hook.tell(b"{}")
    hook.tell(b"{}")
    assert time.monotonic() - begun < 0.2
    assert hook.skipped == 1
    assert await finished(hook) == "not done within 0.3 s"
    for words, said in (
        ([sys.executable, "-c", "raise SystemExit(3)"], "exit status 3"),
        (["/nowhere/at/all"], "FileNotFound"),
    ):
        hook = ScaleHook(words, "", 20.0)
        hook.tell(b"{}" * 100_000)
        assert said in await finished(hook)


async def test_a_webhook_is_posted_to() -> None:
    got = asyncio.Queue[bytes]()

    async def hear(request: web.Request) -> web.Response:
        await got.put(await request.read())
        return web.Response(status=200 if request.path == "/ok" else 500)

    app = web.Application()
    app.router.add_post("/{any}", hear)
    async with listening(app, "127.0.0.1:0", "hook") as address:
        for path, said in (("ok", "done"), ("bad", "status 500")):
            hook = ScaleHook([], f"http://{address}/{path}", 20.0)
            hook.tell(b'{"wanted": 3}')
            assert await finished(hook) == said
            assert await got.get() == b'{"wanted": 3}'
    hook = ScaleHook([], f"http://{address}/ok", 20.0)
    hook.tell(b"{}")
    assert "Cannot connect" in await finished(hook)
    await hook.close()
