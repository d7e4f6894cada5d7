"""`mooncask bench pipeline` with a tiny model: every prompt is prefilled by one process and by two, and the blocks are equal."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
from pathlib import Path

from tiny_model import write_tiny_llama
from typer.testing import CliRunner

from mooncask.tools.bench.pipeline_result import QUICK, Row, Run, table
from mooncask.tools.main import app
from mooncask.tools.output import console


@pytest.mark.slow
def test_every_prompt_is_prefilled_by_one_process_and_by_two(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    model = write_tiny_llama(tmp_path / "tiny")
    result = CliRunner().invoke(app, ["bench", "pipeline", "--quick", "--model", str(model), "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    rows = json.loads(file.read_text())["rows"]
    assert [(row["stages"], row["tokens"], row["equal"]) for row in rows] == [
        (1, QUICK.tokens, True),
        (2, QUICK.tokens, True),
    ]
    assert [len(row["runs"][0]["cpu_seconds"]) for row in rows] == [1, 2]
    assert all(row["median_seconds"] > 0 for row in rows)
    one, two = (row["weight_bytes"] for row in rows)
    assert max(two) < sum(two) <= sum(one), "no process of two has all of the weights"


def test_blocks_that_differ_stand_in_the_table() -> None:
    runs = [Run(seconds, [[seconds]], [size << 20]) for seconds, size in ((2.0, 1), (4.0, 2), (3.0, 1))]
    row = Row(1, 4096, runs, [5 << 20], equal=False)
    assert (row.seconds, row.spread, row.own_bytes) == (3.0, (2.0, 4.0), [2 << 20])
    with (screen := console()).capture() as shown:
        screen.print(table([row]))
    assert "DIFFER" in shown.get()


def test_what_a_core_for_each_process_would_give_follows_from_the_chunks_of_each() -> None:
    assert Run(9.0, [[1.0, 1.0, 1.0]], [1]).with_cores_seconds == 3.0
    assert Run(9.0, [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [1, 1]).with_cores_seconds == 4.0
    assert Run(9.0, [[1.0, 1.0], [5.0, 1.0]], [1, 1]).with_cores_seconds == 7.0, (
        "the second waits for nothing but itself"
    )
