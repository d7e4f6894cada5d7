"""Miss-ratio curves: exact at rate 1, unbiased below it, and lawful."""

from functools import cache
from random import Random
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from public_trace import conversation_trace

from mooncask.conductor.planner.curves import Curve, Point, Sample, miss_ratio_curve, sample_trace
from mooncask.conductor.replay.policies import ReplayOptions, replay_named
from mooncask.conductor.traces.jsonl import read_trace
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.workloads import Chats
from mooncask.errors import BadArgument

CAPACITIES = (300, 1000, 3000)
POINT_AT_A_TENTH = ("lru", "fifo", "lfu", "s3fifo", "2q", "arc", "sieve", "min")
"""Not foresight: it learns from fewer accesses in a sample (docs/PLANNER.md)."""


@cache
def chats() -> tuple[Request, ...]:
    """About 1,800 requests with 9,000 different blocks, and system prompts that many share."""
    return tuple(Chats(per_second=1.0).requests(900, Random(7), Numbers()))


@cache
def sample(rate: float, seed: int) -> Sample:
    return sample_trace(chats(), rate, seed=seed)


def exact(policy: str, capacity: int) -> float:
    return replay_named(policy, chats(), capacity, ReplayOptions()).hit_rate


@pytest.mark.parametrize("policy", ["lru", "s3fifo", "arc", "min"])
def test_a_rate_of_one_gives_the_exact_hit_rates(policy: str) -> None:
    points = miss_ratio_curve(sample(1.0, 0), policy, CAPACITIES).points
    assert [point.hit_rate for point in points] == pytest.approx([exact(policy, c) for c in CAPACITIES], abs=1e-12)


@pytest.mark.parametrize("capacity", CAPACITIES)
def test_samples_of_a_tenth_are_right_on_average(capacity: int) -> None:
    found = [miss_ratio_curve(sample(0.1, seed), "lru", [capacity]).points[0].hit_rate for seed in range(24)]
    wrong = fmean(found) - exact("lru", capacity)
    assert abs(wrong) < max(0.01, 3 * stdev(found) / len(found) ** 0.5)


def test_a_sample_asks_the_policy_about_a_share_of_the_accesses_that_is_the_rate() -> None:
    unshared = sample(0.1, 0).accesses - sum(sample(0.1, 0).shared_prefixes)
    asked = fmean(sample(0.1, seed).sampled_accesses for seed in range(8))
    assert asked == pytest.approx(0.1 * unshared, rel=0.1)


def test_an_unlimited_cache_is_exact_at_every_rate() -> None:
    assert miss_ratio_curve(sample(0.05, 3), "lru", [10**6]).points[0].hit_rate == exact("lru", 10**6)


prompts = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=40)


def as_trace(texts: list[list[int]]) -> list[Request]:
    """Equal ids mean equal prefixes: an id is the number that the digits up to there make."""
    ids = [tuple(int("1" + "".join(map(str, text[: n + 1]))) for n in range(len(text))) for text in texts]
    return [Request(second * 1000, 512 * len(keys), 1, keys) for second, keys in enumerate(ids)]


@settings(max_examples=60, deadline=None)
@given(prompts, st.sampled_from([0.3, 0.7, 1.0]), st.integers(0, 3))
def test_the_offline_bound_rises_with_capacity_and_stays_a_share(
    texts: list[list[int]], rate: float, seed: int
) -> None:
    found = sample_trace(as_trace(texts), rate, seed=seed)
    rates = [point.hit_rate for point in miss_ratio_curve(found, "min", range(1, 30, 3)).points]
    assert rates == sorted(rates) and all(0 <= rate <= 1 for rate in rates)


def test_the_curve_of_lru_rises_with_capacity() -> None:
    rates = [p.hit_rate for p in miss_ratio_curve(sample(0.2, 0), "lru", range(100, 6000, 300)).points]
    assert rates == sorted(rates) and rates[0] < rates[-1]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1e4), st.floats(0, 1e4))
def test_a_larger_cache_never_keeps_less_even_where_the_policy_dips(kept: list[float], one: float, two: float) -> None:
    curve = Curve("arc", tuple(Point(1000 * (n + 1), share, share) for n, share in enumerate(kept)))
    assert curve.kept(min(one, two)) <= curve.kept(max(one, two))
    assert curve.kept(0) == 0


def test_between_points_the_curve_is_a_straight_line() -> None:
    curve = Curve("lru", (Point(100, 0.2, 0.2), Point(200, 0.6, 0.6)))
    assert [curve.kept(c) for c in (50, 100, 150, 200, 900)] == pytest.approx([0.1, 0.2, 0.4, 0.6, 0.6])


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate: float) -> None:
    with pytest.raises(BadArgument, match="--rate"):
        sample_trace(chats(), rate)


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(BadArgument, match="did you mean sieve"):
        miss_ratio_curve(sample(0.1, 0), "sive", [100])


@pytest.mark.slow
@pytest.mark.parametrize("policy", POINT_AT_A_TENTH)
def test_on_the_public_trace_the_error_of_a_tenth_is_below_a_point(policy: str) -> None:
    trace = tuple(read_trace(conversation_trace()))
    capacities = (1000, 10_000, 30_000, 50_000, 100_000)
    for point in miss_ratio_curve(sample_trace(trace, 0.1), policy, capacities).points:
        right = replay_named(policy, trace, point.capacity_blocks, ReplayOptions()).hit_rate
        assert point.hit_rate == pytest.approx(right, abs=0.01)


@pytest.mark.slow
def test_on_a_long_trace_a_hundredth_of_the_work_is_within_a_point() -> None:
    trace = tuple(Chats(per_second=10.0).requests(6000, Random(11), Numbers()))
    found = sample_trace(trace, 0.01)
    assert found.accesses > 100 * found.sampled_accesses
    for point in miss_ratio_curve(found, "lru", (10_000, 50_000)).points:
        right = replay_named("lru", trace, point.capacity_blocks, ReplayOptions()).hit_rate
        assert point.hit_rate == pytest.approx(right, abs=0.01)
