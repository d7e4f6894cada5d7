"""The dispatcher's parts one by one: who is there, what was placed, who waits, what is remembered."""

import asyncio
import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.client.worker_api import Hashing, Leave, Registration, Report, Role
from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.serving.dispatch.books import Books, DecodeEntry, PrefillEntry
from mooncask.conductor.serving.dispatch.history import REQUESTS_MAX, Decision, History
from mooncask.conductor.serving.dispatch.policy_table import PolicySettings, PolicyTable
from mooncask.conductor.serving.dispatch.pools import Pools, Worker
from mooncask.conductor.serving.dispatch.prefixes import RECENT_ALL_MAX, RECENT_MAX, RECENT_SECONDS, Recent
from mooncask.conductor.serving.dispatch.slot_queue import SlotQueue
from mooncask.conductor.serving.door.idempotency import Remembered
from mooncask.conductor.serving.text.stopping import StopStrings
from mooncask.errors import BadArgument, BadField, BadRequest, NoSuchModel, Overloaded


def registration(name: str, role: Role = Role.DECODE, incarnation: str = "1", **more: object) -> Registration:
    told = {"model": "m", "family": {"layers": "2"}, "positions_max": 1000, "slots": 2, **more}
    return Registration(name=name, incarnation=incarnation, address="http://h:1", role=role, **told)  # type: ignore[arg-type]


def report(name: str, role: Role = Role.DECODE, incarnation: str = "1", **more: object) -> Report:
    return Report(name=name, incarnation=incarnation, role=role, **more)  # type: ignore[arg-type]


def hashing(block_tokens: int = 16) -> Hashing:
    return Hashing(
        namespace="n", fingerprint="aa", tenant_salt="", hash="xxh3-128", block_tokens=block_tokens, block_bytes=64
    )


# --- pools ---


def test_a_worker_is_able_from_its_registration_until_it_has_been_silent_too_long() -> None:
    pools = Pools()
    pools.register(registration("d"), 0.0)
    assert [worker.name for worker in pools.able("m", Role.DECODE, 1.9)] == ["d"]
    assert not pools.able("m", Role.PREFILL, 1.0)
    assert not pools.able("m", Role.DECODE, 2.1)
    [worker] = pools.all()
    pools.sweep(2.1)
    assert worker.gone.is_set()
    assert not pools.all()
    assert not pools.report(report("d"), 2.2).known
    with pytest.raises(NoSuchModel):
        pools.any_of("m")


def test_time_in_which_the_conductor_stood_still_is_no_worker_s_silence() -> None:
    pools = Pools()
    pools.register(registration("d"), 0.0)
    pools.stood_still(3.0)
    pools.sweep(4.9)
    assert [worker.name for worker in pools.able("m", Role.DECODE, 4.9)] == ["d"]
    pools.sweep(5.1)
    assert not pools.all()


def test_another_incarnation_takes_the_place_of_the_one_before_and_ends_its_calls() -> None:
    gone = list[str]()
    pools = Pools(on_gone=lambda worker: gone.append(worker.registration.incarnation))
    pools.register(registration("d"), 0.0)
    [first] = pools.all()
    pools.register(registration("d"), 0.5)  # the same one, which did not hear our answer
    [same] = pools.all()
    assert same.gone is first.gone
    assert not first.gone.is_set()
    pools.register(registration("d", incarnation="2"), 1.0)
    [second] = pools.all()
    assert first.gone.is_set()
    assert not second.gone.is_set()
    assert not pools.report(report("d"), 1.1).known
    pools.leave(Leave(name="d", incarnation="1"))  # a late word of the one before
    assert pools.all() == [second]
    pools.leave(Leave(name="d", incarnation="2"))
    assert gone == ["1", "2"]


def test_a_worker_of_another_family_is_refused_by_name_and_takes_nobody_s_place() -> None:
    pools = Pools()
    pools.register(registration("a", family={"layers": "2", "dtype": "f32"}), 0.0)
    with pytest.raises(BadRequest, match="worker b of model m has dtype = 'f16', worker a 'f32'"):
        pools.register(registration("b", family={"layers": "2", "dtype": "f16"}), 0.0)
    pools.register(registration("a", incarnation="2", family={"layers": "3"}), 0.0)  # alone it may change
    pools.register(registration("b", family={"layers": "3"}), 0.0)
    with pytest.raises(BadRequest, match="layers"):
        pools.register(registration("a", incarnation="3", family={"layers": "2"}), 0.0)
    assert [worker.registration.incarnation for worker in pools.all()] == ["2", "1"]


@pytest.mark.parametrize(
    "nonsense",
    [
        {"slots": 0},
        {"slots": 10**400},
        {"positions_max": 0},
        {"kv_tokens": -1},
        {"gone_seconds": 0},
        {"prefill_tokens_per_second": -1.0},
        {"hashing": hashing(0)},
    ],
)
def test_a_registration_by_which_nobody_can_reckon_is_none(nonsense: dict[str, Any]) -> None:
    told = msgspec.json.encode(registration("a", **nonsense))
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(told, type=Registration)


def test_a_worker_that_failed_goes_behind_the_others_and_one_that_drains_takes_nothing() -> None:
    pools = Pools()
    for name in ("a", "b"):
        pools.register(registration(name), 0.0)
    a, b = pools.all()
    pools.failed(a, 0.1)
    assert pools.able("m", Role.DECODE, 0.2) == [b]
    pools.failed(b, 0.1)
    assert pools.able("m", Role.DECODE, 0.2) == [a, b]
    assert pools.able("m", Role.DECODE, 1.2) == [a, b]
    pools.report(report("a", draining=True), 0.3)
    assert pools.able("m", Role.DECODE, 1.5) == [b]


def test_a_wanted_role_is_told_until_it_is_taken() -> None:
    pools = Pools()
    pools.register(registration("a"), 0.0)
    pools.want_role("a", Role.PREFILL)
    assert pools.report(report("a"), 0.1).role is Role.PREFILL
    assert pools.report(report("a", Role.PREFILL), 0.2).role is None
    assert [worker.name for worker in pools.able("m", Role.PREFILL, 0.3)] == ["a"]
    with pytest.raises(BadRequest, match="no worker b"):
        pools.want_role("b", Role.PREFILL)


# --- books ---


def worker(name: str = "d", slots: int = 4, **told: object) -> Worker:
    return Worker(registration(name, slots=slots), 0.0, report(name, **told))


def test_others_requests_at_a_worker_count_as_much_as_our_own() -> None:
    books = Books()
    books.decodes["ours"] = DecodeEntry("d", 100, 0.0, started=1.0, output_tokens=5)
    both = worker(requests=["ours", "theirs"], context_tokens=300)
    assert books.free_slots(both) == 2
    facts = books.decode_facts(both)
    assert facts.requests == 2
    assert facts.context_tokens == 105 + 150
    full = worker(slots=2, requests=["ours", "theirs"], context_tokens=300)
    assert books.free_slots(full) == 0
    assert books.decode_facts(full).capacity_tokens == 0


def test_what_was_placed_and_not_yet_reported_counts() -> None:
    books = Books()
    books.decodes["new"] = DecodeEntry("d", 100, 3.0)
    facts = books.decode_facts(worker())
    assert (facts.requests, facts.coming_requests, facts.coming_tokens) == (0, 1, 100)
    books.prefills["new"] = PrefillEntry("p", 50, 2.0)
    prefill = worker("p", requests=["new", "theirs"], queued_tokens=400)
    assert books.prefill_facts(prefill, 16, 32, 0.01, 0.0).queue_seconds == pytest.approx(2.0 + 200 * 0.01)
    books.prefills["new"].started = 10.0
    assert books.prefill_facts(prefill, 16, 32, 0.01, 11.0).queue_seconds == pytest.approx(1.0 + 2.0)


def test_a_worker_that_has_bounced_has_no_slot_until_it_reports() -> None:
    pools, books = Pools(), Books()
    pools.register(registration("d"), 0.0)
    [told] = pools.all()
    told.full = True
    assert books.free_slots(told) == 0
    pools.report(report("d"), 0.1)
    assert books.free_slots(told) == 2


# --- slot queue ---


async def test_places_go_by_priority_then_by_arrival_and_who_looks_elsewhere_is_not_held_up() -> None:
    queue: SlotQueue[str] = SlotQueue(8)
    free, order = {"a": 0, "b": 0}, list[str]()

    async def take(name: str, pool: str, priority: int) -> None:
        def find() -> str | None:
            if not free[pool]:
                return None
            free[pool] -= 1
            return pool

        await queue.take(find, priority, 5.0)
        order.append(name)

    async with asyncio.TaskGroup() as group:
        for name, pool, priority in [("low", "a", 1), ("high", "a", 9), ("high too", "a", 9), ("other", "b", 0)]:
            group.create_task(take(name, pool, priority))
        await asyncio.sleep(0)
        assert len(queue) == 4
        free["b"] = 1
        queue.wake()
        await asyncio.sleep(0)
        assert order == ["other"]
        for _ in range(3):
            free["a"] += 1
            queue.wake()
            await asyncio.sleep(0)
    assert order == ["other", "high", "high too", "low"]
    assert len(queue) == 0


async def test_who_waits_too_long_or_leaves_is_gone_from_the_queue() -> None:
    queue: SlotQueue[str] = SlotQueue(1)
    with pytest.raises(Overloaded, match=r"no place to decode within 0\.0 s"):
        await queue.take(lambda: None, 1, 0.01)
    waiting = asyncio.create_task(queue.take(lambda: None, 1, 5.0))
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match="1 requests wait"):
        await queue.take(lambda: None, 1, 5.0)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    assert len(queue) == 0


# --- policies, history, recent ---


def test_the_lowest_class_is_rejected_first() -> None:
    classes = {"low": Slo(10.0, 0.1), "high": Slo(10.0, 0.1)}
    table = PolicyTable(PolicySettings("kvcache-centric", "early", 1.0, 1.5, classes, "low"))
    assert (table.rank("low"), table.rank("high"), table.rank("unheard of")) == (0, 1, 0)
    step = LinearStep(0.01, 0.001, 0.0)
    from mooncask.conductor.scheduling.decision import Arrival, PoolFacts, Rejection

    pool = Books()
    pool.prefills["before"] = PrefillEntry("p", 100, 9.2)
    facts = PoolFacts(
        prefills=[pool.prefill_facts(worker("p"), 0, 0, 0.01, 0.0)],
        decodes=[pool.decode_facts(worker("d"))],
        expected_output=10,
        decode_seconds=None,
        decoding=[],
        coming=[],
    )

    class Free:
        def prefill_seconds(self, tokens: int, prefix: int) -> float:
            return 0.0

        occupied_seconds = prefill_seconds

        def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
            return 0.0

    decided = {
        name: table.policies(name, step).decide(Arrival(0, 0.0, 10, table.rank(name)), facts, Free())
        for name in classes
    }
    assert isinstance(decided["low"], Rejection)
    assert not isinstance(decided["high"], Rejection)
    with pytest.raises(BadArgument, match="admission"):
        PolicyTable(PolicySettings("kvcache-centric", "never", 1.0, 1.5, classes, "low"))


def decision(name: str) -> Decision:
    return Decision(
        id=name,
        at=0.0,
        model="m",
        tenant="",
        service_class="",
        prompt_tokens=1,
        max_tokens=1,
        candidates=[],
        failures=[],
    )


def test_a_request_ends_once_in_the_history_which_is_bounded() -> None:
    history = History()
    for number in range(REQUESTS_MAX + 5):
        history.add(decision(f"r{number}"))
    assert history.get("r4") is None
    assert [one.id for one in history.newest(2)] == [f"r{REQUESTS_MAX + 4}", f"r{REQUESTS_MAX + 3}"]
    one = decision("x")
    history.rejected(one, "ttft", 2.0)
    history.ended(one, "failed", 1.0)
    assert history.outcomes == {"rejected": 1}
    one = decision("y")
    one.attempts = 2
    history.first_token(one, 1.0)
    assert not history.calibration  # a retry says nothing of the prediction


def test_recent_blocks_count_until_they_fail_or_are_old_and_are_bounded() -> None:
    recent, keys = Recent(), [bytes([i]) for i in range(5)]
    recent.placed("n", keys, 0.0)
    assert recent.prefix("n", keys, 0, 1.0) == 5
    assert recent.prefix("n", keys, 2, 1.0) == 5
    assert recent.prefix("other", keys, 0, 1.0) == 0
    assert recent.prefix("n", keys, 0, RECENT_SECONDS + 1) == 0
    recent.failed("n", keys[3:])
    assert recent.prefix("n", keys, 0, 1.0) == 3
    recent.placed("n", [number.to_bytes(4, "big") for number in range(RECENT_MAX)], 2.0)
    assert recent.prefix("n", keys, 0, 2.0) == 0


def test_recent_blocks_of_many_nodes_are_bounded_together() -> None:
    recent, nodes = Recent(), 40
    for number in range(2 * nodes):
        placed = [number.to_bytes(4, "big") + i.to_bytes(4, "big") for i in range(RECENT_ALL_MAX // nodes + 1)]
        recent.placed(f"n{number % nodes}", placed, 0.0)
        assert recent.prefix(f"n{number % nodes}", placed[-100:], 0, 1.0) == 100
    assert sum(map(len, recent._until.values())) <= RECENT_ALL_MAX


# --- stop strings, idempotency ---


@given(st.lists(st.text("abc", max_size=4), max_size=12), st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_a_stop_string_cuts_the_same_text_however_it_comes_in_pieces(pieces: list[str], stops: list[str]) -> None:
    stop = StopStrings(stops)
    passed = "".join(stop.step(piece) for piece in pieces)
    text = "".join(pieces)
    if not stop.stopped:
        passed += stop.rest()
    ends = [text.find(one) for one in stops if one in text]
    assert stop.stopped == bool(ends)
    if not ends:
        assert passed == text
    else:  # of several in one piece the first; an earlier piece may have ended with a later one
        assert text.startswith(passed)
        assert any(text.startswith(one, len(passed)) for one in stops)
        assert not any(one in passed for one in stops)


async def test_a_key_s_first_caller_works_and_the_next_one_takes_over_when_he_leaves() -> None:
    remembered, begun = Remembered(), asyncio.Event()

    async def never() -> dict[str, object]:
        begun.set()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def answer() -> dict[str, object]:
        return {"text": "x"}

    first = asyncio.create_task(remembered.once("t", "k", b"body", never))
    await begun.wait()
    second = asyncio.create_task(remembered.once("t", "k", b"body", answer))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == {"text": "x"}
    assert await remembered.once("t", "k", b"body", never) == {"text": "x"}
    assert await remembered.once("other", "k", b"another", answer) == {"text": "x"}
    with pytest.raises(BadField, match="another body"):
        await remembered.once("t", "k", b"another", answer)


async def test_remembered_answers_are_bounded_in_bytes() -> None:
    remembered, made = Remembered(bytes_max=120), list[str]()

    async def ask(key: str) -> None:
        async def work() -> dict[str, object]:
            made.append(key)
            return {"text": "x" * 40}

        assert len(json.dumps(await remembered.once("t", key, b"", work))) > 40

    for key in ("a", "b", "b", "c", "b", "a"):
        await ask(key)
    assert made == ["a", "b", "c", "a"]
