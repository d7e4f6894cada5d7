"""A worker server as a process, and a client that reads its streams."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import requests

from mooncask.client.worker_api import DecodeCall, PrefillCall, State, StreamLine

SECRET = "between-workers"
START_SECONDS_MAX = 240.0


class WorkerServerProcess:
    """Started by `start`; `close` ends it by SIGTERM and sees that it goes."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log
        self.address = ""

    @classmethod
    @contextmanager
    def start(
        cls, folder: Path, name: str, role: str, model: Path, socket: str, under: Sequence[str] = (), **options: str
    ) -> Iterator["WorkerServerProcess"]:
        """`options` by the names of the command line, with underscores; several Conductors apart by a blank. `under`: before it."""
        log = folder / f"{name}.log"
        arguments = {"role": role, "model": str(model), "socket": socket, "name": name, **options}
        command = [*under, sys.executable, "-m", "mooncask.engine_adapter.transformers.server"]
        for option, value in arguments.items():
            for one in value.split(" ") if option == "conductor" else [value]:
                command += [f"--{option.replace('_', '-')}", one]
        environment = {**os.environ, "MOONCASK_WORKER_SECRET": SECRET, "OMP_NUM_THREADS": "1"}
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stderr=sink, stdout=sink, env=environment)
        worker = cls(process, log)
        try:
            worker.address = worker._wait_for_address()
            yield worker
        finally:
            worker.close()

    def _wait_for_address(self) -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if " serves " in line and " at http://" in line:
                    return line.rpartition(" at ")[2]
            time.sleep(0.05)
        raise AssertionError(f"the worker did not start:\n{self.log.read_text()}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the worker did not end:\n{self.log.read_text()}") from None

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing until `thaw`."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    # --- calls ---

    def open(self, call: PrefillCall | DecodeCall, secret: str = SECRET) -> requests.Response:
        """The answer's stream, unread."""
        path = "prefill" if isinstance(call, PrefillCall) else "decode"
        headers = {"Authorization": f"Bearer {secret}"}
        body = msgspec.json.encode(call)
        return requests.post(f"{self.address}/v1/{path}", data=body, headers=headers, stream=True, timeout=60)

    def lines(self, call: PrefillCall | DecodeCall) -> list[StreamLine]:
        """The whole stream."""
        with self.open(call) as response:
            return [msgspec.json.decode(line, type=StreamLine) for line in response.iter_lines() if line]

    def state(self) -> State:
        response = requests.get(f"{self.address}/v1/state", headers={"Authorization": f"Bearer {SECRET}"}, timeout=10)
        return msgspec.json.decode(response.content, type=State)
