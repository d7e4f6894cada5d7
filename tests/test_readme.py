"""The README's transcript, run as it stands: every command in a shell of its own, and what it prints compared.

The port and the socket are replaced by free ones. curl may be missing on a machine; its command is left out there.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from mooncask.tools.bench.peers import free_port

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
SEPARATOR = "-- 8< --"
WAIT = "until mooncask stat >stat.log 2>&1; do sleep 0.1; done"
"""In place of a fixed sleep, which a busy machine may outlast."""


def transcript() -> list[tuple[str, str]]:
    """(command, what it prints) of the first console block; lines that begin with "> " go on with the command."""
    block = re.search(r"```console\n(.*?)```", README, re.DOTALL)
    assert block is not None
    steps: list[list[str]] = []
    for line in block[1].splitlines():
        if line.startswith("$ "):
            steps.append([line[2:], ""])
        elif line.startswith(">") and not steps[-1][1]:
            steps[-1][0] += "\n" + line[2:]
        else:
            steps[-1][1] += line + "\n"
    return [(command, printed) for command, printed in steps]


def run(script: str, folder: Path, port: int) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")}
    environment |= {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOONCASK_SOCKET_PATH": str(folder / "s"),
        "MOONCASK_HTTP_LISTEN": f"127.0.0.1:{port}",
        "MOONCASK_LOG_LEVEL": "warning",
    }
    done = subprocess.run(
        ["bash", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if " Killed " not in line]
    assert complaints == [], done.stdout
    return done.stdout


def without_trailing_spaces(text: str) -> str:
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def test_the_transcript_prints_what_it_says() -> None:
    steps = [step for step in transcript() if shutil.which("curl") or "curl" not in step[0]]
    with tempfile.TemporaryDirectory(prefix="mc-") as name:
        folder, port = Path(name), free_port()
        shutil.copy(ROOT / "LICENSE", folder)
        commands = [command.replace("9470", str(port)).replace("sleep 3", WAIT) for command, _ in steps]
        script = f"\necho '{SEPARATOR}'\n".join(commands)
        printed = run(script + "\nwait\n", folder, port)
        found = printed.replace(str(port), "9470").replace(str(folder / "s"), "/run/mooncask/mooncask.sock")
    outputs = [without_trailing_spaces(part) for part in found.split(f"{SEPARATOR}\n")]
    assert list(zip([command for command, _ in steps], outputs, strict=True)) == steps


def test_it_is_short_enough_to_be_read() -> None:
    assert len(README.splitlines()) < 150


def test_every_file_and_folder_it_names_exists() -> None:
    named = set(re.findall(r"`([a-z_./]+/|[\w/]+\.(?:md|py|txt|toml))`", README))
    assert named and not {path for path in named if not (ROOT / path).exists()}
