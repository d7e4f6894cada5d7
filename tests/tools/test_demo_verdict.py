"""What makes a demo run good or bad: the comparison of tokens with its rule for ties, and the verdict."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.tools.demo.report import document
from mooncask.tools.demo.verdict import TIE_GAP, Comparison, Control, Phase, Row, compare, judge

CLEAR, TIED = 0.5, TIE_GAP / 2
ROW = Row(
    phase=Phase.FIRST,
    name="question 1",
    prompt_tokens=1600,
    loaded_dram=1584,
    loaded_nvme=0,
    computed_by_prefill=0,
    computed_by_decode=16,
    ttft_cold_s=6.0,
    ttft_s=0.5,
    comparison=Comparison.IDENTICAL,
    reason="loading is faster",
    faults=0,
)
GOOD = [ROW, replace(ROW, phase=Phase.AFTER_KILL, loaded_dram=0, loaded_nvme=1584)]
CONTROL = Control(Comparison.IDENTICAL, Comparison.DIFFERENT, copied_loaded=1584, flipped_loaded=1584)


@given(st.lists(st.integers(0, 9)))
def test_equal_tokens_are_identical_whatever_the_gaps(tokens: list[int]) -> None:
    assert compare(tokens, [0.0] * len(tokens), tokens) is Comparison.IDENTICAL


def test_a_first_difference_where_the_reference_tossed_a_coin_is_a_tie() -> None:
    assert compare([1, 2, 3], [CLEAR, TIED, CLEAR], [1, 9, 9]) is Comparison.TIE


def test_a_first_difference_where_the_reference_was_sure_is_a_difference() -> None:
    assert compare([1, 2, 3], [TIED, CLEAR, TIED], [1, 9, 3]) is Comparison.DIFFERENT


def test_a_tie_after_a_difference_excuses_nothing() -> None:
    assert compare([1, 2, 3], [CLEAR, CLEAR, TIED], [1, 9, 9]) is Comparison.DIFFERENT


def test_an_answer_that_ends_early_or_late_is_a_difference() -> None:
    assert compare([1, 2, 3], [CLEAR] * 3, [1, 2]) is Comparison.DIFFERENT
    assert compare([1, 2], [CLEAR] * 2, [1, 2, 3]) is Comparison.DIFFERENT


def test_a_run_with_equal_tokens_reuse_and_a_control_that_differs_is_ok() -> None:
    verdict = judge(GOOD, CONTROL)
    assert verdict.ok
    assert verdict.full_hit_speedup == pytest.approx(12.0)


def test_a_tie_is_counted_and_excused() -> None:
    verdict = judge([replace(GOOD[0], comparison=Comparison.TIE), GOOD[1]], CONTROL)
    assert (verdict.ok, verdict.ties) == (True, 1)


@pytest.mark.parametrize("phase", Phase)
def test_a_difference_in_either_phase_is_a_problem(phase: Phase) -> None:
    rows = [replace(row, comparison=Comparison.DIFFERENT) if row.phase is phase else row for row in GOOD]
    assert judge(rows, CONTROL).problems == (f"{phase}, question 1: tokens differ from the run without the store",)


@pytest.mark.parametrize("phase", Phase)
def test_reusing_nothing_is_a_problem(phase: Phase) -> None:
    rows = [replace(row, loaded_dram=0, loaded_nvme=0) if row.phase is phase else row for row in GOOD]
    assert judge(rows, CONTROL).problems == (f"{phase}: nothing was reused",)


@pytest.mark.parametrize(
    "control",
    [
        replace(CONTROL, flipped=Comparison.IDENTICAL),
        replace(CONTROL, copied=Comparison.DIFFERENT),
        replace(CONTROL, flipped_loaded=0),
        replace(CONTROL, copied_loaded=0),
    ],
)
def test_a_negative_control_that_shows_nothing_is_a_problem(control: Control) -> None:
    (problem,) = judge(GOOD, control).problems
    assert problem.startswith("negative control")


def test_only_full_hits_of_long_prompts_count_for_the_speed_up() -> None:
    others = [replace(ROW, computed_by_prefill=16, ttft_s=3.0), replace(ROW, prompt_tokens=100, ttft_s=3.0)]
    assert judge([*GOOD, *others], CONTROL).full_hit_speedup == pytest.approx(12.0)
    assert judge([replace(row, computed_by_prefill=16) for row in GOOD], CONTROL).full_hit_speedup is None


def test_the_json_has_the_fields_that_programs_read() -> None:
    found = document(GOOD, CONTROL, judge(GOOD, CONTROL))
    assert found["ok"] is True
    first = found["requests"][0]
    assert first["loaded"] == {"dram": 1584, "nvme": 0}
    assert (first["prompt_tokens"], first["speedup"], first["tokens_identical"]) == (1600, 12.0, True)
    assert (first["ttft_cold_s"], first["ttft_s"]) == (6.0, 0.5)
