"""`mooncask plan` prints a table or JSON, draws when asked, and refuses what it can't do in one line with exit status 2."""

import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest
from typer.testing import CliRunner

from mooncask.conductor.traces.jsonl import write_trace
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.workloads import Chats
from mooncask.tools.main import app

PRICES = Path(__file__).parents[3] / "docs" / "plans" / "prices.toml"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    requests = Chats(per_second=3.0).requests(200, Random(1), Numbers())
    write_trace(tmp_path / "trace.jsonl", islice(requests, 300))
    return tmp_path / "trace.jsonl"


def plan(*arguments: object) -> str:
    outcome = CliRunner().invoke(app, ["plan", *map(str, arguments)])
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def test_the_document_has_curves_candidates_and_the_cheapest_that_meets(trace: Path) -> None:
    found = json.loads(
        plan(trace, "--prices", PRICES, "--slo-ttft", 4, "--policy", "lru", "--policy", "fifo", "--json")
    )
    meeting = [candidate for candidate in found["candidates"] if candidate["meets"]]
    assert found["chosen"]["dollars_per_month"] == min(candidate["dollars_per_month"] for candidate in meeting)
    assert [curve["policy"] for curve in found["curves"]] == ["lru", "fifo"]
    assert found["objective"] == {"ttft_seconds": 4.0, "metric": "p90"}


def test_the_table_marks_the_chosen_mix_and_shows_what_no_cache_needs(trace: Path) -> None:
    lines = plan(trace, "--prices", PRICES, "--slo-ttft", 4, "--policy", "lru").splitlines()
    assert lines[1].startswith(">")
    assert any(" none " in line for line in lines)
    assert any("TTFT of 4 s is kept" in line for line in lines)


def test_an_objective_that_nothing_meets_is_said_so(trace: Path) -> None:
    assert "no mix with at most 64 nodes" in plan(trace, "--prices", PRICES, "--slo-ttft", 0.001, "--policy", "lru")


def test_decode_nodes_are_planned_when_an_objective_between_tokens_is_given(trace: Path) -> None:
    asked = [trace, "--prices", PRICES, "--slo-ttft", 4, "--policy", "lru", "--slo-tbt", 0.05]
    found = json.loads(plan(*asked, "--json"))
    assert found["decode"]["meets"] and found["decode"]["tbt"] <= 0.05
    assert found["tbt_objective"] == {"tbt_seconds": 0.05, "metric": "longest-tenth"}
    *_, nodes, dollars = plan(*asked).splitlines()
    assert nodes.startswith(f"decode: {found['decode']['nodes']} nodes keep a TBT of 50 ms")
    total = found["decode"]["dollars_per_month"] + found["chosen"]["dollars_per_month"]
    assert dollars.endswith(f"${total:,.0f} with the cheapest mix above")


def test_the_plot_is_written_only_when_asked(trace: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots need the extra papers")
    plan(trace, "--prices", PRICES, "--slo-ttft", 4, "--policy", "lru", "--plot", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--slo-ttft", "0"], "--slo-ttft = 0.0: above 0 seconds"),
        (["--slo-metric", "p99"], "--slo-metric = 'p99': one of mean, p90"),
        (["--slo-tbt", "0"], "--slo-tbt = 0.0: above 0 seconds"),
        (["--slo-tbt", "1", "--tbt-metric", "p99"], "--tbt-metric = 'p99': one of longest-tenth, p90"),
        (["--policy", "sive"], "did you mean 'sieve'"),
        (["--policy", "min"], "--policy = 'min'"),
        (["--rate", "2"], "--rate = 2.0: above 0 and at most 1"),
        (["--rate", "1e-9"], "the sample has none of the trace's"),
        (["--speed", "0"], "--speed = 0.0: above 0"),
        (["--block-tokens", "0"], "--block-tokens = 0: at least 1"),
        (["--model", "llama9"], "one of llama2-70b"),
        (["--prices", "absent.toml"], "--prices = absent.toml: cannot be read"),
        (["--plot", "absent/curves.png"], "--plot = absent/curves.png: a file in a folder that exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_status_2(trace: Path, wrong: list[str], said: str) -> None:
    if "--plot" in wrong:
        pytest.importorskip("matplotlib", reason="plots need the extra papers")
    outcome = CliRunner().invoke(app, ["plan", str(trace), "--prices", str(PRICES), "--slo-ttft", "4", *wrong])
    assert outcome.exit_code == 2
    assert said in outcome.stderr and outcome.stderr.count("\n") == 1
    assert outcome.stdout == ""


def test_a_broken_trace_is_named_with_its_line(trace: Path) -> None:
    trace.write_text("{}\n")
    outcome = CliRunner().invoke(app, ["plan", str(trace), "--prices", str(PRICES), "--slo-ttft", "4"])
    assert outcome.exit_code == 2
    assert "trace.jsonl:1: field timestamp: missing" in outcome.stderr
