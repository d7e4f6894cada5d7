"""The cluster demo's directory: a Valkey or Redis server on loopback that keeps nothing on disk, if this machine has one."""

import importlib.util
import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from mooncask.errors import ConfigError
from mooncask.tools.bench.peers import free_port
from mooncask.tools.bench.process import sigterm_waits

START_SECONDS_MAX = 10.0


def find_program() -> str | None:
    """The server's program; None where it or the Python package that talks to it is missing."""
    if importlib.util.find_spec("valkey") is None:
        return None
    return shutil.which("valkey-server") or shutil.which("redis-server")


class DirectoryServer:
    """A context manager; entering it returns when the server answers. Raises ConfigError when it does not start."""

    def __init__(self, program: str, folder: Path) -> None:
        self.program = program
        self._folder = folder
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        bound = ["--port", str(self._port), "--bind", "127.0.0.1"]
        nothing_kept = ["--save", "", "--appendonly", "no", "--dir", str(self._folder)]
        with (self._folder / "directory.log").open("wb") as log, sigterm_waits():
            self._process = subprocess.Popen(
                [self.program, *bound, *nothing_kept],
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches whoever started it, who then ends it
            )
        try:
            self._wait_until_it_answers()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        self._process.kill()  # there is nothing to be saved
        self._process.wait()

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ConfigError("directory server", self.program, "a program that starts; run it by hand")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), START_SECONDS_MAX) as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(16).startswith(b"+PONG")
        except OSError:
            return False
