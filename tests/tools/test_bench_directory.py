"""`mooncask bench directory`: its model as pure arithmetic, and a small run from end to end on real servers."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mooncask.tools.bench.directory_model import Costs, Line, Load, breaks_at, model, model_of_list, told_per_second
from mooncask.tools.bench.directory_run import FULL, LOOKUP, LOOKUP_CLUSTER, TARGETS
from mooncask.tools.main import app

COSTS = Costs(5e-6, 40, 200e-6, 16_000, 50e-6, 400, 1e-6, 150, 180, 5, 140e-6)


def line(lines: list[Line], words: str) -> Line:
    [found] = [one for one in lines if words in one.what]
    return found


def test_what_breaks_is_the_first_number_of_nodes_that_use_more_than_there_is() -> None:
    assert breaks_at(lambda nodes: nodes * 2, 10) == 6
    assert breaks_at(lambda nodes: nodes, 0) == 1
    assert breaks_at(lambda nodes: 1.0, 10) is None


def test_memory_is_blocks_times_nodes_and_spreads_over_the_servers_of_a_cluster() -> None:
    one = line(model(COSTS, Load(held=1000), 100), "memory")
    assert one.used == 1000 * 100 * 180
    three = line(model(COSTS, Load(held=1000, servers=3), 100), "memory")
    assert one.breaks_at is not None and three.used == one.used / 3
    assert three.breaks_at == pytest.approx(one.breaks_at * 3, rel=0.01)


def test_the_processor_of_a_server_pays_for_keys_look_ups_and_heartbeats() -> None:
    load = Load(published_per_second=100, lookups_per_second=10, held=240_000)
    assert told_per_second(load) == 300
    free = replace(COSTS, beat_cpu=0, record_cpu=0)
    assert line(model(free, load, 10), "CPU").used == pytest.approx(10 * (300 * 5e-6 + 10 * 200e-6))
    beats = line(model(COSTS, load, 10), "heartbeats")
    assert beats.used == pytest.approx(10 * (50e-6 / 2 + 0.1 * 9 * 1e-6))


def test_records_of_nodes_grow_with_the_square_of_the_nodes_and_do_not_spread() -> None:
    load = Load(0, 0, 0, servers=16)
    costs = replace(COSTS, beat_cpu=0)
    ten, thousand = (line(model(costs, load, nodes), "heartbeats").used for nodes in (10, 1000))
    assert thousand / ten == pytest.approx(1000 * 999 / (10 * 9))


def test_the_first_line_is_what_gives_out_first() -> None:
    lines = model(COSTS, Load(), 1000)
    ends = [one.breaks_at for one in lines if one.breaks_at is not None]
    assert ends == sorted(ends)
    assert all((one.used > one.limit) == (one.breaks_at is not None and one.breaks_at <= 1000) for one in lines)


def test_with_a_list_the_others_questions_are_what_a_daemon_pays_for() -> None:
    asked = line(model_of_list(COSTS, Load(lookups_per_second=10), 101), "questions")
    assert asked.used == pytest.approx(100 * 10 * 140e-6)
    assert not any("directory" in one.what for one in model_of_list(COSTS, Load(), 10))


def test_the_full_run_goes_to_two_million_entries_of_sixteen_nodes_and_is_held_against_targets() -> None:
    assert FULL.nodes * FULL.told[-1] == 2_000_000 and (FULL.nodes, FULL.daemons) == (16, 16)
    assert TARGETS[LOOKUP].value == 2_000 and TARGETS[LOOKUP_CLUSTER].value == 5_000


@pytest.mark.slow
def test_a_small_run_measures_grows_and_models(tmp_path: Path) -> None:
    if not (shutil.which("valkey-server") or shutil.which("redis-server")):
        pytest.skip("neither valkey-server nor redis-server is installed")
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["bench", "directory", "--quick", "--nodes", "1000", "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(file.read_text())
    assert {measure["name"] for measure in found["measures"]} == {LOOKUP, LOOKUP_CLUSTER}
    assert [point["servers"] for point in found["growth"]] == [1, 1, 3]
    assert all(value >= 0 for value in found["costs"].values()) and found["costs"]["announce_cpu"] > 0
    assert found["model"].keys() == {"a directory", "a static list"}
    assert "the first to give out" in result.output
