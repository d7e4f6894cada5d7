"""A Conductor as a process, with its addresses."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 120.0


class ConductorProcess:
    """Started by `start`. `url` is for clients, `workers_url` for workers."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log
        self.url = self.workers_url = ""

    @classmethod
    @contextmanager
    def start(
        cls,
        folder: Path,
        settings: str,
        environment: Mapping[str, str] | None = None,
        words: Sequence[str] = (),
        under: Sequence[str] = (),
    ) -> Iterator["ConductorProcess"]:
        """`settings`: TOML; the listeners are added where they are missing. `words` go on its command line, `under` before it.
        Ended by SIGTERM, and seen to go."""
        config, log = folder / "conductor.toml", folder / "conductor.log"
        config.write_text(settings)
        command = [*under, sys.executable, "-m", "mooncask.tools", "conductor", "--config", str(config), *words]
        listeners = {
            "MOONCASK_CONDUCTOR_SERVER_LISTEN": "127.0.0.1:0",
            "MOONCASK_CONDUCTOR_SERVER_WORKERS_LISTEN": "127.0.0.1:0",
        }
        with log.open("ab") as sink:
            process = subprocess.Popen(
                command, stderr=sink, stdout=sink, env={**os.environ, **listeners, **(environment or {})}
            )
        conductor = cls(process, log)
        try:
            conductor.workers_url = conductor._address("workers register at (http://[0-9.:]+)")
            conductor.url = conductor._address("clients are served at (http://[0-9.:]+)")
            yield conductor
        finally:
            conductor.close()

    def _address(self, pattern: str) -> str:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(pattern, self.log.read_text()):
                return found[1]
            time.sleep(0.02)
        raise AssertionError(f"the Conductor did not start:\n{self.log.read_text()}")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        """SIGSTOP: it keeps its connections and does nothing until `thaw`."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the Conductor did not end:\n{self.log.read_text()}") from None
