"""What every command has in common: errors in one line, exit codes, help, completion, and how little `--help` loads."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import WORDS, CommandLine
from daemon_process import DaemonProcess

from mooncask.errors import error_classes
from mooncask.tools.command_table import COMMANDS, lazy_commands
from mooncask.tools.exit_codes import MEANINGS, exit_code_table, with_table

PAGE = Path(__file__).parents[2] / "docs/CLI.md"
HEAVY = {"numpy", "msgspec", "aiohttp", "torch", "transformers", "obstore", "uvloop", "xxhash"}
ENGINE = {"demo", "demo-cluster", "demo-serve"}
"""Needs torch to be loaded."""


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory(prefix="mc-") as folder, DaemonProcess.start(Path(folder)) as process:
        yield process


@pytest.fixture
def command() -> CommandLine:
    return CommandLine("/nowhere")


def complete(socket: str, line: str) -> list[str]:
    """What bash would offer behind `line`."""
    words = line.split(" ")
    environment = {
        **os.environ,
        "MOONCASK_SOCKET": socket,
        "_MOONCASK_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    code = "import sys; sys.argv[0] = 'mooncask'; from mooncask.tools.main import app; app(prog_name='mooncask')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stderr == "", done.stderr
    return done.stdout.split()


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lss"], "did you mean 'ls'"),
        (["nonsense"], "no such command 'nonsense'"),
        (["ls", "--jsn"], "did you mean --json"),
        (["namespaces", "create"], "NS"),
        (["get", "only-a-namespace"], "KEY"),
        (["ls", "--limit", "many"], "--limit"),
        (["ls", "--sort", "colour"], "--sort"),
        (["config", "chek"], "did you mean 'check'"),
    ],
)
def test_a_command_line_that_is_not_understood_is_one_line_and_exit_code_2(
    command: CommandLine, words: list[str], said: str
) -> None:
    line = command.error(*words, expect=2)
    assert said in line and '--help" shows what there is' in line


@pytest.mark.parametrize(
    "words",
    [
        ["ls"],
        ["stat"],
        ["tree", "ns"],
        ["pin", "ns", "k"],
        ["ttl", "ns", "k"],
        ["evict", "ns", "k"],
        ["verify"],
        ["why", "ns", "--tokens", "1"],
        ["top", "--once"],
        ["export", "ns", "/tmp/x.tar"],
        ["namespaces"],
        ["namespaces", "drop", "ns"],
        ["config", "show"],
        ["get", "ns", "k"],
    ],
)
def test_without_a_daemon_every_command_says_how_to_start_one(command: CommandLine, words: list[str]) -> None:
    said = command.error(*words, expect=69)
    assert 'No such file or directory; start one with "mooncask serve"' in said and "Errno" not in said


@pytest.mark.parametrize(
    "words",
    [["ls"], ["stat"], ["tree"], ["verify"], ["export"], ["pin"], ["evict"], ["ttl"], ["get"], ["namespaces", "drop"]],
)
def test_a_namespace_that_is_not_there_is_named(daemon: DaemonProcess, words: list[str], tmp_path: Path) -> None:
    more = {"export": [str(tmp_path / "x.tar")], "pin": ["k"], "evict": ["k"], "ttl": ["k"], "get": ["k"]}
    said = CommandLine(daemon.socket_path).error(*words, "no-such-one", *more.get(words[0], []), expect=3)
    assert "no namespace no-such-one" in said


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away_ends_the_command_quietly(daemon: DaemonProcess, unbuffered: str) -> None:
    CommandLine(daemon.socket_path).run("put", "long", "k", "-", stdin=b"x" * (8 << 20))
    environment = {**os.environ, "MOONCASK_SOCKET": daemon.socket_path, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(
        [*WORDS, "get", "long", "k"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(30), said) == (141, b"")


def test_the_version_is_also_where_others_have_it(command: CommandLine) -> None:
    assert command.run("--version") == command.run("version")


def test_mooncask_without_a_word_shows_its_commands(command: CommandLine) -> None:
    said = command.spawn()
    assert said.returncode == 2 and b"Usage" in said.stdout + said.stderr


# --- help and documents ----------------------------------------------------------------------------------------------


def test_help_loads_no_client_and_no_library_of_one(tmp_path: Path) -> None:
    code = (
        "import sys, json\n"
        "from mooncask.tools.main import app\n"
        "try:\n    app(['--help'], prog_name='mooncask')\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        f"json.dump(sorted(sys.modules), open({str(tmp_path / 'modules')!r}, 'w'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = set(json.loads((tmp_path / "modules").read_text()))
    assert b"Explain a miss" in done.stdout
    assert not HEAVY & loaded
    assert not [name for name in loaded if name.startswith(("mooncask.client", "mooncask.conductor"))]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ENGINE))
def test_every_command_of_the_table_is_there_and_explains_itself(name: str) -> None:
    command = lazy_commands()[name].load()
    assert command.name == name and command.help
    assert COMMANDS[name].help.rstrip(".") and len(COMMANDS[name].help) <= 80


def test_the_page_lists_the_exit_codes_of_all_errors() -> None:
    text = PAGE.read_text()
    assert text == with_table(text), "run: python -m mooncask.tools.exit_codes docs/CLI.md"
    assert {kind.exit_code for kind in error_classes().values()} <= MEANINGS.keys()
    assert "| 76 | the two sides speak different versions of the protocol | ProtocolMismatch |" in exit_code_table()


def test_the_page_tells_of_every_command() -> None:
    text = PAGE.read_text()
    missing = [name for name in COMMANDS if f"`{name}" not in text]
    assert missing == []


# --- completion ------------------------------------------------------------------------------------------------------


def test_completion_offers_commands_namespaces_and_keys(daemon: DaemonProcess) -> None:
    command = CommandLine(daemon.socket_path)
    for key in ("first", "fifth", "other"):
        command.run("put", "completed", key, "-", stdin=b"x")
    assert "export" in complete(daemon.socket_path, "mooncask exp")
    assert complete(daemon.socket_path, "mooncask ls comp") == ["completed"]
    assert sorted(complete(daemon.socket_path, "mooncask get completed fi")) == ["fifth", "first"]
    assert "--chain" in complete(daemon.socket_path, "mooncask pin --ch")


def test_completion_without_a_daemon_offers_nothing_and_does_not_complain() -> None:
    assert complete("/nowhere", "mooncask ls comp") == []
