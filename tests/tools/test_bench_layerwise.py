"""`mooncask bench layerwise` with a tiny model: every length and tier is measured, and the bucket is what it says it is."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median

from tiny_model import write_tiny_llama
from typer.testing import CliRunner

from mooncask.tools.bench.layerwise_result import FULL, QUICK, Layered, Row, facts
from mooncask.tools.bench.paced_link import Lane, Progress
from mooncask.tools.main import app


def test_every_length_and_tier_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    model = write_tiny_llama(tmp_path / "tiny")
    result = CliRunner().invoke(app, ["bench", "layerwise", "--quick", "--model", str(model), "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = json.loads(file.read_text())["rows"]
    assert [(row["tokens"], row["share"]) for row in rows] == [(n, s) for n in QUICK.tokens for s in QUICK.shares]
    for row in rows:
        assert row["kv_bytes"] == row["tokens"] * 3 * 2 * 2 * 16 * 4, "every block was stored"
        assert len(row["runs"]) == (QUICK.repeats if row["share"] == 1 else 1)
        first = row["runs"][0]
        alone = median(run["alone_seconds"] for run in row["runs"])
        assert row["serial_seconds"] >= 0.99 * alone / row["share"], "the tier is no faster than it may be"
        assert first["compute_seconds"] > 0 and first["calling_seconds"] > 0
        assert first["tier_seconds"] >= 0.99 * first["alone_seconds"] * (1 / row["share"] - 1)
    assert "visible ÷ serial" in result.output


def test_a_prefill_is_as_far_as_it_was_alone_when_it_had_passed_the_same_marks() -> None:
    clock = Progress([0.5, 100.0])
    assert clock.now() < 0.5
    clock.passed()
    assert 0.5 <= clock.now() < 10.0, "as if the first mark had been passed in its time"
    clock.passed()
    assert 100.0 <= clock.now() < 110.0
    behind = Progress([0.0, 0.0])
    behind.passed()
    assert behind.now() == 0.0, "it waits for the next mark, which it had passed by then alone"
    assert Progress().now() >= 0.0


def test_pieces_go_through_the_lane_in_order_and_at_its_rate() -> None:
    stored, threads = list[int](), threading.active_count()
    with Lane() as lane:
        lane.pace(1e6, Progress())
        started = time.perf_counter()
        for number in range(4):
            lane.put(25_000, partial(stored.append, number))
        lane.wait()
        assert time.perf_counter() - started >= 0.1
        assert 0.1 <= lane.through_at < 0.2
    assert stored == [0, 1, 2, 3]
    assert threading.active_count() == threads


def test_what_copying_takes_is_not_taken_from_the_tiers_rate() -> None:
    with Lane() as lane:
        lane.pace(1e6, Progress())
        for _ in range(4):
            lane.put(25_000, lambda: time.sleep(0.02))
        lane.wait()
        assert lane.through_at < 0.11, "four pieces of 25 ms, however long each was copied"


def run_of(visible: float, alone: float = 16.0) -> Layered:
    return Layered(alone, alone, 0.0, visible, 0.0)


def row(tokens: int, visible: float, serial: float, share: float = 1.0) -> Row:
    return Row(tokens, share, 1, serial, (run_of(visible),))


@pytest.mark.parametrize(
    ("longest", "met"), [((0.2, 16.0), [True, True]), ((0.5, 16.0), [True, False]), ((4.0, 16.0), [False, False])]
)
def test_only_a_tier_that_takes_all_is_held_against_the_target(longest: tuple[float, float], met: list[bool]) -> None:
    rows = [row(512, 0.15, 2.0), row(512, 3.0, 4.0, share=0.5), row(4096, *longest), row(4096, 16.0, 32.0, share=0.5)]
    assert [fact.met for fact in facts(rows, judged=True)] == met
    assert facts(rows, judged=False) == []


def test_one_run_that_was_disturbed_decides_nothing() -> None:
    disturbed = Row(4096, 1.0, 1, 16.0, (run_of(0.2), run_of(9.0), run_of(0.1)))
    assert disturbed.visible_seconds == 0.2 and disturbed.ratio == 0.2 / 16


def test_what_a_slow_tier_must_show_is_told_apart_from_what_storing_adds() -> None:
    slow = Row(512, 0.5, 100, 10.0, (Layered(5.0, 6.0, 0.1, 5.2, 0.3),))
    assert slow.visible_seconds == pytest.approx(5.6) and slow.added_seconds == pytest.approx(0.6)
    assert slow.runs[0].slowed_seconds == 1.0 and slow.as_json()["added_seconds"] == slow.added_seconds


def test_the_full_run_is_the_one_that_was_asked_for() -> None:
    assert FULL.tokens == (512, 1024, 2048, 4096) and set(FULL.shares) == {0.25, 0.5, 1.0} and FULL.judged
