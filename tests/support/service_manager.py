"""The other end of systemd's notification protocol: a datagram socket that a daemon of a test is told of.

with ServiceManager() as manager, DaemonProcess.start(tmp_path, environment=manager.environment) as daemon:
    manager.wait_for("READY=1")
"""

import shutil
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

SECONDS = 20.0


class ServiceManager:
    """Collects messages. `abstract`: under a name in the kernel instead of a file."""

    def __init__(self, abstract: bool = False, watchdog_seconds: float = 0.0) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mk"))
        path = str(self._folder / "notify")
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind("\0" + path if abstract else path)
        self.environment = {"NOTIFY_SOCKET": "@" + path if abstract else path}
        if watchdog_seconds:
            self.environment["WATCHDOG_USEC"] = str(int(watchdog_seconds * 1e6))

    def next(self, seconds: float = SECONDS) -> list[str]:
        """The lines of the next message. Raises TimeoutError."""
        self.sock.settimeout(seconds)
        return self.sock.recv(65536).decode().splitlines()

    def wait_for(self, line: str) -> list[list[str]]:
        """All messages up to the first that has `line`. Raises TimeoutError."""
        deadline = time.monotonic() + SECONDS
        found = [self.next()]
        while line not in found[-1]:
            found.append(self.next(max(0.001, deadline - time.monotonic())))
        return found

    def status(self, line: str = "READY=1") -> str:
        """The status line that comes with the next message that has `line`."""
        [found] = [text for text in self.wait_for(line)[-1] if text.startswith("STATUS=")]
        return found.removeprefix("STATUS=")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.sock.close()
        shutil.rmtree(self._folder)
