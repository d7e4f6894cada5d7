"""`namespaces` creates, lists and drops; `config check` asks the daemon's own loader; `config show` asks the daemon."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import CommandLine
from daemon_process import DaemonProcess


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory(prefix="mc-") as folder, DaemonProcess.start(Path(folder)) as process:
        yield process


@pytest.fixture
def command(daemon: DaemonProcess) -> CommandLine:
    return CommandLine(daemon.socket_path)


def names(command: CommandLine) -> list[str]:
    return [found["name"] for found in command.json("namespaces")]


def test_a_namespace_for_objects_is_made_listed_and_dropped(command: CommandLine) -> None:
    made = command.json("namespaces", "create", "fresh", "--mode", "memory")
    assert (made["kind"], made["mode"], made["blocks"]) == ("object", "memory", 0)
    assert "fresh" in names(command) and "fresh" in command.run("namespaces", "list")
    assert command.json("namespaces", "drop", "fresh")["dropped"] is True
    assert "fresh" not in names(command)


def test_one_for_kv_needs_its_family(command: CommandLine) -> None:
    assert "--family" in command.error("namespaces", "create", "kv-made", "--kind", "kv", expect=64)
    words = ("--kind", "kv", "--family", "model=m", "--family", "block_tokens=4", "--shard", "tp 0/2")
    assert command.json("namespaces", "create", "kv-made", *words)["family"] == {"model": "m", "block_tokens": "4"}
    assert "there already" in command.error("namespaces", "create", "kv-made", *words, expect=64)


def test_one_with_blocks_is_dropped_only_when_that_is_said(command: CommandLine) -> None:
    for key in ("a", "b"):
        command.run("put", "full-one", key, "-", stdin=b"x")
    assert "still has 2 blocks" in command.error("namespaces", "drop", "full-one", expect=65)
    assert "--yes" in command.error("namespaces", "drop", "full-one", "--with-blocks", expect=64)
    assert command.json("stat", "full-one")["blocks"] == 2
    assert command.json("namespaces", "drop", "full-one", "--with-blocks", "--yes")["deleted"] == 2
    assert "full-one" not in names(command)


def test_a_name_that_no_namespace_may_have_is_refused(command: CommandLine) -> None:
    assert "3 to 63" in command.run("namespaces", "create", "No Such Name", expect=64)


def test_a_configuration_that_the_daemon_would_take_is_valid(command: CommandLine, daemon: DaemonProcess) -> None:
    assert "is valid" in command.run("config", "check", str(daemon.config_path))
    assert command.json("config", "check", str(daemon.config_path))["valid"] is True


def test_a_wrong_key_is_named_with_what_is_allowed(command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text('[dram]\ncapacity = "lots"\n')
    done = command.spawn("config", "check", str(tmp_path / "wrong.toml"))
    assert done.returncode == 78
    assert done.stderr.startswith(b'mooncask: dram.capacity = "lots": must be a size') and done.stderr.count(b"\n") == 1
    found = command.json("config", "check", str(tmp_path / "wrong.toml"), expect=78)
    assert found["valid"] is False and found["said"].startswith("dram.capacity")


def test_what_the_daemon_goes_by_is_shown(command: CommandLine) -> None:
    assert command.json("config", "show")["sections"]["dram"]["capacity"] == 64 << 20
    assert "dram.capacity" in command.run("config", "show")
