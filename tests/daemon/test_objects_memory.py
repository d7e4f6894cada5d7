"""What a long object costs in memory: the arena's share of it, and next to nothing beside."""

import hashlib
import http.client
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

MIB = 1 << 20
SIZE = 300 * MIB
BESIDE_MAX = 64 * MIB
SETTINGS = {"dram.capacity": "64 MiB", "nvme.capacity": "1 GiB", "nvme.segment": "32 MiB"}
PIECE = bytes(range(256)) * 4096


def body() -> Iterator[bytes]:
    for number in range(SIZE // len(PIECE)):
        yield number.to_bytes(8, "big") + PIECE[8:]


def anonymous_bytes(pid: int) -> int:
    """What the process has beside the arena, which is shared memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@contextmanager
def highest_anonymous_bytes(pid: int) -> Iterator[list[int]]:
    found, over = [anonymous_bytes(pid)], threading.Event()

    def watch() -> None:
        while not over.wait(0.02):
            found[0] = max(found[0], anonymous_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield found
    finally:
        over.set()
        watcher.join()


@pytest.mark.slow
def test_an_object_of_five_arenas_goes_in_and_out_with_little_memory_beside_the_arena(tmp_path: Path) -> None:
    digest = hashlib.md5(b"".join(body())).hexdigest()
    with (
        DaemonProcess.start(tmp_path, SETTINGS) as daemon,
        closing(http.client.HTTPConnection(daemon.http_address, timeout=60.0)) as connection,
    ):
        connection.request("PUT", "/photos")
        connection.getresponse().read()
        before = anonymous_bytes(daemon.pid)
        with highest_anonymous_bytes(daemon.pid) as highest:
            connection.request("PUT", "/photos/k", body(), {"Content-Length": str(SIZE)})
            response = connection.getresponse()
            assert (response.status, response.read()) == (200, b"")
            assert response.headers["ETag"] == f'"{digest}"'
            connection.request("GET", "/photos/k")
            response = connection.getresponse()
            found = hashlib.md5()
            while piece := response.read(MIB):
                found.update(piece)
        assert found.hexdigest() == digest
        assert highest[0] - before < BESIDE_MAX, f"{(highest[0] - before) / MIB:.1f} MiB"
