"""`mooncask bench mount --quick` from end to end: every measure is there, and nothing stays behind."""

import json
import os
from pathlib import Path

import pytest
from mount_process import why_no_mount
from typer.testing import CliRunner

from mooncask.tools.bench.mount_run import AGAIN, COLD, FILE_AGAIN, LIST, LIST_LONG, PLAIN_AGAIN, PLAIN_COLD
from mooncask.tools.main import app

pytestmark = [pytest.mark.fuse, pytest.mark.skipif(bool(why_no_mount()), reason=why_no_mount())]


def test_every_figure_is_there_beside_its_limit(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    result = CliRunner().invoke(app, ["bench", "mount", "--quick", "--json", str(file)])
    assert result.exit_code == 0, (result.output, result.exception)
    measures = {measure["name"]: measure for measure in json.loads(file.read_text())["measures"]}
    assert measures.keys() == {COLD, AGAIN, LIST, LIST_LONG, PLAIN_COLD, PLAIN_AGAIN, FILE_AGAIN}
    assert measures[COLD]["limit"] == PLAIN_COLD and measures[AGAIN]["limit"] == FILE_AGAIN
    assert list(Path("/dev/shm").glob(f"mooncask-bench-{os.getpid()}-*")) == []
