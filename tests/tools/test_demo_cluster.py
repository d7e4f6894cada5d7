"""`mooncask demo-cluster`: its verdict, and a short run as its user sees it, which takes a minute or two."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from demo_runs import demo_folder, interrupt_demo

from mooncask.tools.demo.cluster_verdict import Phase, Row, Source, judge
from mooncask.tools.demo.verdict import Comparison

COMMAND = [sys.executable, "-m", "mooncask.tools", "demo-cluster", "--short"]
REMOTE = Row(
    phase=Phase.ALL_UP,
    name="question 1",
    node="n2",
    prompt_tokens=1600,
    local=0,
    remote=1584,
    computed=16,
    ttft_cold_s=6.0,
    ttft_s=0.5,
    comparison=Comparison.IDENTICAL,
    faults=0,
)
LOCAL = replace(REMOTE, local=1584, remote=0, ttft_s=0.3)
GOOD = [REMOTE, LOCAL, replace(REMOTE, node="n3"), replace(LOCAL, phase=Phase.AFTER_KILL)]
MOVED = {"tcp": 1 << 20}


# --- the verdict -----------------------------------------------------------------------------------------------------


def test_a_run_with_equal_tokens_and_reuse_on_every_node_is_ok_and_tells_the_times_by_source() -> None:
    verdict = judge(GOOD, [6.0, 8.0], MOVED)
    assert verdict.ok
    assert verdict.ttft_s == {"computed": 7.0, "local": 0.3, "remote": 0.5}


def test_other_tokens_are_a_problem_and_a_tie_is_none() -> None:
    assert judge([*GOOD, replace(LOCAL, comparison=Comparison.TIE)], [6.0], MOVED).ok
    [problem] = judge([*GOOD, replace(LOCAL, comparison=Comparison.DIFFERENT)], [6.0], MOVED).problems
    assert "question 1 on n2: tokens differ" in problem


@pytest.mark.parametrize(
    ("rows", "moved", "said"),
    [
        ([row for row in GOOD if row.node != "n3"], MOVED, "n3 got nothing from another node"),
        ([row for row in GOOD if row is not LOCAL], MOVED, "no prompt was answered from what its node had itself"),
        (GOOD[:-1], MOVED, "nothing was reused after the kill"),
        (GOOD, {"tcp": 0}, "no bytes moved between nodes"),
    ],
)
def test_a_run_that_shows_nothing_is_not_ok(rows: list[Row], moved: dict[str, int], said: str) -> None:
    assert judge(rows, [6.0], moved).problems == (said,)


def test_a_prompt_counts_as_coming_from_where_most_of_it_came() -> None:
    assert replace(LOCAL, remote=16).source is Source.LOCAL
    assert replace(LOCAL, local=0).source is Source.COLD


# --- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return demo_folder(tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_the_answers_of_a_cluster_are_those_without_a_store_also_when_a_node_is_killed(temporary: Path) -> None:
    done = subprocess.run([*COMMAND, "--json", str(temporary / "demo.json")], check=False)
    found = json.loads((temporary / "demo.json").read_text())
    assert (done.returncode, found["ok"], found["problems"]) == (0, True, [])
    assert found["tokens_identical"] or found["ties"]
    assert found["bytes_by_transport"]["tcp"] > 16 << 20
    assert found["ttft_s"]["remote"] < found["ttft_s"]["computed"] / 2
    phases = {request["phase"] for request in found["requests"]}
    assert phases == {"three nodes", "while n1 is killed", "after the kill"}
    assert list(temporary.glob("mooncask*")) == []


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_cluster_demo_that_is_interrupted_leaves_no_process_and_no_folder(temporary: Path) -> None:
    interrupt_demo(COMMAND, temporary, 6, 60.0)  # three daemons, three workers, and a directory where there is a server
