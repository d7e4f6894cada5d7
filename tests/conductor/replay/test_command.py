"""`mooncask replay` prints one object for one replay, a table or a list for several, and refuses what it can't do."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mooncask.conductor.replay.command import replay_command
from mooncask.conductor.replay.policies import REPLAY_POLICY_NAMES
from mooncask.conductor.traces.jsonl import write_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument, BadTrace


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_trace(tmp_path / "trace.jsonl", [Request(i, 1024, 1, (0, i % 3 + 1)) for i in range(30)])
    return tmp_path / "trace.jsonl"


def run(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(replay_command)
    outcome = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.stdout


def test_one_policy_at_one_capacity_is_one_object(path: Path) -> None:
    document = json.loads(run(str(path), "--capacity-blocks", "10", "--policy", "lru", "--json"))
    assert document["hit_rate"] == document["hits"] / document["accesses"] == 56 / 60
    assert document["token_weighted_hit_rate"] == 56 / 60
    assert (document["policy"], document["capacity_blocks"], document["requests"]) == ("lru", 10, 30)


def test_several_replays_are_a_list(path: Path) -> None:
    document = json.loads(
        run(str(path), "--capacity-blocks", "2", "--capacity-blocks", "9", "--policy", "arc", "--json")
    )
    assert [found["capacity_blocks"] for found in document["results"]] == [2, 9]


def test_without_options_every_policy_is_a_row_and_six_capacities_are_columns(path: Path) -> None:
    lines = run(str(path)).splitlines()
    assert [line.split()[0] for line in lines[2:-1]] == list(REPLAY_POLICY_NAMES)
    assert lines[1].split()[1:] == ["1000", "10000", "30000", "50000", "100000", "4"]


def test_an_unknown_policy_is_refused_before_the_trace_is_read(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="did you mean sieve"):
        run(str(tmp_path / "absent"), "--policy", "sive")


def test_a_broken_trace_is_refused(path: Path) -> None:
    path.write_text("{}\n")
    with pytest.raises(BadTrace, match="field timestamp: missing"):
        run(str(path))
