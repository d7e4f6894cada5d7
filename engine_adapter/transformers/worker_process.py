"""Starts a worker as a child process and talks to it. Needs neither torch nor transformers in this process."""

import contextlib
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeVar

import msgspec

from mooncask.engine_adapter.transformers.messages import (
    LINE_BYTES_MAX,
    DecodeResult,
    Line,
    PrefillResult,
    Ready,
    Refusal,
    Request,
)
from mooncask.errors import DeadlineExceeded, WorkerUnavailable, error_classes, revive

Result = TypeVar("Result", bound=PrefillResult | DecodeResult)

START_SECONDS_MAX = 120.0
END_SECONDS_MAX = 10.0


@dataclass(frozen=True)
class WorkerSettings:
    """The command line of a worker; see `__main__.py`."""

    role: str
    model: Path
    socket: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Further options by name, without the dashes."""

    def command(self) -> list[str]:
        more = [word for name, value in self.options.items() for word in (f"--{name}", value)]
        start = [sys.executable, "-m", "mooncask.engine_adapter.transformers"]
        return [*start, "--role", self.role, "--model", str(self.model), "--socket", self.socket, *more]


class WorkerProcess:
    """A running worker; one request at a time. A context manager: leaving it ends the process."""

    def __init__(self, settings: WorkerSettings, log: IO[bytes], threads: int = 1) -> None:
        """Returns at once; `ready` waits. The worker's stderr goes to `log`."""
        self.settings = settings
        self._decoder = msgspec.json.Decoder(Line)
        self._buffer = b""
        self._process = subprocess.Popen(
            settings.command(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
            start_new_session=True,  # Ctrl-C reaches whoever started it, who then ends it
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self, seconds: float = START_SECONDS_MAX) -> Ready:
        """Waits for the model to be loaded. Raises WorkerUnavailable, DeadlineExceeded."""
        line = self._receive(seconds)
        if not isinstance(line, Ready):
            raise WorkerUnavailable(self.settings.role, f"its first line is a {type(line).__name__}")
        return line

    def prefill(self, request: Request, seconds: float = 300.0) -> PrefillResult:
        """Raises what the worker refused with, WorkerUnavailable, DeadlineExceeded."""
        return self._ask(request, seconds, PrefillResult)

    def decode(self, request: Request, seconds: float = 300.0) -> DecodeResult:
        """Raises what the worker refused with, WorkerUnavailable, DeadlineExceeded."""
        return self._ask(request, seconds, DecodeResult)

    def send(self, request: Request) -> None:
        """Sends a request; `receive` waits for its answer."""
        self.send_line(msgspec.json.encode(request))

    def send_line(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise WorkerUnavailable(self.settings.role, self._end_text()) from exc

    def receive(self, seconds: float) -> PrefillResult | DecodeResult | Refusal:
        """The next answer, refusals as they are."""
        line = self._receive(seconds)
        if isinstance(line, Ready):
            raise WorkerUnavailable(self.settings.role, "it said twice that it is ready")
        return line

    def close(self) -> None:
        """Ends the worker: by ending its input, then by force."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):  # it is dead already
            self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def kill(self) -> None:
        """SIGKILL, as in an accident."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, request: Request, seconds: float, kind: type[Result]) -> Result:
        self.send(request)
        answer = self.receive(seconds)
        if isinstance(answer, Refusal):
            raise _refused(answer, self.settings.role)
        if not isinstance(answer, kind) or answer.id != request.id:
            raise WorkerUnavailable(self.settings.role, f"it answered {type(answer).__name__} {answer.id}")
        return answer

    def _receive(self, seconds: float) -> Line:
        try:
            return self._decoder.decode(self._read_line(seconds))
        except msgspec.DecodeError as exc:
            raise WorkerUnavailable(self.settings.role, f"it wrote what is no answer: {exc}") from exc

    def _read_line(self, seconds: float) -> bytes:
        assert self._process.stdout is not None
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise DeadlineExceeded(f"{self.settings.role} worker {self.pid}", seconds)
                self._read_some(self._process.stdout)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _read_some(self, stdout: IO[bytes]) -> None:
        data = os.read(stdout.fileno(), 1 << 16)
        self._buffer += data
        if not data or len(self._buffer) > LINE_BYTES_MAX:
            raise WorkerUnavailable(self.settings.role, self._end_text())

    def _end_text(self) -> str:
        try:
            return f"process {self.pid} ended with exit code {self._process.wait(END_SECONDS_MAX)}"
        except subprocess.TimeoutExpired:
            return f"process {self.pid} closed its output"


def _refused(answer: Refusal, role: str) -> Exception:
    if answer.error in error_classes():
        return revive(answer.error, answer.message, {})
    return WorkerUnavailable(role, f"request {answer.id}: {answer.message}")
