"""Starts vLLM on CPU, as an engine that a test asks (`vllm_child.py`) or as an API server; needs `make engines`.

with VllmProcess.start(model, tmp_path, socket=daemon.socket_path) as engine:
    (answer,) = engine.generate([prompt])
"""

import contextlib
import json
import os
import select
import signal
import socket as sockets
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from engines_environment import vllm_python

SUPPORT = Path(__file__).parent
BLOCK_TOKENS = 32
START_SECONDS = 420.0
ANSWER_SECONDS = 240.0
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
}


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
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


class VllmProcess:
    """One engine; its log is `log`."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path) -> None:
        self.process, self.log = process, log

    @classmethod
    def begin(
        cls,
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
        """Starts it; it is not ready yet (`ready`). Without a socket it has no connector."""
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
                [str(vllm_python()), str(SUPPORT / "vllm_child.py")],
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

    @classmethod
    def start(cls, model: Path, folder: Path, **settings: Any) -> Self:
        child = cls.begin(model, folder, **settings)
        try:
            child.ready()
        except BaseException:
            child.close()
            raise
        return child

    def ready(self) -> None:
        """Returns when it is. Raises RuntimeError with the end of its log when it does not get there."""
        assert self._read(START_SECONDS) == "ready"

    def ask(self, command: str, **arguments: Any) -> Any:
        """Raises RuntimeError with what the child raised."""
        self.send(command, **arguments)
        return self.answer()

    def send(self, command: str, **arguments: Any) -> None:
        self._say([command, arguments])

    def answer(self) -> Any:
        answer = self._read(ANSWER_SECONDS)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{self.said()}")
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
        return self.log.read_text()[-6000:]

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
            raise RuntimeError(f"no answer within {seconds} s:\n{self.said()}")
        line = stdout.readline()
        if not line:
            raise RuntimeError(f"the engine ended with {self.process.wait()}:\n{self.said()}")
        return json.loads(line)


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


class VllmServer:
    """vLLM's OpenAI-compatible server; `url` is http://host:port."""

    def __init__(self, process: "subprocess.Popen[Any]", log: Path, port: int) -> None:
        self.process, self.log, self.url = process, log, f"http://127.0.0.1:{port}"

    @classmethod
    def begin(
        cls,
        model: Path,
        folder: Path,
        port: int,
        socket: str,
        role: str,
        *,
        name: str = "",
        arguments: Sequence[str] = (),
        **extra: Any,
    ) -> Self:
        """Starts it; it is not ready yet (`ready`). `arguments`: more of them, as they stand; `extra`: the connector's."""
        log = folder / f"server-{name or role}.log"
        options = {
            "model": str(model),
            "served-model-name": "m",
            "dtype": "float32",
            "max-model-len": 2560,
            "max-num-seqs": 4,
            "block-size": BLOCK_TOKENS,
            "host": "127.0.0.1",
            "port": port,
            "kv-transfer-config": json.dumps(transfer_config(socket, role, **extra)),
        }
        command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--enforce-eager", *arguments]
        for option, value in options.items():
            command += [f"--{option}", str(value)]
        with log.open("ab") as errors:
            process = subprocess.Popen(
                command, env=environment(), stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )
        return cls(process, log, port)

    def ready(self) -> None:
        """Raises RuntimeError with the end of its log when it does not get there."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until and self.process.poll() is None:
            try:
                if self.get("/health") is not None:
                    return
            except OSError:
                time.sleep(0.5)
        raise RuntimeError(f"the server is not ready: {self.log.read_text()[-6000:]}")

    def get(self, path: str) -> str:
        with urlopen(self.url + path, timeout=10) as response:  # a fixed http address
            text: str = response.read().decode()
            return text

    def metric(self, name: str, label: str = "") -> float:
        """The sum of a metric's lines that have the label."""
        lines = [line for line in self.get("/metrics").splitlines() if line.startswith(name) and label in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    def close(self) -> None:
        """A server that is ready ends what it started; of one that is still starting the rest is ended here."""
        self.process.send_signal(signal.SIGTERM)
        end(self.process, 30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            until = time.monotonic() + 20
            while time.monotonic() < until:  # the last one removes what the others left in /dev/shm
                os.killpg(self.process.pid, 0)
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def free_ports(count: int) -> list[int]:
    """vLLM takes no port 0; these are free now."""
    taken = [sockets.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in taken]
    for one in taken:
        one.close()
    return ports
