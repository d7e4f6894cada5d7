"""`mooncask prefill`: a prompt goes into the store by one process or by several."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import json
from pathlib import Path

from daemon_process import DaemonProcess
from tiny_model import prompt_of, write_tiny_llama
from typer.testing import CliRunner

from mooncask.errors import BadRequest, ConfigError, DaemonUnavailable
from mooncask.tools.main import app
from mooncask.tools.prefill import say


@pytest.mark.slow
def test_a_prompt_is_stored_by_two_processes(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    prompt = ",".join(map(str, prompt_of(100, seed=1)))
    with DaemonProcess.start(tmp_path) as daemon:
        where = ["prefill", "--model", str(model), "--socket", daemon.socket_path, "--tokens", prompt]
        first = CliRunner().invoke(app, [*where, "--pipeline", "2", "--prefill-chunk", "24", "--json"])
        assert first.exit_code == 0, first.output
        figures = json.loads(first.stdout)
        assert (figures["prompt_tokens"], figures["cached_tokens"], figures["computed_tokens"]) == (100, 0, 96)
        assert (figures["stored_blocks"], figures["faults"]) == (6, {})
        assert [each["layers"] for each in figures["processes"]] == [[0, 1], [2, 2]]


def test_what_is_said_of_a_prefill_names_each_process(capsys: pytest.CaptureFixture[str]) -> None:
    part = {"layers": [0, 1], "weight_bytes": 3 << 20, "own_bytes": 5 << 20, "cpu_seconds": 1.5}
    counts = {"prompt_tokens": 1000, "cached_tokens": 96, "computed_tokens": 896, "stored_blocks": 56}
    say({**counts, "seconds": 2.5, "faults": {"Busy": 1}, "processes": [part]})
    said = capsys.readouterr().out
    assert "1,000 tokens: 96 cached, 896 computed, 56 blocks stored in 2.50 s" in said
    assert "the store failed: Busy 1" in said
    assert "0 to 1" in said and "1.50" in said


def test_what_cannot_be_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "tiny")
    where = ["prefill", "--model", str(model), "--socket", str(tmp_path / "none")]
    for arguments, error in (
        ([], BadRequest),
        (["--tokens", "1,2", "--pipeline", "9"], ConfigError),
        (["--tokens", "1,2", "--dtype", "int8"], ConfigError),
        (["--tokens", "1,2"], DaemonUnavailable),
    ):
        refused = CliRunner().invoke(app, [*where, *arguments])
        assert refused.exit_code == error.exit_code, refused.output
