"""`mooncask bench conductor`: a small run from end to end. Its figures say nothing; that they come, and of what, does."""

import json
import os
from pathlib import Path

import psutil
from typer.testing import CliRunner

from mooncask.tools.main import app


def test_a_small_run_places_every_request_and_leaves_no_process(tmp_path: Path) -> None:
    before = {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)}
    file = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "conductor", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text())
    assert [point["tokens"] for point in found["points"]] == [8192, 131072]
    for point in found["points"]:
        assert point["requests"] == 20
        assert 0 < point["p50_ms"] <= point["p90_ms"]
        assert 0 < point["hash_ms"] < point["cpu_ms"]
        assert point["placements_per_cpu_second"] > 0
    assert {child.pid for child in psutil.Process(os.getpid()).children(recursive=True)} <= before
