"""What insight remembers, part by part: departures exactly and vaguely, frequent things, rates. Each has an end."""

import random

import pytest

from mooncask.daemon.insight import gone as gone_module
from mooncask.daemon.insight.counts import HALF_LIFE_SECONDS, FadingCounts
from mooncask.daemon.insight.gone import FILTER_KEYS, Gone, KeyFilter, Name
from mooncask.daemon.insight.rates import Rates, RecentPrefixes
from mooncask.daemon.insight.verdicts import clock_text
from mooncask.tiers.block import TierName
from mooncask.tiers.departures import Departure, Departures


def departure(number: int, reason: str = "evicted", key: bytes = b"") -> Departure:
    return Departure(1000.0 + number, 1, key or b"k%d" % number, TierName.DRAM, reason, 10)


def filled(log: Departures, gone: Gone, *departures: Departure) -> Gone:
    for one in departures:
        log.note(*one)
    while gone.absorb():
        pass
    return gone


def test_the_newest_departures_are_known_exactly_and_older_ones_vaguely() -> None:
    log = Departures()
    gone = filled(log, Gone(log, 3, 1000.0), *(departure(number) for number in range(5)))
    assert [gone.last(1, b"k%d" % number) is not None for number in range(5)] == [False, False, True, True, True]
    assert [one.key for one in gone.newest()] == [b"k4", b"k3", b"k2"]
    assert gone.may_have_been(1, b"k0") and gone.may_have_been(1, b"k1")
    assert not gone.may_have_been(1, b"never") and not gone.may_have_been(2, b"k0"), "another namespace's is another"
    assert (gone.exact_since_seconds, gone.known_since_seconds) == (1001.0, 1000.0)


def test_a_key_that_leaves_again_is_told_of_its_last_time() -> None:
    log = Departures()
    gone = filled(log, Gone(log, 3, 1000.0), departure(1), departure(2), departure(3, "deleted", b"k1"))
    last = gone.last(1, b"k1")
    assert last is not None and (last.reason, last.seconds, len(gone)) == ("deleted", 1003.0, 2)


def test_departures_that_came_too_fast_make_the_log_begin_later() -> None:
    log = Departures(most=10)
    gone = filled(log, Gone(log, 100, 1000.0), departure(0))
    assert gone.exact_since_seconds == 1000.0
    filled(log, gone, *(departure(number) for number in range(1, 31)))
    assert gone.exact_since_seconds == gone.known_since_seconds == 1030.0 - 9, "of 30 the log kept the last 10"


def test_a_filter_says_yes_to_all_that_was_added_and_seldom_to_others() -> None:
    chosen = KeyFilter(0.0)
    keys = [Name(number % 3, random.Random(number).randbytes(16)) for number in range(20_000)]
    for name in keys[:10_000]:
        chosen.add(name)
    assert all(name in chosen for name in keys[:10_000])
    assert sum(name in chosen for name in keys[10_000:]) < 5


def test_filters_are_replaced_before_they_say_yes_to_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gone_module, "FILTER_KEYS", 100)
    log = Departures()
    gone = filled(log, Gone(log, 1, 1000.0), *(departure(number) for number in range(250)))
    assert gone.may_have_been(1, b"k240") and not gone.may_have_been(1, b"k50")
    assert gone.known_since_seconds == 1100.0 and FILTER_KEYS > 100


# --- frequent things -----------------------------------------------------------------------------------------------------


def test_what_is_read_often_is_found_among_very_many_others() -> None:
    counts: FadingCounts[int] = FadingCounts(50, 0.0)
    chance = random.Random(3)
    for second in range(60):
        seen: dict[int, int] = {1: 20, 2: 10}
        for _ in range(100):
            seen[chance.randrange(10, 1_000_000)] = 1
        counts.add(seen, float(second))
        assert len(counts) <= 100
    first, second_most = counts.most_frequent(2, 60.0)
    assert (first.thing, second_most.thing) == (1, 2)
    assert 4 < first.rate <= 20, "never too high; too low by what the others took"


def test_a_steady_rate_is_told_as_it_is_and_fades_when_it_stops() -> None:
    counts: FadingCounts[str] = FadingCounts(10, 0.0)
    for second in range(600):
        counts.add({"a": 5}, float(second))
        counts.start_anew_if_needed(float(second))
    assert counts.most_frequent(1, 600.0)[0].rate == pytest.approx(5, rel=0.02)
    assert counts.most_frequent(1, 600.0 + HALF_LIFE_SECONDS)[0].rate == pytest.approx(2.5, rel=0.02)
    counts.start_anew_if_needed(1e6)
    assert len(counts) == 0, "what has faded is forgotten"


# --- rates ---------------------------------------------------------------------------------------------------------------


def test_a_rate_is_the_growth_over_the_window() -> None:
    rates: Rates[str] = Rates(10.0, 0.0)
    assert rates.of({"a": 50}, 5.0) == {"a": 10.0}, "since the start, as long as that is less than a window ago"
    for second in range(1, 31):
        rates.snapshot({"a": 100 * second}, float(second))
    assert rates.of({"a": 3100, "new": 20}, 31.0) == {"a": 100.0, "new": pytest.approx(20 / 11)}


def test_hit_rates_forget_what_is_older_than_their_window() -> None:
    recent = RecentPrefixes(10.0, 3)
    for second in range(0, 60, 10):
        recent.add(1, 100, second, float(second))
    assert recent.of(1, 59.0) == (300, 30 + 40 + 50)
    assert recent.of(1, 500.0) == (0, 0) and recent.of(2, 59.0) == (0, 0)


def test_times_are_told_with_the_date_where_it_is_another_day() -> None:
    now = 1_700_000_000.0
    assert len(clock_text(now - 60, now)) == len("12:04:11")
    assert clock_text(now - 5 * 86400, now).startswith("2023-11-0")
