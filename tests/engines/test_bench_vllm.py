"""`mooncask bench vllm`, small, with vLLM itself: every column is measured, and every hit was one (the bench counts)."""

import json
from pathlib import Path

import pytest
from engines_environment import vllm_python
from typer.testing import CliRunner

from mooncask.tools.main import app

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(900)]


def test_every_column_is_measured(model: Path, tmp_path: Path) -> None:
    file, python = tmp_path / "bench.json", str(vllm_python())
    asked = ["bench", "vllm", "--quick", "--python", python, "--model", str(model), "--json", str(file)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, (result.output, result.exception)
    (row,) = json.loads(file.read_text())["rows"]
    assert row["tokens"] == 129
    assert all(row[f"{name}_seconds"] > 0 for name in ("cold", "dram", "nvme", "peer"))
