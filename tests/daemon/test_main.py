"""The daemon as a process: what it prints, how it ends, and what it says when it can't begin."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

from mooncask.client.family import Family
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle

SECONDS = 20.0
MEMORY_BYTES_MAX = 100 << 20


def opened(client: LocalClient) -> NamespaceHandle:
    return client.open_namespace(name="kv-test", family=Family(model="m"), shard="tp 0/1")


def put(daemon: DaemonProcess, path: str, body: bytes = b"") -> None:
    request = urllib.request.Request(f"http://{daemon.http_address}{path}", body, method="PUT")
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        assert answer.status == 200


def started(text: str, tmp_path: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A daemon that is meant not to start, with this config file."""
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MOONCASK_")}
    return subprocess.run(
        [sys.executable, "-m", "mooncask.daemon", "--config", str(path), *options],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def assert_refused(run: subprocess.CompletedProcess[str], *says: str) -> None:
    """Exit status 78 and one line on stderr that says what, which, and what to do."""
    assert run.returncode == 78, run.stderr
    assert run.stdout == ""
    lines = [line for line in run.stderr.splitlines() if line.startswith("mooncask: ")]
    assert len(lines) == 1 and "Traceback" not in run.stderr, run.stderr
    assert [part for part in says if part not in lines[0]] == [], lines[0]


def test_a_stopped_daemon_exits_with_0_and_comes_back_with_its_blocks(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        client = LocalClient.connect(daemon.socket_path)
        client.put(opened(client), [b"k" * 16], [b"payload"])
        client.close()
        assert daemon.stop() == 0
        assert not Path(daemon.socket_path).exists()
        daemon.run()
        with LocalClient.connect(daemon.socket_path) as client:
            blocks = client.acquire(opened(client), [b"k" * 16])
            assert blocks[0] is not None and bytes(blocks[0].memory) == b"payload"
            blocks.close()


def test_it_stops_while_clients_hold_leases_and_reservations(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        client = LocalClient.connect(daemon.socket_path)
        namespace = opened(client)
        client.put(namespace, [b"k" * 16], [b"payload"])
        blocks = client.acquire(namespace, [b"k" * 16])
        reservations = client.reserve(namespace, [b"l" * 16], [100])
        assert daemon.stop() == 0
        assert blocks[0] is not None and bytes(blocks[0].memory) == b"payload", "a view outlives the daemon"
        del reservations
        blocks.close()
        client.close()


def test_a_reader_that_does_not_read_holds_up_no_stop(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        put(daemon, "/photos")
        put(daemon, "/photos/k", bytes(8 << 20))
        host, port = daemon.http_address.split(":")
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            reader.connect((host, int(port)))
            reader.sendall(b"GET /photos/k HTTP/1.1\r\nHost: x\r\n\r\n")
            assert reader.recv(15) == b"HTTP/1.1 200 OK"
            started = time.monotonic()
            assert daemon.stop() == 0
            assert time.monotonic() - started < 8.0


def test_write_back_blocks_are_flushed_before_it_ends(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        client = LocalClient.connect(daemon.socket_path)
        namespace = client.open_namespace(name="kv-back", family=Family(model="m"), shard="", mode="write_back")
        client.put(namespace, [bytes([i]) * 16 for i in range(50)], [bytes([i]) * 5000 for i in range(50)])
        client.close()
        assert daemon.stop() == 0
        daemon.run()
        with LocalClient.connect(daemon.socket_path) as client:
            again = client.open_namespace(name="kv-back", family=Family(model="m"), shard="")
            assert len(client.match(again, [bytes([i]) * 16 for i in range(50)])) == 50


def test_ctrl_c_is_a_clean_end_too(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"http.enabled": False}) as daemon:
        assert daemon.http_address == "off"
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGINT)
        assert daemon.process.wait(SECONDS) == 0


def test_the_socket_of_a_killed_daemon_is_replaced(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        daemon.kill()
        assert Path(daemon.socket_path).exists()
        daemon.run()
        LocalClient.connect(daemon.socket_path).close()


def test_only_its_own_user_can_reach_the_socket(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        assert Path(daemon.socket_path).stat().st_mode & 0o777 == 0o600


def test_logs_are_one_json_object_a_line_when_asked(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"log.json": True, "log.level": "debug"}) as daemon:
        LocalClient.connect(daemon.socket_path, name="line\nbreak").close()
        daemon.stop()
        entries = [json.loads(line) for line in daemon.log().splitlines()]
        assert {"time", "level", "logger", "message"} <= set(entries[0])
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entries[0]["time"])
        assert any("line\\nbreak" in entry["message"] for entry in entries)


def test_it_takes_little_memory_beside_the_arena(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        status = Path(f"/proc/{daemon.pid}/status").read_text()
        kibibytes = {name: int(size) for name, size in re.findall(r"(Rss\w+):\s+(\d+) kB", status)}
        assert (kibibytes["RssAnon"] + kibibytes["RssFile"]) << 10 < MEMORY_BYTES_MAX, status


def test_it_starts_without_what_only_extras_bring() -> None:
    code = (
        "import sys, mooncask.daemon.command, mooncask.daemon.http.server;"
        "print(sorted({'torch', 'transformers', 'mfusepy', 'botocore', 'typer', 'rich'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=SECONDS)
    assert found.stdout == "[]\n"


# --- only looking at the configuration ---------------------------------------------------------------------------------------


def checked(text: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    return started(text, tmp_path, "--check-config")


def test_a_configuration_is_checked_without_a_start(tmp_path: Path) -> None:
    folder = tmp_path / "nvme"
    run = checked(f'[nvme]\npath = "{folder}"\n[socket]\npath = "{tmp_path}/s"', tmp_path)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == f"mooncask: the configuration is valid: {tmp_path / 'wrong.toml'}\n"
    assert not folder.exists() and not (tmp_path / "s").exists(), "nothing was touched"


def test_a_check_says_what_a_start_would_say(tmp_path: Path) -> None:
    assert_refused(checked('[dram]\ncapacty = "1GiB"', tmp_path), "dram.capacty", "did you mean capacity?")
    text = f'[nvme]\npath = "{tmp_path}"\ncapacity = "10MiB"\nsegment = "8MiB"'
    assert_refused(checked(text, tmp_path), "nvme.capacity", "10")


# --- it can't begin ------------------------------------------------------------------------------------------------------


def test_a_wrong_config_is_refused(tmp_path: Path) -> None:
    assert_refused(started('[dram]\ncapacty = "1GiB"', tmp_path), "dram.capacty", "did you mean capacity?")
    assert_refused(started("", tmp_path, MOONCASK_DRAM_CAPACITY="x"), "MOONCASK_DRAM_CAPACITY", '"x"', "512MiB")


def test_a_socket_in_use_is_refused(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        text = f'[socket]\npath = "{daemon.socket_path}"\n[http]\nenabled = false'
        assert_refused(started(text, tmp_path), "socket.path", daemon.socket_path, "in use")
        LocalClient.connect(daemon.socket_path).close()


def test_a_socket_that_something_else_listens_on_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        monkeypatch.chdir(tmp_path)
        other.bind("s")
        other.listen()
        short = Path("/proc") / str(os.getpid()) / "cwd" / "s"
        assert_refused(started(f'[socket]\npath = "{short}"\n[http]\nenabled = false', tmp_path), "socket.path")
    assert path.is_socket(), "it is not ours to remove"


def test_a_file_that_is_no_socket_is_not_replaced(tmp_path: Path) -> None:
    path = Path(f"/tmp/mk-file-{os.getpid()}")
    path.write_text("precious")
    try:
        assert_refused(started(f'[socket]\npath = "{path}"', tmp_path), "socket.path", "not a socket")
        assert path.read_text() == "precious"
    finally:
        path.unlink()
        path.with_name(path.name + ".lock").unlink(missing_ok=True)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        text = f'[socket]\npath = "{daemon.socket_path}2"\n[http]\nlisten = "{daemon.http_address}"'
        assert_refused(started(text, tmp_path), "http.listen", daemon.http_address, "in use")


def test_a_data_folder_of_a_running_daemon_is_refused(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        text = f'[socket]\npath = "{daemon.socket_path}2"\n[http]\nenabled = false\n'
        text += f'[nvme]\npath = "{tmp_path / "nvme"}"\ncapacity = "256MiB"\nsegment = "16MiB"'
        assert_refused(started(text, tmp_path), str(tmp_path / "nvme"), "in use")


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ('[socket]\npath = "/proc/none/s"', ["socket.path", "/proc/none"]),
        (f'[socket]\npath = "/tmp/{"x" * 110}"', ["socket.path", "107 bytes"]),
        ('[http]\nlisten = "0.0.0.0:0"', ["http.listen", "loopback"]),
        ('[nvme]\npath = "/proc/none"', ["nvme.path", "/proc/none"]),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, section: str, says: list[str]) -> None:
    if "[socket]" not in section:
        section += f'\n[socket]\npath = "/tmp/mk-none-{os.getpid()}/s"'
    try:
        assert_refused(started(section, tmp_path), *says)
    finally:
        folder = Path(f"/tmp/mk-none-{os.getpid()}")
        for leftover in folder.glob("*"):
            leftover.unlink()
        if folder.exists():
            folder.rmdir()


def test_a_foreign_data_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(RuntimeError, match=r"photos is not a Mooncask data folder") as caught:
        DaemonProcess.start(tmp_path, {"nvme.path": str(folder)})
    assert "ended with 78" in str(caught.value)
    assert [entry.name for entry in folder.iterdir()] == ["holiday.jpg"]
