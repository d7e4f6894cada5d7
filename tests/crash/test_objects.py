"""A real daemon is killed while it stores long objects: each is there whole, in its old or its new version, and no part is left over."""

import contextlib
import hashlib
import http.client
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from os import kill
from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

import numpy as np
import pytest
from daemon_process import DaemonProcess

MIB = 1 << 20
SETTINGS = {
    "nvme.capacity": "192 MiB",
    "nvme.segment": "8 MiB",
    "dram.capacity": "32 MiB",
    "limits.block_max": "1 MiB",
    "shutdown.flush_seconds": 5,
}
SIZES = (100, MIB, MIB + 1, 5 * MIB + 17)
SWEEP_SECONDS = 20.0
S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"


def body(size: int, seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def ask(
    daemon: DaemonProcess, method: str, path: str, data: bytes = b"", headers: Mapping[str, str] | None = None
) -> tuple[int, bytes, str]:
    """(status, body, ETag). Raises OSError and HTTPException when the daemon dies of it."""
    with contextlib.closing(http.client.HTTPConnection(daemon.http_address, timeout=20.0)) as connection:
        connection.request(method, path, data, dict(headers or {}))
        response = connection.getresponse()
        return response.status, response.read(), response.getheader("ETag", "")


def dies_of(daemon: DaemonProcess, method: str, path: str, data: bytes = b"") -> None:
    with pytest.raises((OSError, http.client.HTTPException)):
        ask(daemon, method, path, data)


def stored_bytes(daemon: DaemonProcess) -> int:
    """All that the bucket holds, parts included."""
    found = json.loads(ask(daemon, "GET", "/-/v1/status")[1])["namespaces"]
    return sum(namespace["bytes"] for namespace in found)


def check_nothing_is_left_over(daemon: DaemonProcess, whole_bytes: int) -> None:
    """A manifest has some tens of bytes a part."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while not whole_bytes <= (found := stored_bytes(daemon)) < whole_bytes + 4096:
        assert time.monotonic() < deadline, f"{found} bytes are stored, objects have {whole_bytes}"
        time.sleep(0.02)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path, SETTINGS) as process:
        assert ask(process, "PUT", "/photos")[0] == 200
        yield process


def crash_at(daemon: DaemonProcess, point: str) -> None:
    daemon.stop()
    daemon.environment["MOONCASK_CRASH_AT"] = point
    daemon.run()


def restart(daemon: DaemonProcess, *, lose_index: bool = False) -> None:
    daemon.environment.clear()
    daemon.kill()
    if lose_index:
        shutil.rmtree(daemon.folder / "nvme" / "index")
    daemon.run()


@pytest.mark.parametrize("lose_index", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_between_the_chunks_and_the_manifest_leaves_the_old_version(
    daemon: DaemonProcess, lose_index: bool
) -> None:
    old, new = body(3 * MIB, 1), body(5 * MIB, 2)
    assert ask(daemon, "PUT", "/photos/k", old)[0] == 200
    crash_at(daemon, "objects.chunks.written")
    dies_of(daemon, "PUT", "/photos/k", new)
    restart(daemon, lose_index=lose_index)
    assert ask(daemon, "GET", "/photos/k")[1] == old
    assert ask(daemon, "GET", "/photos/absent")[0] == 404
    check_nothing_is_left_over(daemon, len(old))


@pytest.mark.parametrize("lose_index", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_while_parts_are_removed_leaves_none_of_them(daemon: DaemonProcess, lose_index: bool) -> None:
    old, new = body(5 * MIB, 1), body(3 * MIB, 2)
    assert ask(daemon, "PUT", "/photos/k", old)[0] == 200
    crash_at(daemon, "objects.parts.removed")
    with contextlib.suppress(OSError, http.client.HTTPException):
        ask(daemon, "PUT", "/photos/k", new)
    restart(daemon, lose_index=lose_index)
    assert ask(daemon, "GET", "/photos/k")[1] == new
    check_nothing_is_left_over(daemon, len(new))


@pytest.mark.parametrize("lose_index", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_kill_right_after_an_upload_was_completed_leaves_the_object(daemon: DaemonProcess, lose_index: bool) -> None:
    crash_at(daemon, "objects.upload.published")
    _, answer, _ = ask(daemon, "POST", "/photos/k?uploads")
    upload = ElementTree.fromstring(answer).findtext(f"{S3}UploadId") or ""
    parts = [body(5 * MIB, 1), body(2 * MIB + 5, 2), body(MIB, 3)]
    tags = [
        ask(daemon, "PUT", f"/photos/k?partNumber={number}&uploadId={quote(upload)}", part)[2]
        for number, part in enumerate(parts, 1)
    ]
    listed = "".join(f"<Part><PartNumber>{n}</PartNumber><ETag>{t}</ETag></Part>" for n, t in enumerate(tags[:2], 1))
    document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    dies_of(daemon, "POST", f"/photos/k?uploadId={quote(upload)}", document)
    restart(daemon, lose_index=lose_index)
    assert ask(daemon, "GET", "/photos/k")[1] == parts[0] + parts[1]
    assert upload.encode() not in ask(daemon, "GET", "/photos?uploads")[1]
    check_nothing_is_left_over(daemon, len(parts[0] + parts[1]))


@pytest.mark.slow
def test_objects_are_whole_after_kills_at_random(daemon: DaemonProcess) -> None:
    moments, allowed = random.Random(7), {f"k{number}": {""} for number in range(4)}
    stamp = 0
    for _ in range(6):
        killer = threading.Timer(moments.uniform(0.05, 0.5), kill, (daemon.pid, 9))
        killer.start()
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                stamp += 1
                key, data = moments.choice(sorted(allowed)), body(moments.choice(SIZES), stamp)
                gone = moments.random() < 0.2
                digest = "" if gone else hashlib.md5(data).hexdigest()
                allowed[key].add(digest)
                status, _, _ = ask(daemon, "DELETE" if gone else "PUT", f"/photos/{key}", b"" if gone else data)
                assert status in (200, 204)
                allowed[key] = {digest}
        killer.join()
        restart(daemon)
        whole = 0
        for key, states in allowed.items():
            status, data, _ = ask(daemon, "GET", f"/photos/{key}")
            found = hashlib.md5(data).hexdigest() if status == 200 else ""
            assert found in states, key
            allowed[key] = {found}
            whole += len(data) if status == 200 else 0
        check_nothing_is_left_over(daemon, whole)
