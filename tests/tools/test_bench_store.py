"""`mooncask bench store --quick` from end to end: every measure is there, and nothing stays behind."""

import json
import tempfile
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from mooncask.tools.bench import targets
from mooncask.tools.main import app


@pytest.fixture(scope="module")
def folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mc-"))


@pytest.fixture(scope="module")
def children_before() -> list[psutil.Process]:
    """Fixtures of other folders may have daemons of theirs."""
    return psutil.Process().children(recursive=True)


@pytest.fixture(scope="module")
def found(folder: Path, children_before: list[psutil.Process]) -> dict[str, list[dict[str, object]]]:
    file = folder / "bench.json"
    result = CliRunner().invoke(app, ["bench", "store", "--quick", "--json", str(file), "--nvme", str(folder)])
    assert result.exit_code == 0, (result.output, result.exception)
    document: dict[str, list[dict[str, object]]] = json.loads(file.read_text())
    file.unlink()
    return document


def test_everything_that_has_a_target_is_measured(found: dict[str, list[dict[str, object]]]) -> None:
    names = {item["name"] for item in [*found["measures"], *found["facts"]]}
    assert targets.TARGETS.keys() <= names


def test_every_way_in_and_out_has_a_limit_and_a_ratio(found: dict[str, list[dict[str, object]]]) -> None:
    ours = [measure for measure in found["measures"] if measure["system"] == "mooncask"]
    assert [measure["name"] for measure in ours if measure["ratio"] is None] == ["release"]
    limits = {measure["name"] for measure in found["measures"] if measure["system"] == "limit"}
    assert {measure["limit"] for measure in ours} - {""} <= limits


def test_a_quick_run_is_held_against_no_target(found: dict[str, list[dict[str, object]]]) -> None:
    assert found["missed"] == []
    assert all(item["met"] is None for item in [*found["measures"], *found["facts"]])


def test_nothing_stays_behind(
    found: dict[str, list[dict[str, object]]], folder: Path, children_before: list[psutil.Process]
) -> None:
    assert list(folder.iterdir()) == []
    assert psutil.Process().children(recursive=True) == children_before


def test_a_disk_without_room_is_refused_before_anything_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("mooncask.tools.bench.command.free_bytes", lambda folder: 1 << 20)
    result = CliRunner().invoke(app, ["bench", "store", "--quick", "--nvme", str(tmp_path)])
    assert result.exit_code == 64
    assert "has 1 MiB free" in result.stderr and list(tmp_path.iterdir()) == []
