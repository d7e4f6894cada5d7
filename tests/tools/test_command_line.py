"""The `mooncask` command against a real daemon: bytes in and out, tables and JSON, and what a wrong call says."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mooncask.client.hashing import chain
from mooncask.client.local import LocalClient
from mooncask.client.socket_path import default_socket_path
from mooncask.daemon.socket_file import default_path
from mooncask.tools.bench.daemon_process import DaemonProcess
from mooncask.tools.main import app

MIB = 1 << 20


@pytest.fixture(scope="module")
def daemon() -> Iterator[DaemonProcess]:
    with tempfile.TemporaryDirectory(prefix="mc-") as name:
        folder = Path(name)
        settings = {
            "dram_capacity": "64MiB",
            "nvme_path": str(folder / "data"),
            "nvme_capacity": "128MiB",
            "nvme_segment": "8MiB",
            "nvme_direct": "false",
            "http_listen": "127.0.0.1:0",
        }
        with DaemonProcess(folder, settings) as process:
            yield process


class Command:
    """Runs commands against the daemon and looks at what they print."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def run(self, *words: str, expect: int = 0, stdin: bytes | None = None) -> str:
        result = CliRunner().invoke(app, list(words), env={"MOONCASK_SOCKET": str(self._socket)}, input=stdin)
        assert result.exit_code == expect, (result.output, result.exception)
        return result.stdout if expect == 0 else result.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))


@pytest.fixture
def command(daemon: DaemonProcess) -> Command:
    return Command(daemon.socket)


def test_a_file_comes_back_byte_for_byte(command: Command, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(os.urandom(3 * MIB + 17))
    command.run("put", "files-a", "photo", str(source))
    command.run("get", "files-a", "photo", "-o", str(target), "--verify")
    assert target.read_bytes() == source.read_bytes()


def test_a_pipe_goes_in_and_out_through_stdin_and_stdout(daemon: DaemonProcess) -> None:
    words = [sys.executable, "-m", "mooncask.tools"]
    environment = {**os.environ, "MOONCASK_SOCKET": str(daemon.socket)}
    payload = bytes(range(256)) * 100
    subprocess.run(
        [*words, "put", "files-b", "piped", "-"], input=payload, env=environment, check=True, capture_output=True
    )
    got = subprocess.run([*words, "get", "files-b", "piped"], env=environment, check=True, capture_output=True)
    assert got.stdout == payload


def test_an_object_longer_than_a_block_goes_in_and_out(command: Command, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(os.urandom(20 * MIB + 3))
    assert command.json("put", "files-l", "long one", str(source))["bytes"] == 20 * MIB + 3
    command.run("get", "files-l", "long one", "-o", str(target))
    assert target.read_bytes() == source.read_bytes()
    assert command.json("stat", "files-l", "long one")["size"] == 20 * MIB + 3
    command.run("rm", "files-l", "long one")


def test_a_file_that_get_writes_appears_only_when_it_is_whole(command: Command, tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "f").write_bytes(b"x")
    command.run("put", "files-m", "k", str(tmp_path / "f"))
    command.run("get", "files-m", "absent", "-o", str(tmp_path / "old"), expect=3)
    assert (tmp_path / "old").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "old"]


def test_the_first_put_makes_an_object_namespace(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    command.run("put", "files-c", "five", str(tmp_path / "f"), "--durable")
    namespaces = command.json("ls")
    assert isinstance(namespaces, list)
    (found,) = [namespace for namespace in namespaces if namespace["name"] == "files-c"]
    assert (found["kind"], found["blocks"], found["bytes"]) == ("object", 1, 5)


def test_a_durable_put_says_so_in_json_and_in_stat(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert command.json("put", "files-d", "k", str(tmp_path / "f"), "--durable") == {
        "namespace": "files-d",
        "key": "k",
        "bytes": 3,
        "state": "durable",
    }
    found = command.json("stat", "files-d", "k")
    assert isinstance(found, dict)
    assert (found["size"], found["durable"], found["tiers"]) == (3, True, ["dram", "nvme"])


def test_ls_shows_keys_in_order_that_start_with_a_prefix(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for key in ("b/2", "a/1", "b/1"):
        command.run("put", "files-e", key, str(tmp_path / "f"))
    listed = command.json("ls", "files-e", "--prefix", "b/")
    assert isinstance(listed, dict)
    assert [block["key"] for block in listed["blocks"]] == ["b/1", "b/2"]
    assert "a/1" in command.run("ls", "files-e")


def test_ls_says_that_there_are_more_than_its_limit(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for key in ("1", "2", "3"):
        command.run("put", "files-f", key, str(tmp_path / "f"))
    listed = command.json("ls", "files-f", "--limit", "2")
    assert isinstance(listed, dict)
    assert (len(listed["blocks"]), listed["more"]) == (2, True)
    assert "more" in command.run("ls", "files-f", "--limit", "2")
    assert "more" not in command.run("ls", "files-f", "--limit", "3")


def test_a_removed_block_is_gone_and_the_others_stay(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    for key in ("stays", "goes"):
        command.run("put", "files-g", key, str(tmp_path / "f"))
    assert command.json("rm", "files-g", "goes") == {"namespace": "files-g", "deleted": 1, "missing": []}
    assert "no block goes" in command.run("get", "files-g", "goes", expect=3)
    assert command.run("get", "files-g", "stays") == "x"


def test_removing_what_is_not_there_says_which_and_removes_the_rest(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    command.run("put", "files-h", "here", str(tmp_path / "f"))
    assert "absent" in command.run("rm", "files-h", "here", "absent", expect=3)
    assert "no block here" in command.run("get", "files-h", "here", expect=3)


def test_kv_blocks_are_named_in_hex(command: Command, daemon: DaemonProcess, tmp_path: Path) -> None:
    with daemon.connect() as client:
        namespace = client.open_namespace("kv-typed", family={"model": "m", "block_tokens": "2"}, shard="tp 0/1")
        first, second = chain(namespace.root(), [1, 2, 3, 4], 2)
        client.put(namespace, [first], [b"kv bytes"], parents=[namespace.root()])
    assert command.run("get", "kv-typed", first.hex()) == "kv bytes"
    (tmp_path / "f").write_bytes(b"other kv")
    command.run("put", "kv-typed", second.hex(), str(tmp_path / "f"))
    listed = command.json("ls", "kv-typed")
    assert isinstance(listed, dict)
    assert [block["key"] for block in listed["blocks"]] == sorted([first.hex(), second.hex()])
    assert "hex" in command.run("get", "kv-typed", "not hex", expect=64)


def test_stat_without_a_name_shows_the_tiers(command: Command) -> None:
    found = command.json("stat")
    assert isinstance(found, dict)
    assert [tier["tier"] for tier in found["tiers"]] == ["dram", "nvme"]
    assert found["ready"] is True
    table = command.run("stat")
    assert "dram" in table and "64.0 MiB" in table


def test_verify_counts_blocks_that_are_right(command: Command, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"right")
    for key in ("1", "2"):
        command.run("put", "files-i", key, str(tmp_path / "f"), "--durable")
    assert command.json("verify", "files-i") == [
        {"namespace": "files-i", "right": 2, "left": 0, "late": [], "wrong": []}
    ]
    assert "blocks are right, 0 wrong" in command.run("verify")


def test_verify_lists_a_block_whose_bytes_were_changed(command: Command, daemon: DaemonProcess, tmp_path: Path) -> None:
    """Changed in DRAM by a trusted writer, whose mapping reaches every block: that is what docs/THREATS.md warns of."""
    with daemon.connect() as client:
        namespace = client.open_namespace("kv-spoilt", family={"model": "m"}, mode="memory")
        keys = [b"%016d" % i for i in range(3)]
        reservations = client.reserve(namespace, keys, [4096] * 3)
        views = [slot.numpy() for slot in reservations if slot is not None]
        reservations.commit()
        views[1][0] ^= 1
        del views
        found = command.run("verify", "kv-spoilt", expect=65)
        assert keys[1].hex() in found
        left = command.json("ls", "kv-spoilt")
    assert isinstance(left, dict)
    assert [block["key"] for block in left["blocks"]] == [keys[0].hex(), keys[2].hex()]


def test_an_unknown_namespace_is_named_and_nothing_is_made(command: Command) -> None:
    for words in (["ls", "nowhere"], ["get", "nowhere", "k"], ["rm", "nowhere", "k"], ["verify", "nowhere"]):
        assert "no namespace nowhere" in command.run(*words, expect=3)
    listed = command.json("ls")
    assert isinstance(listed, list)
    assert "nowhere" not in [namespace["name"] for namespace in listed]


def test_an_error_is_one_line_that_begins_with_the_programs_name(command: Command) -> None:
    said = command.run("ls", "nowhere", expect=3)
    assert said.startswith("mooncask: ") and said.count("\n") == 1


def test_a_file_that_cannot_be_read_is_named(command: Command, tmp_path: Path) -> None:
    said = command.run("put", "files-j", "k", str(tmp_path / "absent"), expect=74)
    assert f"{tmp_path / 'absent'}: No such file" in said.replace("\n", "")


def test_without_a_daemon_the_message_says_how_to_start_one(tmp_path: Path) -> None:
    said = Command(tmp_path / "no-socket").run("ls", expect=69)
    assert 'start one with "mooncask serve"' in said


def test_a_wrong_option_of_serve_is_refused_by_the_name_of_its_setting(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mooncask.tools", "serve", "--socket", str(tmp_path / "s"), "--dram", "lots"]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 78
    assert (
        done.stderr.startswith('mooncask: MOONCASK_DRAM_CAPACITY = "lots": must be a size')
        and done.stderr.count("\n") == 1
    )


@pytest.mark.parametrize("uid", [0, 1000])
@pytest.mark.parametrize("environment", [{}, {"XDG_RUNTIME_DIR": "/run/user/7"}, {"XDG_RUNTIME_DIR": ""}])
def test_the_default_socket_is_where_the_daemon_listens(environment: dict[str, str], uid: int) -> None:
    assert default_socket_path(environment, uid) == str(default_path(environment, uid))


def test_a_socket_that_is_named_in_the_environment_wins_over_the_default() -> None:
    environment = {"XDG_RUNTIME_DIR": "/run/user/7", "MOONCASK_SOCKET_PATH": "/b"}
    assert default_socket_path(environment) == "/b"
    assert default_socket_path({**environment, "MOONCASK_SOCKET": "/a"}) == "/a"


def test_version_names_the_protocol() -> None:
    assert json.loads(Command(Path("unused")).run("version", "--json"))["protocol"] == 1


def test_a_client_of_the_command_line_leaves_nothing_leased(
    command: Command, daemon: DaemonProcess, tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(b"x" * 5000)
    command.run("put", "files-k", "k", str(tmp_path / "f"))
    command.run("get", "files-k", "k")
    deadline = time.monotonic() + 10
    with LocalClient.connect(daemon.socket) as client:  # the other connection's last words may be read after ours
        while any(tier.leased_bytes for tier in client.status().tiers):
            assert time.monotonic() < deadline


@pytest.mark.parametrize("words", [["simulate", "absent.toml", "t"], ["simulate", "--speed", "2", "absent.toml", "t"]])
def test_simulate_without_a_subcommand_runs_a_cluster(words: list[str]) -> None:
    said = Command(Path("unused")).run(*words, expect=2)
    assert said.startswith("mooncask: cluster = absent.toml")


def test_simulate_paper_names_the_figures_that_it_knows() -> None:
    assert "fast25" in Command(Path("unused")).run("simulate", "paper", "--figure", "no-such-figure", expect=2)
