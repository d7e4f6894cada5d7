"""Load or recompute: the decision against its definition, and what the measured speeds remember."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.engine_adapter.transformers.loading import (
    NO_HIT,
    REFUSALS_MAX,
    Hit,
    LoadPolicy,
    Speeds,
    Work,
    decide,
    left_out,
)

DRAM, NVME = 2, 3
MIB = 1 << 20


def hit_of(*tiers: int, seconds_a_block: float = 0.001) -> Hit:
    return Hit(tiers, tuple((i + 1) * seconds_a_block for i in range(len(tiers))))


def work_for(hit: Hit, tail: int = 5) -> Work:
    return Work(tokens=len(hit) * 16 + tail, block_tokens=16, block_bytes=MIB)


@st.composite
def situations(draw: st.DrawFn) -> tuple[Work, Hit, Speeds]:
    tiers = tuple(draw(st.lists(st.sampled_from([DRAM, NVME]), max_size=20)))
    steps = draw(st.lists(st.floats(0, 1), min_size=len(tiers), max_size=len(tiers)))
    forecast = tuple(sum(steps[: i + 1]) for i in range(len(steps)))
    rates = draw(st.dictionaries(st.sampled_from([DRAM, NVME]), st.floats(1e3, 1e10)))
    hit = Hit(tiers, forecast)
    return work_for(hit, draw(st.integers(1, 16))), hit, Speeds(draw(st.floats(1, 1e6)), rates)


def seconds_when_loading(blocks: int, work: Work, hit: Hit, speeds: Speeds) -> float:
    """The definition, spelled out block by block."""
    total = (work.tokens - blocks * work.block_tokens) / (speeds.prefill_tokens or 1)
    for i in range(blocks):
        rate = speeds.load_bytes.get(hit.tiers[i])
        before = hit.forecast_seconds[i - 1] if i else 0.0
        total += hit.forecast_seconds[i] - before if rate is None else work.block_bytes / rate
    return total


@given(situations())
def test_no_other_prefix_length_is_faster_by_the_measured_speeds(situation: tuple[Work, Hit, Speeds]) -> None:
    work, hit, speeds = situation
    chosen = seconds_when_loading(decide(work, hit, speeds).blocks, work, hit, speeds)
    best = min(seconds_when_loading(blocks, work, hit, speeds) for blocks in range(len(hit) + 1))
    assert chosen == pytest.approx(best)


@given(situations())
def test_it_is_never_slower_than_recomputing(situation: tuple[Work, Hit, Speeds]) -> None:
    decision = decide(*situation)
    assert decision.load_seconds + decision.compute_seconds <= decision.recompute_seconds * (1 + 1e-9)


def test_a_fast_tier_is_loaded_and_a_slow_one_recomputed() -> None:
    hit = hit_of(DRAM, DRAM)
    fast, slow = Speeds(300, {DRAM: 1e9}), Speeds(300, {DRAM: 1e6})
    assert decide(work_for(hit), hit, fast).blocks == 2
    assert decide(work_for(hit), hit, slow).blocks == 0
    assert decide(work_for(hit), hit, slow).reason == "recomputing is faster"


def test_a_prefix_in_dram_is_loaded_when_its_slow_rest_on_nvme_is_not_worth_it() -> None:
    hit = hit_of(DRAM, DRAM, NVME, NVME)
    decision = decide(work_for(hit), hit, Speeds(300, {DRAM: 1e9, NVME: 1e6}))
    assert (decision.blocks, decision.reason) == (2, "loading a part is faster")


def test_what_was_never_measured_is_taken_from_the_daemons_forecast() -> None:
    quick, slow = hit_of(NVME, seconds_a_block=0.001), hit_of(NVME, seconds_a_block=10.0)
    assert decide(work_for(quick), quick, Speeds(300)).blocks == 1
    assert decide(work_for(slow), slow, Speeds(300)).blocks == 0


def test_before_any_prefill_was_measured_everything_is_loaded() -> None:
    hit = hit_of(NVME, seconds_a_block=10.0)
    assert decide(work_for(hit), hit, Speeds()).blocks == 1


def test_the_policy_can_be_always_or_never() -> None:
    hit, speeds = hit_of(DRAM), Speeds(300, {DRAM: 1.0})
    assert decide(work_for(hit), hit, speeds, LoadPolicy.ALWAYS).blocks == 1
    assert decide(work_for(hit), hit, Speeds(300, {DRAM: 1e12}), LoadPolicy.NEVER).blocks == 0


def test_without_a_hit_there_is_nothing_to_decide() -> None:
    assert decide(Work(100, 16, MIB), NO_HIT, Speeds(300)).reason == "nothing is cached"


def test_a_tail_of_a_few_tokens_hardly_changes_the_measured_prefill_speed() -> None:
    speeds = Speeds()
    speeds.observe_prefill(256, 1.0)
    speeds.observe_prefill(1, 1.0)
    assert speeds.prefill_tokens == pytest.approx(256, rel=0.01)


def test_averages_follow_a_lasting_change() -> None:
    speeds = Speeds()
    speeds.observe_load({NVME: 64 * MIB}, 0.064)
    for _ in range(10):
        speeds.observe_load({NVME: 64 * MIB}, 6.4)
    assert speeds.load_bytes[NVME] == pytest.approx(64 * MIB / 6.4, rel=0.05)


def test_the_slowest_tier_of_a_mixed_load_gets_the_time_the_others_leave_over() -> None:
    speeds = Speeds()
    speeds.observe_load({DRAM: 100 * MIB}, 0.1)
    speeds.observe_load({DRAM: 100 * MIB, NVME: 100 * MIB}, 1.1)
    assert speeds.load_bytes[NVME] == pytest.approx(100 * MIB / 1.0)
    assert speeds.load_bytes[DRAM] == pytest.approx(100 * MIB / 0.1)


def test_a_tier_that_was_slow_once_is_tried_again_after_many_refusals() -> None:
    speeds, hit = Speeds(300, {NVME: 1.0}), hit_of(NVME)
    for _ in range(REFUSALS_MAX):
        assert decide(work_for(hit), hit, speeds).blocks == 0
        speeds.note(decide(work_for(hit), hit, speeds), hit)
    assert decide(work_for(hit), hit, speeds).blocks == 1


def test_a_tier_that_turned_slow_is_known_for_it_after_one_load() -> None:
    speeds = Speeds()
    speeds.observe_load({NVME: 256 * MIB}, 0.25)
    speeds.observe_late(NVME, 2 * MIB, 1.0)
    assert speeds.load_bytes[NVME] < 32 * MIB
    hit = hit_of(*[NVME] * 64)
    assert decide(work_for(hit), hit, Speeds(1000, dict(speeds.load_bytes))).blocks == 0


def test_a_late_load_does_not_make_a_slow_tier_look_faster() -> None:
    speeds = Speeds(300, {NVME: 1e5})
    speeds.observe_late(NVME, 64 * MIB, 1.0)
    assert speeds.load_bytes[NVME] == 1e5


def test_the_slow_rest_of_a_prefix_is_tried_again_too_though_its_beginning_is_always_loaded() -> None:
    speeds, hit = Speeds(300, {DRAM: 1e9, NVME: 1.0}), hit_of(DRAM, NVME)
    for _ in range(REFUSALS_MAX):
        assert decide(work_for(hit), hit, speeds).blocks == 1
        speeds.note(decide(work_for(hit), hit, speeds), hit)
    assert decide(work_for(hit), hit, speeds).blocks == 2


def test_what_is_left_out_is_told_with_both_times() -> None:
    hit, speeds = hit_of(DRAM, DRAM, NVME, NVME), Speeds(300, {DRAM: 1e9, NVME: 1e6})
    rest = left_out(work_for(hit), hit, speeds, decide(work_for(hit), hit, speeds))
    assert rest is not None and (rest.first, rest.blocks, rest.tier) == (2, 2, NVME)
    assert rest.load_seconds == pytest.approx(2 * MIB / 1e6) and rest.compute_seconds == pytest.approx(32 / 300)


def test_nothing_is_told_where_it_was_not_speed_that_decided() -> None:
    hit = hit_of(DRAM)
    for speeds, policy in (
        (Speeds(300), LoadPolicy.NEVER),
        (Speeds(300), LoadPolicy.AUTO),
        (Speeds(), LoadPolicy.AUTO),
    ):
        assert left_out(work_for(hit), hit, speeds, decide(work_for(hit), hit, speeds, policy)) is None
