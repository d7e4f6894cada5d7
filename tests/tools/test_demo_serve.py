"""`mooncask demo-serve`: its load, its figures and its comparison with the simulator, and a short run as its user sees it."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from demo_runs import demo_folder, interrupt_demo

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.tools.demo.serving.chats import Shape, cut, documents, make_chats
from mooncask.tools.demo.serving.command import make_plan
from mooncask.tools.demo.serving.reply import Levels, Outcome, Reply, figures, quantile, spreads
from mooncask.tools.demo.serving.simulated import Constants, compare, not_negative_prefill, trace_of

COMMAND = [sys.executable, "-m", "mooncask.tools", "demo-serve", "--quick"]
LEVELS = Levels(2.0, 0.2)
GOOD = Reply(
    chat="chat 1", turn=0, sent=0.0, outcome=Outcome.ANSWERED, ttft=1.0, gaps=(0.1, 0.1, 0.15), seconds=1.4,
    prompt_ids=tuple(range(100)), answer_ids=(1, 2, 3, 4), cached_tokens=64,
)  # fmt: skip


# --- the load --------------------------------------------------------------------------------------------------------


def test_a_seed_draws_the_same_chats_again_and_another_seed_others() -> None:
    texts = documents()
    shape = Shape(10, 3, 4)
    assert make_chats(shape, 1.0, 7, texts) == make_chats(shape, 1.0, 7, texts)
    assert make_chats(shape, 1.0, 7, texts) != make_chats(shape, 1.0, 8, texts)


def test_chats_arrive_at_the_rate_that_is_asked_for_and_share_their_documents() -> None:
    chats = make_chats(Shape(400, 3, 5), 2.0, 1, documents())
    assert 400 * 3 / chats[-1].at == pytest.approx(2.0, rel=0.2)
    assert len({chat.document for chat in chats}) == 5
    assert all(len(chat.questions) == 3 and len(set(chat.questions)) == 3 for chat in chats)
    assert all(len(chat.pauses) == 2 and min(chat.pauses) > 0 for chat in chats)


def test_documents_are_pieces_of_one_length_that_begin_with_a_paragraph() -> None:
    assert {len(piece) for piece in documents()} == {1400}
    assert cut("one\n\ntwo and more\n\n| a | table |\n\nthe rest", 10) == ["one\n\ntwo a"]


def test_the_overload_run_compares_admissions_and_the_plain_one_placements() -> None:
    plain, over = make_plan(False, False, 3, 20, 0.0), make_plan(False, True, 3, 20, 0.0)
    assert len({one.placement for one in plain.variants}) == 4
    assert [one.admission for one in over.variants] == ["none", "baseline", "early", "predicted"]
    assert [one.pause for one in make_plan(False, False, 3, 20, 0.0, pause=True).variants] == ["never", "slo"]
    assert plain.shape.requests >= 60
    assert (plain.load, over.load) == (0.7, 2.0)


# --- figures ---------------------------------------------------------------------------------------------------------


def test_goodput_counts_what_was_planned_also_where_it_was_never_sent() -> None:
    slow, stuttering = replace(GOOD, ttft=3.0), replace(GOOD, gaps=(0.1, 0.5, 0.5))
    early, late = replace(GOOD, outcome=Outcome.REJECTED_EARLY), replace(GOOD, outcome=Outcome.REJECTED_LATE)
    found = figures([GOOD, slow, stuttering, early, late], 10, LEVELS)
    assert found.goodput == 0.1
    assert (found.rejected_early, found.rejected_late, found.failed) == (1, 1, 0)
    assert found.accepted_and_failed == 1 / 4
    assert found.cached_share == 0.64
    assert found.ttft_mean == pytest.approx(5 / 3)


def test_a_run_without_any_answer_has_figures_too() -> None:
    found = figures([replace(GOOD, outcome=Outcome.FAILED)], 3, LEVELS)
    assert math.isnan(found.ttft_mean)
    assert (found.goodput, found.failed, found.accepted_and_failed) == (0, 1, 1)


def test_seeds_are_told_as_their_median_and_range() -> None:
    runs = [figures([replace(GOOD, ttft=ttft)], 1, LEVELS) for ttft in (0.5, 3.0, 1.0)]
    told = spreads(runs)["ttft_mean"]
    assert (told.middle, told.least, told.most) == (1.0, 0.5, 3.0)
    assert quantile([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0.9) == 9


# --- the simulator ---------------------------------------------------------------------------------------------------

CONSTANTS = Constants(
    prefill=PolynomialPrefill(0.003, 1e-8, 0.1),
    step=LinearStep(0.05, 0.01, 1e-6),
    tail=PolynomialPrefill(0.004, 0.0, 0.02),
    kv_bytes_per_token=46080,
    fetch_bytes_per_second=1e9,
    layers=30,
    block_tokens=32,
    node_tokens=9216,
    dram_tokens=17000,
)


def test_equal_beginnings_are_the_same_blocks_of_the_trace() -> None:
    one, other = tuple(range(100)), (*range(64), 7, 7, 7)
    trace = trace_of([replace(GOOD, prompt_ids=one, sent=1.0), replace(GOOD, prompt_ids=other, sent=0.5)], 32)
    assert [request.timestamp_ms for request in trace] == [500, 1000]
    assert trace[0].hash_ids == (0, 1)
    assert trace[1].hash_ids == (0, 1, 2)


def test_blocks_that_an_answer_fills_are_there_for_the_prompt_that_goes_on_with_it() -> None:
    first = replace(GOOD, prompt_ids=tuple(range(60)), answer_ids=tuple(range(60, 70)))
    second = replace(GOOD, prompt_ids=tuple(range(100)), sent=5.0)
    trace = trace_of([first, second], 32)
    assert [request.hash_ids for request in trace] == [(0, 1), (0, 1, 2)]
    assert [request.input_length for request in trace] == [60, 100]
    ends = replace(GOOD, prompt_ids=tuple(range(60)), answer_ids=(60, 61, 62, 63))
    assert trace_of([ends], 32)[0].hash_ids == (0,)  # the last token was never fed


def test_a_request_alone_takes_in_the_simulator_what_its_costs_say() -> None:
    found = compare([replace(GOOD, ttft=0.5)], CONSTANTS, "kvcache-centric", LEVELS, 0)
    assert found is not None
    assert found.simulated == pytest.approx(0.1 + 96 * 0.003 + 0.02 + 4 * 0.004, rel=0.05)
    assert found.off == pytest.approx(abs(found.simulated - 0.5) / 0.5)
    assert compare([replace(GOOD, outcome=Outcome.FAILED)], CONSTANTS, "random", LEVELS, 0) is None


def test_a_negative_coefficient_is_taken_out_and_the_others_say_the_same_of_what_was_seen() -> None:
    learned = PolynomialPrefill(0.003, -1e-8, 0.2)
    seen = [(500, 0), (500, 448), (600, 512), (550, 64)]
    fitted = not_negative_prefill(learned, seen)
    assert min(fitted.fixed, fitted.linear, fitted.quadratic) >= 0
    for tokens, prefix in seen:
        assert fitted.seconds(tokens, prefix) == pytest.approx(learned.seconds(tokens, prefix), rel=0.05)


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return demo_folder(tmp_path, monkeypatch)


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_chats_through_a_conductor_are_answered_as_by_the_model_alone(temporary: Path) -> None:
    done = subprocess.run([*COMMAND, "--json", str(temporary / "demo.json")], check=False)
    found = json.loads((temporary / "demo.json").read_text())
    assert done.returncode == 0
    assert found["answers"]["different"] == []
    assert found["answers"]["answers"] >= 12
    assert [policy["placement"] for policy in found["policies"]] == ["random", "kvcache-centric"]
    for run in found["runs"]:
        outcomes = [request["outcome"] for request in run["requests"]]
        assert "failed" not in outcomes
        assert run["figures"]["cached_share"] > 0.3
        assert run["simulated_ttft"] > 0
    assert "kvcache-centric" in (temporary / "demo.md").read_text()
    assert list(temporary.glob("mooncask*")) == []


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_run_that_is_interrupted_leaves_no_process_and_no_folder(temporary: Path) -> None:
    interrupt_demo(COMMAND, temporary, 6, 90.0)  # two daemons, four workers, and a directory where there is a server
