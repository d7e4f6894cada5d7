"""`mooncask demo` as its user runs it: minutes long, so part of the long form only."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

for needed in ("torch", "transformers", "gguf", "sentencepiece", "accelerate"):
    pytest.importorskip(needed, reason=f"{needed} is not installed: pip install mooncask[demo]")

from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder
from mooncask.errors import ConfigError

pytestmark = [pytest.mark.slow, pytest.mark.engine, pytest.mark.timeout(1200)]

COMMAND = [sys.executable, "-m", "mooncask.tools.demo"]


@pytest.fixture(scope="module", autouse=True)
def model() -> None:
    try:
        smollm2_folder(cache_folder(), lambda _: None)
    except ConfigError as error:
        pytest.skip(f"the demo's model is not to be had: {error}")


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the demo makes its own; a short path, for its socket."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_the_demo_reuses_what_it_stored_and_gives_the_tokens_of_the_run_without_a_store(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "--json", str(tmp_path / "demo.json")], check=False)
    found = json.loads((tmp_path / "demo.json").read_text())
    assert (done.returncode, found["ok"], found["problems"]) == (0, True, [])
    assert len(found["requests"]) >= 12
    assert all(request["prompt_tokens"] >= 1500 for request in found["requests"])
    assert any(request["loaded"]["nvme"] > 0 for request in found["requests"]), "after the kill, from NVMe"
    assert found["full_hit_speedup"] >= 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_interrupted_leaves_no_process_and_no_folder(temporary: Path, number: signal.Signals) -> None:
    demo = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, cwd=temporary, env={**os.environ, "COLUMNS": "160"})
    assert demo.stdout is not None
    with demo.stdout:
        for line in demo.stdout:
            if b"without the store" in line:
                break
        started = psutil.Process(demo.pid).children(recursive=True)
        assert len(started) == 4, "a daemon and three workers"
        demo.send_signal(number)
        assert demo.wait(60) != 0
    assert psutil.wait_procs(started, 5)[1] == []
    assert list(temporary.glob("mooncask*")) == []
