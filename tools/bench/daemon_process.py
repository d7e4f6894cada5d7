"""A daemon of the bench's own: a child process with its settings in the environment, stopped at the end whatever happens."""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncask.client.local import LocalClient
from mooncask.errors import DaemonUnavailable
from mooncask.tools.bench.process import sigterm_waits
from mooncask.tools.serve import daemon_command

START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0


class DaemonProcess:
    """Runs from construction until `stop`; use it as a context manager. Raises DaemonUnavailable when it does not start.

    `ready_seconds` is from the start of its process until it said that it is ready.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.socket = folder / "s"
        self._log_path = folder / "daemon.log"
        start = time.perf_counter()
        try:
            with self._log_path.open("ab") as log, sigterm_waits():
                self._process = subprocess.Popen(
                    daemon_command(),
                    env=self._environment(settings),
                    cwd=folder,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            line = self._ready_line()
        except BaseException:
            if hasattr(self, "_process"):
                self.stop()
            raise
        self.ready_seconds = time.perf_counter() - start
        self.http_address = dict(word.split("=", 1) for word in line.split() if "=" in word).get("http", "")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def http_port(self) -> int:
        return int(self.http_address.rpartition(":")[2])

    def connect(self, name: str = "bench") -> LocalClient:
        return LocalClient.connect(self.socket, name=name, deadline_seconds=60.0)

    def stop(self) -> None:
        """SIGTERM, so that what is dirty is flushed; SIGKILL for one that does not end."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _environment(self, settings: Mapping[str, str]) -> dict[str, str]:
        """Settings of the caller's shell do not reach in: figures depend on what is written here alone."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")}
        variables = {f"MOONCASK_{name.upper()}": value for name, value in settings.items()}
        return {**inherited, **variables, "MOONCASK_SOCKET_PATH": str(self.socket)}

    def _ready_line(self) -> str:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_SECONDS_MAX)
        line = self._process.stdout.readline() if readable else ""
        if " ready " not in line:
            said = self._log_path.read_text(errors="replace").strip().splitlines()
            raise DaemonUnavailable(str(self.socket), said[-1] if said else f"not ready in {START_SECONDS_MAX:.0f} s")
        return line

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
