"""A real daemon as a process of its own, for tests: short socket path, its own folder, killed by pid.

    with DaemonProcess.start(tmp_path) as daemon:
        client = LocalClient.connect(daemon.socket_path)

`settings` are configuration keys by dotted name (`{"dram.capacity": "64 MiB"}`); HTTP gets a free port, NVMe a folder in
`folder` unless `nvme.path` is set to "" (off). `kill` and `restart` keep socket path, folder and settings.
"""

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

READY_SECONDS = (
    300.0 if os.environ.get("MOONCASK_RDMA") else 90.0
)  # an emulated processor takes its time, and so does a busy one
STOP_SECONDS = 30.0
_READY = re.compile(r"^mooncask ready socket=(\S+) http=(\S+)")

Setting = str | int | float | bool | list[str] | list[int]

DEFAULTS: dict[str, Setting] = {
    "dram.capacity": "64 MiB",
    "nvme.capacity": "256 MiB",
    "nvme.segment": "16 MiB",
    "http.listen": "127.0.0.1:0",
}


class DaemonProcess:
    """One daemon. Its log is `log_path`; `http_address` is host:port, or "off"."""

    def __init__(self, folder: Path, settings: Mapping[str, Setting] | None = None) -> None:
        self.folder = folder
        # Not in `folder`: a socket's path has at most 107 bytes, and pytest's folders are long.
        self._short = Path(tempfile.mkdtemp(prefix="mk"))
        self.socket_path = str(self._short / "s")
        self.log_path = folder / "daemon.log"
        self.config_path = folder / "daemon.toml"
        self.http_address = ""
        self.process: subprocess.Popen[str] | None = None
        self.environment: dict[str, str] = {}
        self.under: tuple[str, ...] = ()
        """A command that runs the daemon in its own place, or as a tracer of it."""
        chosen = {**DEFAULTS, "nvme.path": str(folder / "nvme"), **(settings or {}), "socket.path": self.socket_path}
        self.config_path.write_text(_toml(chosen))

    @classmethod
    def start(
        cls, folder: Path, settings: Mapping[str, Setting] | None = None, environment: Mapping[str, str] | None = None
    ) -> Self:
        """Returns when the daemon is ready. Raises RuntimeError with the end of its log when it does not get there."""
        daemon = cls(folder, settings)
        daemon.environment = dict(environment or {})
        try:
            daemon.run()
        except BaseException:
            daemon.close()
            raise
        return daemon

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def run(self) -> None:
        """Starts the process and waits for its ready line."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")}
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.under, sys.executable, "-m", "mooncask.daemon", "--config", str(self.config_path)],
                env={**environment, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._wait_until_ready(self.process)

    def kill(self) -> None:
        """SIGKILL: what a crash is. Returns when the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM: a clean shutdown. Its exit status."""
        return self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Kills it if it runs, and starts it anew on the same folder."""
        self.kill()
        self.run()

    def freeze(self) -> None:
        """SIGSTOP: it is there, but answers nothing until `thaw`."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def log(self) -> str:
        return self.log_path.read_text() if self.log_path.exists() else ""

    def close(self) -> None:
        """Ends the process and removes the socket's folder."""
        self.kill()
        shutil.rmtree(self._short, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        if process is None:
            return 0
        self.process = None
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)  # a frozen one takes no other signal than SIGKILL
        try:
            return process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()

    def _wait_until_ready(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS
        while select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            line = process.stdout.readline()
            if ready := _READY.match(line):
                self.http_address = ready[2].removeprefix("http://")
                return
            if not line:
                raise RuntimeError(f"the daemon ended with {process.wait()}:\n{self.log()[-4000:]}")
        raise RuntimeError(f"the daemon was not ready within {READY_SECONDS} s:\n{self.log()[-4000:]}")


def _toml(settings: Mapping[str, Setting]) -> str:
    sections: dict[str, list[str]] = {}
    for name, value in settings.items():
        section, _, key = name.rpartition(".")
        sections.setdefault(section, []).append(f"{key} = {json.dumps(value)}")  # JSON's scalars and lists are TOML's
    return "\n".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
