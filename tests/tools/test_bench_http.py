"""`mooncask bench http --quick` from end to end, and its load generator against servers that answer wrongly."""

import contextlib
import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from mooncask.tools.bench.http_load import Load, WrongAnswer, fetch, request
from mooncask.tools.bench.http_run import GB_PER_SECOND, GET, NGINX_GET, NGINX_SMALL, PER_SECOND, PUT_DURABLE
from mooncask.tools.bench.nginx import nginx_program
from mooncask.tools.main import app


def test_a_run_measures_everything_and_leaves_nothing(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="mc-"))
    file = tmp_path / "bench.json"
    before = psutil.Process().children(recursive=True)
    result = CliRunner().invoke(app, ["bench", "http", "--quick", "--json", str(file), "--nvme", str(folder)])
    assert result.exit_code == 0, (result.output, result.exception)
    found = json.loads(file.read_text())
    names = {item["name"] for item in [*found["measures"], *found["facts"]]}
    assert {GET, PUT_DURABLE, *GB_PER_SECOND, *PER_SECOND} <= names
    if nginx_program() is None:
        assert "nginx" in {item["what"] for item in found["skipped"]}
    else:
        assert {NGINX_GET, NGINX_SMALL} <= names
    assert found["missed"] == [] and all(item["met"] is None for item in found["measures"] + found["facts"])
    assert list(folder.iterdir()) == [] and psutil.Process().children(recursive=True) == before
    folder.rmdir()


def test_a_run_that_is_told_to_end_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mooncask.tools", "bench", "http", "--quick", "--nvme", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        parent = psutil.Process(process.pid)
        end = time.monotonic() + 60
        while not (started := parent.children(recursive=True)) and time.monotonic() < end:
            time.sleep(0.02)
        process.terminate()
        assert process.wait(60) == 143
    assert started and not [child for child in started if child.is_running() and child.status() != "zombie"]
    assert list(tmp_path.iterdir()) == []
    assert list(Path("/dev/shm").glob(f"mooncask-bench-{process.pid}-*")) == []


# --- the load generator --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def answering(*answers: bytes, requests: int = 1) -> Iterator[int]:
    """A server that gives one connection these answers, the first after so many requests, each other after the next read."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                came = b""
                while came.count(b"\r\n\r\n") < requests:
                    came += connection.recv(1 << 16)
                for number, answer in enumerate(answers):
                    if number and not connection.recv(1 << 16):
                        return
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        with contextlib.suppress(OSError):
            socket.create_connection(server.getsockname(), timeout=1).close()
        thread.join()


GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"


def test_an_answer_is_read_whole_and_its_length_is_known() -> None:
    with answering(GOOD) as port:
        answer = fetch(port, (request("GET", "/k", "x"),))
    assert answer.body == b"hello" and answer.size == len(GOOD)


@pytest.mark.parametrize(
    "answers",
    [
        (b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",),
        (GOOD, b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello"),
        (GOOD + b"more", GOOD),
        (GOOD[:-1],),
        (),
    ],
)
def test_a_wrong_answer_is_never_counted(answers: tuple[bytes, ...]) -> None:
    message = (request("GET", "/k", "x"),)
    with answering(*answers) as port, contextlib.closing(Load(port, 1)) as load, pytest.raises(WrongAnswer):
        load.run([message, message], len(GOOD))


def test_answers_that_come_together_or_in_pieces_are_all_counted() -> None:
    message = (request("GET", "/k", "x"),)
    with answering(GOOD + GOOD[:7], GOOD[7:] + GOOD, requests=2) as port, contextlib.closing(Load(port, 1)) as load:
        load.run([message] * 3, len(GOOD), ahead=2)
