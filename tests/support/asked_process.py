"""A child process that answers a JSON line for each JSON line [command, {arguments}]: engines that a test can't import.

with AskedProcess.start("sglang_child.py", engine_path("sglang"), tmp_path / "log") as child:
    child.ask("hits", rank="a", letters="ab")
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

SUPPORT = Path(__file__).parent
START_SECONDS = 90.0
ANSWER_SECONDS = 60.0


class AskedProcess:
    """One child and its log."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process, self.log = process, log
        self._unread = b""

    @classmethod
    def start(
        cls,
        script: str,
        path: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        interpreter: str = sys.executable,
    ) -> Self:
        """With `path` and tests/support as its PYTHONPATH; `under` is a command that runs it in its own place. Returns when
        it said that it is ready."""
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")},
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), path]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            **(environment or {}),
        }
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [*under, interpreter, str(SUPPORT / script)],
                env=variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        child = cls(process, log)
        try:
            assert child._read(START_SECONDS) == "ready"
        except BaseException:
            child.close()
            raise
        return child

    def ask(self, command: str, **arguments: Any) -> Any:
        """Raises RuntimeError with what the child raised."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        self.process.stdin.flush()
        answer = self._read(ANSWER_SECONDS)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']}\n{self.said()}")
        return answer

    def said(self) -> str:
        return self.log.read_text()[-4000:]

    def close(self) -> None:
        """Closes its stdin, and kills it when that does not end it."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, seconds: float) -> Any:
        """The next line that is JSON: engines print banners."""
        stdout, deadline = self.process.stdout, time.monotonic() + seconds
        assert stdout is not None
        while True:
            line, newline, rest = self._unread.partition(b"\n")
            if newline:
                self._unread = rest
                try:
                    return json.loads(line)
                except ValueError:
                    continue
            if not select.select([stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise RuntimeError(f"the child did not answer within {seconds} s:\n{self.said()}")
            came = os.read(stdout.fileno(), 1 << 16)
            if not came:
                raise RuntimeError(f"the child ended with {self.process.wait()}:\n{self.said()}")
            self._unread += came
