"""Starts a vLLM engine on CPU that is asked over pipes (`vllm_child.py`), in an environment of its own: vLLM's.

with VllmEngine.launch(vllm_command(python), model, folder, socket=daemon.socket) as engine:
    engine.ready()
    (answer,) = engine.generate([prompt])
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mooncask.errors import BadArgument, WorkerUnavailable

BLOCK_TOKENS = 32
START_SECONDS = 420.0
ANSWER_SECONDS = 240.0
LOG_CHARACTERS = 6000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}
_LOOK = "import importlib.util as u, sys; sys.exit(not (u.find_spec('vllm') and u.find_spec('mooncask')))"


def vllm_command(python: Path) -> list[str]:
    """Raises BadArgument when that interpreter has no vLLM, or no Mooncask beside it."""
    try:
        found = subprocess.run([python, "-c", _LOOK], env=environment(), check=False, capture_output=True)
    except OSError as exc:
        raise BadArgument("--python", str(python), f"it cannot be run: {exc}") from exc
    if found.returncode:
        text = "it has no vllm and mooncask; in a checkout, make engines makes build/engines/vllm/bin/python, which has both"
        raise BadArgument("--python", str(python), text)
    return [str(python), "-m", "mooncask.tools.bench.vllm_child"]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a child: the caller's, without what is meant for this Python or this daemon."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MOONCASK_", "PYTHON"))}
    return {**own, **ENVIRONMENT, **(extra or {})}


def transfer_config(socket: str, role: str = "kv_both", **extra: Any) -> dict[str, Any]:
    """As --kv-transfer-config has it."""
    return {
        "kv_connector": "MooncaskConnector",
        "kv_connector_module_path": "mooncask.engine_adapter.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"socket": socket, **extra},
    }


class VllmEngine:
    """One engine; its log is `log`. Leaving its with statement ends it."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self.log = process, log

    @classmethod
    def launch(
        cls,
        command: Sequence[str],
        model: Path,
        folder: Path,
        *,
        socket: str = "",
        role: str = "kv_both",
        extra: Mapping[str, Any] | None = None,
        engine: Mapping[str, Any] | None = None,
        variables: Mapping[str, str] | None = None,
        name: str = "engine",
    ) -> Self:
        """Starts it; it is not ready yet (`ready`). Without a socket it has no connector; `extra`: the connector's settings."""
        log = folder / f"{name}.log"
        made = {
            "model": str(model),
            "dtype": "float32",
            "max_model_len": 2560,
            "max_num_seqs": 4,
            "block_size": BLOCK_TOKENS,
            **(engine or {}),
        }
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command,
                env=environment(variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        child = cls(process, log)
        transfer = transfer_config(socket, role, **(extra or {})) if socket else None
        child._say({"engine": made, "transfer": transfer})
        return child

    def ready(self) -> None:
        """Returns when it is. Raises WorkerUnavailable with the end of its log when it does not get there."""
        if (said := self._read(START_SECONDS)) != "ready":
            raise self._failed(f"it began with {said!r}")

    def ask(self, command: str, **arguments: Any) -> Any:
        """Raises WorkerUnavailable with what the child raised."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        self._say([command, arguments])

    def answer(self) -> Any:
        answer = self._read(ANSWER_SECONDS)
        if isinstance(answer, dict) and "error" in answer:
            raise self._failed(answer["error"])
        return answer

    def generate(self, prompts: Sequence[Sequence[int]], **settings: Any) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = self.ask(
            "generate", requests=[{"prompt": list(p), **settings} for p in prompts]
        )
        return answers

    def counters(self) -> dict[str, Any]:
        found: dict[str, Any] = self.ask("counters")
        return found

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_CHARACTERS:]

    def close(self) -> None:
        """Closes its stdin, and kills it when that does not end it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        end(self.process)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _say(self, value: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _read(self, seconds: float) -> Any:
        stdout = self.process.stdout
        assert stdout is not None
        if not select.select([stdout], [], [], seconds)[0]:
            raise self._failed(f"no answer within {seconds:.0f} s")
        line = stdout.readline()
        if not line:
            raise self._failed(f"it ended with {self.process.wait()}")
        return json.loads(line)

    def _failed(self, why: str) -> WorkerUnavailable:
        return WorkerUnavailable("vLLM", f"{why}\n{self.said()}\n")


def end(process: "subprocess.Popen[Any]", seconds: float = 20.0) -> None:
    """Waits for its end, and kills it when that does not come."""
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        process.wait()
