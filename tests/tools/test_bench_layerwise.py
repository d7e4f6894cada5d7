"""`mooncask bench layerwise` with a tiny model: every length and tier is measured, and the bucket is what it says it is."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
import threading
import time
from pathlib import Path

from tiny_model import write_tiny_llama
from typer.testing import CliRunner

from mooncask.tools.bench.layerwise_result import FULL, QUICK, Row, facts
from mooncask.tools.bench.paced_link import Lane, Piece
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
        assert row["rate_bytes"] == pytest.approx(row["share"] * row["kv_bytes"] / row["alone_seconds"])
        assert row["serial_seconds"] >= 0.99 * row["kv_bytes"] / row["rate_bytes"], (
            "the tier is no faster than it may be"
        )
        assert row["visible_seconds"] > 0 and row["compute_seconds"] > 0
    assert "visible ÷ serial" in result.output


def test_pieces_go_through_the_lane_in_order_and_at_its_rate() -> None:
    stored, threads = list[int](), threading.active_count()
    with Lane() as lane:
        lane.pace(1e6)
        started = time.perf_counter()
        for number in range(4):
            lane.put(Piece(25_000, lambda n=number: stored.append(n)))
        lane.wait()
        assert time.perf_counter() - started >= 0.1
    assert stored == [0, 1, 2, 3]
    assert threading.active_count() == threads


def row(tokens: int, visible: float, serial: float, share: float = 1.0) -> Row:
    return Row(tokens, share, 1, 1.0, 1.0, 1.0, visible, serial)


@pytest.mark.parametrize(
    ("longest", "met"), [((0.2, 16.0), [True, True]), ((0.5, 16.0), [True, False]), ((4.0, 16.0), [False, False])]
)
def test_only_a_tier_that_takes_all_is_held_against_the_target(longest: tuple[float, float], met: list[bool]) -> None:
    rows = [row(512, 0.15, 2.0), row(512, 3.0, 4.0, share=0.5), row(4096, *longest), row(4096, 16.0, 32.0, share=0.5)]
    assert [fact.met for fact in facts(rows, judged=True)] == met
    assert facts(rows, judged=False) == []


def test_what_a_slow_tier_must_show_is_told_apart_from_what_storing_adds() -> None:
    slow = Row(
        512,
        0.5,
        kv_bytes=100,
        rate_bytes=10.0,
        alone_seconds=5,
        compute_seconds=6,
        visible_seconds=4.5,
        serial_seconds=10,
    )
    assert slow.unavoidable_seconds == 4.0 and slow.as_json()["visible_of_serial"] == 0.45
    assert Row(512, 1.0, 100, 20.0, 5, 6, 0.5, 5).unavoidable_seconds == 0.0


def test_the_full_run_is_the_one_that_was_asked_for() -> None:
    assert FULL.tokens == (512, 1024, 2048, 4096) and FULL.shares == (0.25, 0.5, 1.0) and FULL.judged
