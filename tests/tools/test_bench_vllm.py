"""`mooncask bench vllm` without vLLM: it says what it lacks and how to get it. The run itself is in tests/engines."""

import sys
from pathlib import Path

from typer.testing import CliRunner

from mooncask.tools.bench.vllm_run import Row, table
from mooncask.tools.main import app
from mooncask.tools.output import console


def test_an_interpreter_without_vllm_is_refused_with_the_way_to_one() -> None:
    result = CliRunner().invoke(app, ["bench", "vllm", "--python", sys.executable])
    assert result.exit_code == 2
    assert "make engines" in " ".join(result.output.split())


def test_what_is_no_interpreter_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "vllm", "--python", str(tmp_path / "python")])
    assert result.exit_code == 2


def test_the_table_has_a_column_for_where_the_prefix_was() -> None:
    screen = console()
    with screen.capture() as shown:
        screen.print(table([Row(513, 1.5, 0.1, 0.3, 0.2)]))
    (line,) = [line for line in shown.get().splitlines() if "513" in line]
    assert [cell for cell in line.replace("│", " ").split() if "." in cell] == ["1.500", "0.100", "0.200", "0.300"]
