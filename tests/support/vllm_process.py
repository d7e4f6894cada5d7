"""Starts vLLM on CPU, as an engine that a test asks (`vllm_child.py`) or as an API server; needs `make engines`.

with VllmProcess.start(model, tmp_path, socket=daemon.socket_path) as engine:
    (answer,) = engine.generate([prompt])
"""

import contextlib
import json
import os
import signal
import socket as sockets
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import urlopen

from engines_environment import vllm_python

from mooncask.tools.bench.vllm_process import BLOCK_TOKENS, START_SECONDS, VllmEngine, end, environment, transfer_config

SUPPORT = Path(__file__).parent


class VllmProcess(VllmEngine):
    """The bench's engine with more commands, which only tests need."""

    @classmethod
    def begin(cls, model: Path, folder: Path, **settings: Any) -> Self:
        """Starts it; it is not ready yet (`ready`). `settings` as for `launch`."""
        return cls.launch([str(vllm_python()), str(SUPPORT / "vllm_child.py")], model, folder, **settings)

    @classmethod
    def start(cls, model: Path, folder: Path, **settings: Any) -> Self:
        child = cls.begin(model, folder, **settings)
        try:
            child.ready()
        except BaseException:
            child.close()
            raise
        return child


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
