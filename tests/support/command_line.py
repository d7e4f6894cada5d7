"""The `mooncask` command for tests: in this process, where that is all the same, or as a process of its own.

command = CommandLine(daemon.socket_path)
command.run("ls")                    # what it printed
command.json("stat", "files", "k")   # the same as JSON
command.spawn("get", "files", "k")   # a real process: pipes, signals, exit status
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from mooncask.tools.main import app

SECONDS = 60.0
WORDS = [sys.executable, "-m", "mooncask.tools"]


class CommandLine:
    """Runs commands against one daemon's socket. `environment` is added to this process's."""

    def __init__(self, socket: str | Path, environment: Mapping[str, str] | None = None) -> None:
        # An S3 client would look for credentials on the network if it found none.
        self.environment = {"MOONCASK_SOCKET": str(socket), "AWS_EC2_METADATA_DISABLED": "true", **(environment or {})}

    def run(self, *words: str, expect: int = 0, stdin: bytes | None = None) -> str:
        """What it printed: stdout, or stderr when another exit status than 0 is expected."""
        result = CliRunner().invoke(app, list(words), env=self.environment, input=stdin)
        assert result.exit_code == expect, (words, result.exit_code, result.output, result.exception)
        return result.stdout if expect == 0 else result.stderr

    def json(self, *words: str, expect: int = 0) -> Any:
        """The one document on stdout."""
        result = CliRunner().invoke(app, [*words, "--json"], env=self.environment)
        assert result.exit_code == expect, (words, result.exit_code, result.output, result.exception)
        return json.loads(result.stdout)

    def error(self, *words: str, expect: int) -> str:
        """The one line that it complained with, without the program's name."""
        said = self.run(*words, expect=expect)
        assert said.startswith("mooncask: ") and said.count("\n") == 1, said
        return said.removeprefix("mooncask: ").strip()

    def spawn(self, *words: str, stdin: bytes | None = None) -> "subprocess.CompletedProcess[bytes]":
        """As a process of its own, whatever its exit status."""
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            [*WORDS, *words], input=stdin, env=environment, capture_output=True, check=False, timeout=SECONDS
        )
