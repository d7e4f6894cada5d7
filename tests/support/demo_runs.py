"""Whole runs of a demo as a process: where they may run, and what must be left when Ctrl-C ends one."""

import importlib.util
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from mooncask.errors import ConfigError

NEEDED = ("torch", "transformers", "gguf", "sentencepiece", "accelerate")


def demo_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which a demo makes its own. Skips where the model or what runs it is missing."""
    for needed in NEEDED:
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed: pip install mooncask[demo]")
    from mooncask.engine_adapter.transformers.model_files import cache_folder, smollm2_folder

    try:
        smollm2_folder(cache_folder(), lambda _: None)
    except ConfigError as error:
        pytest.skip(f"the demo's model is not to be had: {error}")
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def interrupt_demo(command: Sequence[str], folder: Path, processes_min: int, seconds: float) -> None:
    """Ctrl-C when all has been started: no process and no folder is left."""
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=folder, env={**os.environ, "COLUMNS": "160"})
    assert demo.stdout is not None
    with demo.stdout:
        for line in demo.stdout:
            if b"directory:" in line:
                break
        started = psutil.Process(demo.pid).children(recursive=True)
        assert len(started) >= processes_min
        demo.send_signal(signal.SIGINT)
        assert demo.wait(seconds) != 0
    assert psutil.wait_procs(started, 5)[1] == []
    assert list(folder.glob("mooncask*")) == []
