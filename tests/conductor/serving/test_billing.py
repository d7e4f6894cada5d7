"""What usage costs, and when caches pay: the pure part of billing, and the public example of an assistant in some 20 groups."""

import itertools
import json
import random
from pathlib import Path

import pytest
from command_line import CommandLine
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.serving.billing.advice import Period, advise, cost_of
from mooncask.conductor.serving.billing.call_log import best_advice, read_prefixes
from mooncask.conductor.serving.billing.lines import CallLine, CreationLine, StorageLine, decode_line, encode_line
from mooncask.conductor.serving.billing.pages import moment
from mooncask.conductor.serving.billing.prices import Prices, billed
from mooncask.conductor.traces.jsonl import write_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadField, BadTrace

PUBLIC = Prices(input=60.0, output=60.0, creation=24.0, storage_minute=5.0, call=0.02)
"""CNY of August 2024, for a model of 128k positions."""


def call(**more: object) -> CallLine:
    return CallLine(
        **{"model": "m", "prompt_tokens": 100, "cached_tokens": 0, "output_tokens": 10, "outcome": "stop", **more}
    )  # type: ignore[arg-type]


def test_lines_come_back_as_they_were_written() -> None:
    for line in (
        call(cache_id="c", cache_tokens=64),
        CreationLine(model="m", cache_id="c", tokens=64),
        StorageLine(model="m", cache_id="c", tokens=64, minutes=3),
    ):
        assert decode_line(encode_line(line)) == line


def test_a_call_by_a_cache_pays_its_fee_and_what_was_not_cached() -> None:
    prices = Prices(input=1e6, output=2e6, automatic=5e5, cached=1e5, call=7.0)
    bill = billed([call(cached_tokens=80, cache_id="c", cache_tokens=64)], {"m": prices}, Prices())
    assert bill.costs == pytest.approx({"input": 20.0, "automatic": 8.0, "cached": 6.4, "output": 20.0, "calls": 7.0})
    assert (bill.saved_tokens, bill.automatic_tokens, bill.cache_calls) == (64, 16, 1)
    assert bill.without == pytest.approx(120.0)


def test_without_a_price_of_its_own_an_automatic_hit_costs_as_much_as_input() -> None:
    bill = billed([call(cached_tokens=80)], {}, Prices(input=1e6))
    assert bill.total == pytest.approx(100.0) == bill.without


def test_a_cache_that_saved_nothing_costs_no_fee() -> None:
    assert billed([call(cache_id="c", cache_tokens=64)], {}, PUBLIC).cache_calls == 0


def test_what_was_rejected_or_failed_before_its_first_token_is_not_charged() -> None:
    lines = [call(outcome="rejected", output_tokens=0), call(outcome="failed", output_tokens=0), call(outcome="failed")]
    bill = billed(lines, {}, Prices(input=1e6, output=1e6))
    assert (bill.calls, bill.failed_calls, bill.total) == (3, 2, pytest.approx(110.0))


def test_creation_and_token_minutes_are_added_up() -> None:
    lines = [
        CreationLine(model="m", cache_id="c", tokens=100_000),
        StorageLine(model="m", cache_id="c", tokens=100_000, minutes=10),
    ]
    bill = billed(lines, {}, PUBLIC)
    assert bill.costs == pytest.approx({"creation": 2.4, "storage": 5.0})


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 5.0), ("12.5", 12.5), ("1970-01-02", 86400.0), ("1970-01-01T01:00+01:00", 0.0)]
)
def test_moments_are_seconds_or_dates(text: str, seconds: float) -> None:
    assert moment(text, "from", 5.0) == seconds


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(BadField, match="2026-11-30"):
        moment("yesterday", "from", 0.0)


# --- advice ---


@settings(deadline=None, max_examples=50)
@given(
    minutes=st.lists(st.integers(0, 7), min_size=1, max_size=12),
    creation=st.floats(0, 20),
    storage=st.floats(0.01, 5),
    call=st.floats(0, 2),
)
def test_no_other_way_to_hold_a_cache_is_cheaper(
    minutes: list[int], creation: float, storage: float, call: float
) -> None:
    prices = Prices(input=3.0, creation=creation, storage_minute=storage, call=call)
    seconds = [60.0 * minute + 5 for minute in minutes]
    told = advise(seconds, 1_000_000, prices, slot_minutes=1)
    assert told.cost == pytest.approx(cost_of(seconds, 1_000_000, prices, told.periods))
    for held in itertools.product((False, True), repeat=8):
        periods = _periods(held)
        assert told.cost <= cost_of(seconds, 1_000_000, prices, periods) + 1e-6


def _periods(held: tuple[bool, ...]) -> list[Period]:
    runs = itertools.groupby(enumerate(held), key=lambda one: one[1])
    found = [[minute for minute, _ in run] for is_held, run in runs if is_held]
    return [Period(run[0], run[-1]) for run in found]


def test_a_period_is_refreshed_before_each_hour_is_over() -> None:
    moments = [0, *Period(0, 200).refreshes, 201]
    assert all(after - before < 60 for before, after in itertools.pairwise(moments))
    assert Period(0, 30).refreshes == []


def group_day(seed: int = 7, groups: int = 20, questions_an_hour: float = 1.0) -> list[float]:
    """A day of an assistant in groups: a question an hour and group from 9 to 24, a tenth of that from 0 to 2 and from 8 to 9,
    none from 2 to 8."""
    chance = random.Random(seed)
    share = {hour: 1.0 if hour >= 9 else 0.0 if 2 <= hour < 8 else 0.1 for hour in range(24)}
    seconds = []
    for hour in range(24):
        rate = groups * questions_an_hour * share[hour] / 3600
        at = hour * 3600.0
        while rate and (at := at + chance.expovariate(rate)) < (hour + 1) * 3600:
            seconds.append(at)
    return seconds


def test_an_assistant_in_twenty_groups_saves_about_three_quarters_as_in_the_public_example() -> None:
    seconds, tokens = group_day(), 100_000
    without = cost_of(seconds, tokens, PUBLIC, [])
    from_nine = cost_of(seconds, tokens, PUBLIC, [Period(9 * 60, 24 * 60 - 1)])
    assert 0.65 < 1 - from_nine / without < 0.85
    told = advise(seconds, tokens, PUBLIC)
    assert told.cost <= from_nine
    night = [minute for period in told.periods for minute in range(period.begin, period.end + 1) if 120 <= minute < 480]
    assert not night  # nobody asks from 2 to 8
    assert any(period.minutes > 10 * 60 for period in told.periods)


def test_a_call_log_is_read_and_advised_on(tmp_path: Path) -> None:
    log = tmp_path / "day.jsonl"
    busy = [{"at": second, "prefix": "manual", "prefix_tokens": 100_000} for second in group_day()]
    rare = [{"at": 3600.0 * n, "prefix": "rare", "prefix_tokens": 100_000} for n in range(4)]
    log.write_text("\n".join(json.dumps(line) for line in [*busy, *rare]) + "\n\n")
    prefixes, nested = read_prefixes(log)
    assert not nested and {prefix.name for prefix in prefixes} == {"manual", "rare"}
    assert [one.name for one in best_advice(prefixes, nested, PUBLIC)] == ["manual"]


def test_the_command_prints_when_to_hold_which_cache(tmp_path: Path) -> None:
    log = tmp_path / "day.jsonl"
    lines = [{"at": second, "prefix": "manual", "prefix_tokens": 100_000} for second in group_day()]
    log.write_text("\n".join(json.dumps(line) for line in lines))
    prices = ["--input", "60", "--creation", "24", "--storage-minute", "5", "--call", "0.02"]
    command = CommandLine("")
    assert "09:00-00:00" in command.run("bill", "advise", str(log), *prices)
    [told] = command.json("bill", "advise", str(log), *prices)
    assert told["calls"] == len(lines) and told["periods"][-1]["drop"] == 86_400
    assert "no prefix" in command.run("bill", "advise", str(log), "--input", "0", *prices[2:]).lower()
    assert "no Conductor" in command.run("bill", "--conductor", "http://127.0.0.1:1", expect=69)


def test_in_a_trace_the_prefix_that_many_share_is_found(tmp_path: Path) -> None:
    trace = tmp_path / "day.trace"
    requests = [
        Request(int(second * 1000), 200 * 512 + 512, 10, (*range(200), 10_000 + n))
        for n, second in enumerate(group_day())
    ]
    write_trace(trace, requests)
    prefixes, nested = read_prefixes(trace)
    assert nested and [(prefix.tokens, len(prefix.seconds)) for prefix in prefixes] == [(200 * 512, len(requests))]
    [best] = best_advice(prefixes, nested, PUBLIC)
    assert best.advice.saved_share > 0.65


def test_of_nested_prefixes_each_call_is_counted_once(tmp_path: Path) -> None:
    trace = tmp_path / "day.trace"
    requests = [
        Request(int(second * 1000), 201 * 512, 10, (*range(100), *(1000 + n % 2 * 1000 + i for i in range(101))))
        for n, second in enumerate(group_day(questions_an_hour=4))
    ]
    write_trace(trace, requests)
    found = best_advice(*read_prefixes(trace), PUBLIC)
    assert sum(one.advice.calls for one in found) == len(requests)


@pytest.mark.parametrize("text", ["", "{}\n", '{"at": 1, "prefix": "a", "prefix_tokens": 0}\n', "no json\n"])
def test_what_is_no_log_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "log").write_text(text)
    with pytest.raises(BadTrace, match="log"):
        read_prefixes(tmp_path / "log")
