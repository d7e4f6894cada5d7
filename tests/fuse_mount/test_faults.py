"""Daemons that end or stop, mounts that are killed, several mounts at once: nobody hangs, nothing stays."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from mount_process import MountProcess, is_mounted, mooncask, run, wait_until, why_no_mount
from mounted_store import BLOCK, Mounted, names

from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind
from mooncask.fuse_mount.leased_views import IDLE_SECONDS

DEADLINE = 1.0
SLACK = 2.0
"""Two cores and other tests: what is late by less is in time."""


def fill(daemon: DaemonProcess) -> bytes:
    """An object that survives the daemon, in the namespace "docs"."""
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10) as client:
        docs = client.open_namespace("docs", kind=NamespaceKind.OBJECT)
        client.put(docs, [b"a"], [content := os.urandom(BLOCK)], durable=True)
    return content


def fails_with_eio(path: Path) -> bool:
    """Whether reading fails so, within the deadline."""
    start = time.monotonic()
    try:
        path.read_bytes()
    except OSError as error:
        return error.errno == errno.EIO and time.monotonic() - start < DEADLINE + SLACK
    return False


def read_until_it_works(path: Path) -> bytes:
    deadline = time.monotonic() + 20
    while True:
        try:
            return path.read_bytes()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def leased(mounted: Mounted) -> int:
    return sum(tier.leased_bytes for tier in mounted.client.status().tiers)


def test_a_killed_daemon_is_an_io_error_and_its_return_is_noticed(daemon: DaemonProcess, tmp_path: Path) -> None:
    content = fill(daemon)
    with MountProcess.start(daemon.socket_path, tmp_path / "mnt", deadline_seconds=DEADLINE) as mount:
        path = mount.path / "docs" / "blocks" / "a"
        assert path.read_bytes() == content
        daemon.kill()
        time.sleep(1.1)  # what the kernel still believes is over
        assert fails_with_eio(path)
        assert names(mount.path.parent) and mount.process.poll() is None
        with pytest.raises(OSError):
            (mount.path / "docs" / "blocks" / "b").write_bytes(b"x")
        daemon.run()
        assert read_until_it_works(path) == content
        (mount.path / "docs" / "blocks" / "b").write_bytes(b"x")
        assert sorted(names(path.parent)) == ["a", "b"]


def test_a_daemon_that_answers_nothing_is_an_io_error_within_the_deadline(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    content = fill(daemon)
    with MountProcess.start(daemon.socket_path, tmp_path / "mnt", deadline_seconds=DEADLINE) as mount:
        path = mount.path / "docs" / "blocks" / "a"
        assert path.read_bytes() == content
        daemon.freeze()
        failed: list[bool] = []

        def read(number: int) -> None:
            failed.append(fails_with_eio(path.with_name(f"other{number}")))

        readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(20)
        assert failed == [True] * 4
        daemon.thaw()
        assert read_until_it_works(path) == content


def test_a_file_that_is_open_while_the_daemon_restarts_is_readable_afterwards(
    daemon: DaemonProcess, tmp_path: Path
) -> None:
    content = fill(daemon)
    with (
        MountProcess.start(daemon.socket_path, tmp_path / "mnt", deadline_seconds=10) as mount,
        (mount.path / "docs" / "blocks" / "a").open("rb", buffering=0) as file,
    ):
        assert file.read(100) == content[:100]
        daemon.restart()
        assert content[100:] == b"".join(iter(lambda: file.read(1 << 20), b""))


def test_two_mounts_show_the_same_and_each_sees_what_the_other_wrote(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects(a=b"x")
    with MountProcess.start(mounted.daemon.socket_path, tmp_path / "second") as second:
        other = second.path / folder.handle.name / "blocks"
        assert names(other) == ["a"]
        (other / "b").write_bytes(b"from the second")
        assert (folder.blocks / "b").read_bytes() == b"from the second"
        (folder.blocks / "b").write_bytes(b"from the first")
        with (other / "b").open("rb") as file:
            assert file.read().startswith(b"from the ")
    assert (folder.blocks / "a").read_bytes() == b"x"


def test_a_killed_mount_is_unmounted_by_the_command(mounted: Mounted, tmp_path: Path) -> None:
    with MountProcess.start(mounted.daemon.socket_path, tmp_path / "mnt") as mount:
        assert (mount.path / ".mooncask").is_dir()
        mount.kill()
        with pytest.raises(OSError) as raised:
            names(mount.path)
        assert raised.value.errno == errno.ENOTCONN
        mooncask("umount", mount.path)
        assert not is_mounted(mount.path) and names(mount.path) == []


def test_a_signal_to_end_unmounts(mounted: Mounted, tmp_path: Path) -> None:
    with MountProcess.start(mounted.daemon.socket_path, tmp_path / "mnt") as mount:
        mount.process.send_signal(signal.SIGTERM)
        assert mount.process.wait(20) == 0
        assert not is_mounted(mount.path)


def test_a_mount_in_use_is_not_unmounted_unless_lazily(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects(a=b"x" * BLOCK)
    with MountProcess.start(mounted.daemon.socket_path, tmp_path / "mnt") as mount:
        with (mount.path / folder.handle.name / "blocks" / "a").open("rb", buffering=0) as file:
            refused = mooncask("umount", mount.path, ok=False)
            assert refused.returncode == 2 and "--lazy" in refused.stderr
            mooncask("umount", "--lazy", mount.path)
            assert not is_mounted(mount.path)
            assert file.read(10) == b"x" * 10
        assert mount.process.wait(20) == 0


def test_the_command_returns_when_the_mount_can_be_used(mounted: Mounted, tmp_path: Path) -> None:
    place = tmp_path / "mnt"
    place.mkdir()
    mooncask("mount", place, "--socket", mounted.daemon.socket_path, "--daemon")
    try:
        assert ".mooncask" in names(place)
    finally:
        mooncask("umount", place)
    assert not is_mounted(place)


def test_a_place_that_shows_a_store_already_is_not_mounted_again(mounted: Mounted) -> None:
    refused = mooncask("mount", mounted.mount.path, "--socket", mounted.daemon.socket_path, "--daemon", ok=False)
    assert refused.returncode == 2 and refused.stderr.count("\n") == 1
    assert f"mooncask umount {mounted.mount.path}" in refused.stderr


def test_a_read_only_mount_changes_nothing(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects(a=b"x")
    with MountProcess.start(mounted.daemon.socket_path, tmp_path / "mnt", read_only=True) as mount:
        blocks = mount.path / folder.handle.name / "blocks"
        for change in ((blocks / "b").touch, (blocks / "a").unlink, (blocks / "c").mkdir):
            with pytest.raises(OSError) as raised:
                change()
            assert raised.value.errno == errno.EROFS
        assert (blocks / "a").read_bytes() == b"x"


@pytest.mark.skipif(bool(why_no_mount()), reason=why_no_mount())
def test_no_daemon_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    done = mooncask("mount", tmp_path, "--socket", tmp_path / "nobody", "--daemon", ok=False)
    assert done.returncode == 69, done.stderr
    assert done.stderr.count("\n") == 1 and "no Mooncask daemon" in done.stderr


def test_a_place_that_is_no_folder_is_one_line(tmp_path: Path) -> None:
    done = mooncask("mount", tmp_path / "missing", ok=False)
    assert done.returncode == 2 and "missing" in done.stderr
    done = mooncask("umount", tmp_path, ok=False)
    assert done.returncode == 2 and "no Mooncask mount" in done.stderr


OPEN_MANY = """
import os, sys
paths = sys.argv[2:]
for number in range(int(sys.argv[1])):
    file = os.open(paths[number % len(paths)], os.O_RDONLY)
    os.read(file, 4096)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(file)
"""


@pytest.mark.parametrize("opens", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_files_that_were_read_leave_no_lease_behind(mounted: Mounted, opens: int) -> None:
    folder = mounted.kv(50)
    run(sys.executable, "-c", OPEN_MANY, str(opens), *folder.blocks.iterdir(), seconds=100)
    wait_until(lambda: leased(mounted) == 0, IDLE_SECONDS - 1)  # by closing, and not because nobody reads any more


def test_files_left_open_hold_a_bounded_number_of_leases_and_stay_readable(mounted: Mounted) -> None:
    folder = mounted.kv(300)
    files = [path.open("rb", buffering=0) for path in folder.blocks.iterdir()]
    try:
        for file in files:
            file.read(10)
        wait_until(lambda: 0 < leased(mounted) <= (64 << 20) // 8)
        for file in files:
            assert file.read(BLOCK) == folder.payloads[bytes.fromhex(Path(file.name).name)][10:]
    finally:
        for file in files:
            file.close()


def test_a_reader_that_is_killed_leaves_no_lease(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    (path,) = folder.blocks.iterdir()
    script = "import sys, time; f = open(sys.argv[1], 'rb'); f.read(10); print(1, flush=True); time.sleep(60)"
    reader = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert reader.stdout is not None and reader.stdout.readline()
    reader.kill()
    reader.wait()
    reader.stdout.close()
    wait_until(lambda: folder.stat(next(iter(folder.payloads))).leases == 0)
