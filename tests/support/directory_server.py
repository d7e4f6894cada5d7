"""A real redis-server (or valkey-server) on loopback, for tests of the directory: started, frozen, emptied, killed, started anew."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

SECONDS = 10.0


def server_program() -> str:
    """Skips the test where none is installed."""
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        pytest.skip("neither valkey-server nor redis-server is installed")
    return found


class DirectoryServer:
    """Keeps nothing on disk: after a restart it is empty. `url` stays the same."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._program = server_program()
        self._folder = folder
        self._options = options
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            self.port: int = sock.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / f"directory-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [self._program, *arguments, "--dir", str(self._folder), *self._options], stdout=log, stderr=log
            )
        deadline = time.monotonic() + SECONDS
        while self.command("PING") != b"+PONG":
            assert time.monotonic() < deadline, "the directory's server did not come up"
            time.sleep(0.02)

    def command(self, *words: str) -> bytes:
        """The first line of its answer; empty when nobody answers."""
        request = f"*{len(words)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
        try:
            with socket.create_connection(("127.0.0.1", self.port), SECONDS) as sock:
                sock.sendall(request.encode())
                return sock.recv(1 << 16).split(b"\r\n")[0]
        except OSError:
            return b""

    def flush(self) -> None:
        assert self.command("FLUSHALL") == b"+OK"

    def keys(self) -> int:
        return int(self.command("DBSIZE")[1:])

    def freeze(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
