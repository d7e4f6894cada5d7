"""Files written and removed: what reaches the store, and what never does."""

import errno
import http.client
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mount_process import MountProcess, run, wait_until
from mounted_store import BLOCK, Mounted, names, refused

S3 = "{http://s3.amazonaws.com/doc/2006-03-01/}"
LONG = 3 << 20
"""More than a block of these tests' daemon."""


def test_cp_stores_objects_of_any_length(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects()
    for length in (0, 1, 5000, BLOCK, LONG):
        source = tmp_path / f"f{length}"
        source.write_bytes(os.urandom(length))
        run("cp", source, folder.blocks / source.name)
        assert (folder.blocks / source.name).read_bytes() == source.read_bytes()
        wait_until(partial(folder.stat, source.name.encode()))
        assert folder.stat(source.name.encode()).size == length
    run("cp", "-r", tmp_path, folder.blocks / "tree")
    run("diff", "-r", tmp_path, folder.blocks / "tree")
    assert folder.stored(b"tree/f5000") == (tmp_path / "f5000").read_bytes()


def test_a_file_is_stored_when_it_is_closed_and_not_before(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "a").open("wb", buffering=0) as file:
        file.write(b"hello")
        assert folder.stat(b"a") is None
        assert (folder.blocks / "a").read_bytes() == b"hello"
        assert names(folder.blocks) == ["a"]
    assert folder.stored(b"a") == b"hello"


def test_who_reads_a_file_that_is_being_written_stores_nothing_of_it(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"before")
    with (folder.blocks / "a").open("r+b", buffering=0) as file:
        file.write(b"half")
        with (folder.blocks / "a").open("rb") as reader:
            assert reader.read() == b"halfre"
            os.fsync(reader.fileno())
        assert folder.stored(b"a") == b"before"
        file.write(b" and whole")
    assert folder.stored(b"a") == b"half and whole"


def test_fsync_stores_durably(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "a").open("wb", buffering=0) as file:
        file.write(b"hello")
        os.fsync(file.fileno())
        assert folder.stat(b"a").durable
        file.write(b" world")
    assert folder.stored(b"a") == b"hello world"


def test_appending_seeking_and_truncating_change_an_object_as_a_whole(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"0123456789")
    path = folder.blocks / "a"
    with path.open("ab") as file:
        file.write(b"abc")
    assert folder.stored(b"a") == b"0123456789abc"
    with path.open("r+b") as file:
        file.seek(2)
        file.write(b"XY")
        file.truncate(5)
    assert folder.stored(b"a") == b"01XY4"
    os.truncate(path, 2)
    assert folder.stored(b"a") == b"01" == path.read_bytes()
    path.write_bytes(b"")
    wait_until(lambda: folder.stat(b"a").size == 0)
    with (folder.blocks / "new").open("ab") as file:
        file.write(b"x")
        file.seek(100)
        file.write(b"y")
    assert folder.stored(b"new") == b"xy"


def test_a_file_that_is_opened_for_writing_and_left_as_it_was_is_not_stored_again(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"0123456789")
    before = folder.stat(b"a")
    with (folder.blocks / "a").open("r+b") as file:
        assert file.read() == b"0123456789"
        mounted.client.put(folder.handle, [b"a"], [b"by another"])
    assert folder.stored(b"a") == b"by another" and before.checksum != folder.stat(b"a").checksum


def test_a_kv_block_is_stored_when_it_has_the_namespaces_size(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.kv(1)
    source = tmp_path / "block"
    source.write_bytes(os.urandom(BLOCK))
    run("cp", source, folder.blocks / ("ab" * 16))
    assert folder.stored(b"\xab" * 16) == source.read_bytes()


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK + 1])
def test_no_other_length_becomes_a_kv_block(mounted: Mounted, length: int) -> None:
    folder = mounted.kv(1)
    path = folder.blocks / ("ab" * 16)
    with refused(errno.EIO):
        path.write_bytes(bytes(length))
    assert folder.keys() == set(folder.payloads)
    assert names(folder.blocks) == [key.hex() for key in folder.payloads]


def test_an_empty_file_becomes_no_kv_block(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    (folder.blocks / ("ab" * 16)).touch()
    wait_until(lambda: names(folder.blocks) == [key.hex() for key in folder.payloads])
    assert folder.keys() == set(folder.payloads)


def test_a_shell_that_redirects_stores_once_what_was_written(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"old")
    script = f"cat > {folder.blocks}/a"
    shell = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE)
    assert shell.stdin is not None
    wait_until(lambda: (folder.blocks / "a").stat().st_size == 0)
    assert folder.stored(b"a") == b"old"
    shell.communicate(b"new", timeout=20)
    assert folder.stored(b"a") == b"new"


def test_a_kv_block_with_a_hole_is_not_stored(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    with refused(errno.EIO), (folder.blocks / ("ab" * 16)).open("wb") as file:
        file.truncate(BLOCK)
        file.write(b"only the beginning")
    assert folder.stat(b"\xab" * 16) is None


def test_an_empty_kv_namespace_takes_no_block_by_file(mounted: Mounted) -> None:
    folder = mounted.kv()
    with refused(errno.EIO):
        (folder.blocks / ("ab" * 16)).write_bytes(bytes(BLOCK))
    assert folder.keys() == set()


def test_a_kv_block_that_is_there_never_changes(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    key, payload = next(iter(folder.payloads.items()))
    path = folder.blocks / key.hex()
    path.chmod(0o644)
    for flags in (os.O_WRONLY, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
        with refused(errno.EPERM):
            os.close(os.open(path, flags))
    with refused(errno.EEXIST):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    with refused(errno.EPERM):
        os.truncate(path, 0)
    assert folder.stored(key) == payload


WRITER = """
import os, sys, time
file = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
os.write(file, b"x" * int(sys.argv[2]))
print("wrote", flush=True)
time.sleep(60)
"""


def kill_writer(path: Path, length: int) -> None:
    """Somebody writes `length` bytes and is killed before he closes the file."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(length)], stdout=subprocess.PIPE)
    assert writer.stdout is not None and writer.stdout.readline() == b"wrote\n"
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()


def test_a_killed_writer_stores_no_kv_block(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    kill_writer(folder.blocks / ("cd" * 16), BLOCK // 2)
    assert folder.keys() == set(folder.payloads)
    assert names(folder.blocks) == [key.hex() for key in folder.payloads]


def test_a_killed_writer_stores_what_it_wrote_of_an_object(mounted: Mounted) -> None:
    folder = mounted.objects()
    kill_writer(folder.blocks / "half", 1000)
    assert folder.stored(b"half") == b"x" * 1000


def test_folders_come_and_go_with_what_is_in_them(mounted: Mounted) -> None:
    folder = mounted.objects()
    run("mkdir", "-p", folder.blocks / "a" / "b")
    assert names(folder.blocks) == ["a"] and names(folder.blocks / "a") == ["b"]
    (folder.blocks / "a" / "b" / "c").write_bytes(b"x")
    assert folder.keys() == {b"a/b/c"}
    with refused(errno.ENOTEMPTY):
        (folder.blocks / "a").rmdir()
    run("rm", "-r", folder.blocks / "a")
    assert folder.keys() == set() and names(folder.blocks) == []
    run("mkdir", folder.blocks / "empty")
    run("rmdir", folder.blocks / "empty")
    assert run("rmdir", folder.blocks / "empty", ok=False).returncode == 1


def test_a_folder_of_the_mount_is_a_namespace_of_objects(mounted: Mounted) -> None:
    path = mounted.mount.path / "made-by-mkdir"
    path.mkdir()
    (path / "blocks" / "a").write_bytes(b"x")
    with refused(errno.ENOTEMPTY):
        path.rmdir()
    (path / "blocks" / "a").unlink()
    path.rmdir()
    assert not path.exists()
    with refused(errno.EPERM):
        mounted.kv().path.rmdir()


def test_links_and_special_files_are_refused(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"x")
    for make in (
        lambda: (folder.blocks / "link").symlink_to("a"),
        lambda: (folder.blocks / "hard").hardlink_to(folder.blocks / "a"),
        lambda: os.mkfifo(folder.blocks / "fifo"),
    ):
        with pytest.raises(OSError):
            make()
    assert folder.keys() == {b"a"}


def test_many_programs_write_at_a_time(mounted: Mounted) -> None:
    folder = mounted.objects()
    script = "for i in $(seq 40); do head -c 3000 /dev/urandom > $0/$1-$i || exit 1; done"
    writers = [subprocess.Popen(["sh", "-c", script, str(folder.blocks), str(number)]) for number in range(4)]
    assert [writer.wait(30) for writer in writers] == [0] * 4
    assert len(folder.keys()) == 160
    assert {path.stat().st_size for path in folder.blocks.iterdir()} == {3000}


def test_what_is_removed_while_it_is_written_is_not_stored(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "a").open("w+b", buffering=0) as file:
        file.write(b"scratch")
        (folder.blocks / "a").unlink()
        file.write(b" more")
        file.seek(0)
        assert file.read() == b"scratch more"
    assert folder.keys() == set() and names(folder.blocks) == []


def test_who_reads_an_object_that_is_written_anew_goes_on_with_what_he_opened(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"1" * BLOCK)
    with (folder.blocks / "a").open("rb", buffering=0) as file:
        (folder.blocks / "a").write_bytes(b"2" * BLOCK)
        assert file.read(BLOCK) == b"1" * BLOCK
    assert (folder.blocks / "a").read_bytes() == b"2" * BLOCK


@pytest.mark.parametrize("mode", ["r+b", "wb"])
def test_what_is_written_is_not_seen_by_who_opened_the_object_before(mounted: Mounted, mode: str) -> None:
    half = 1 << 20
    folder = mounted.objects(a=b"1" * 2 * half)
    with (folder.blocks / "a").open("rb", buffering=0) as reader:
        assert reader.read(1) == b"1"
        with (folder.blocks / "a").open(mode, buffering=0) as file:
            for _ in range(2):
                file.write(b"2" * half)
                assert os.pread(reader.fileno(), 1, 0) == b"1"
        assert os.pread(reader.fileno(), 1, half // 2) == b"1"
        assert os.pread(reader.fileno(), 1, half + half // 2) == b"1"
    assert (folder.blocks / "a").read_bytes() == b"2" * 2 * half


def test_a_file_that_found_no_room_while_it_was_written_is_not_stored(mounted: Mounted, tmp_path: Path) -> None:
    folder, spool = mounted.objects(a=b"old"), tmp_path / "spool"
    spool.mkdir()
    run("mount", "-t", "tmpfs", "-o", "size=6m", "mooncask-test", spool)
    try:
        with MountProcess.start(mounted.daemon.socket_path, tmp_path / "mnt", spool_folder=str(spool)) as mount:
            path = mount.path / folder.handle.name / "blocks" / "a"
            done = run("dd", "if=/dev/zero", f"of={path}", "bs=1M", "count=12", ok=False)
            assert done.returncode == 1 and "No space left" in done.stderr
            assert folder.stored(b"a") == b"old"
    finally:
        run("umount", spool)


def test_an_object_uploaded_in_parts_is_read_and_renamed_as_any_other(mounted: Mounted) -> None:
    folder = mounted.objects()
    upload_in_parts(mounted.daemon.http_address, f"/{folder.handle.name}/small", b"in one part")
    path = folder.blocks / "small"
    assert path.read_bytes() == b"in one part"
    with path.open("ab") as file:
        file.write(b", and a tail")
    assert path.read_bytes() == b"in one part, and a tail"


def upload_in_parts(address: str, path: str, content: bytes) -> None:
    """S3's multipart upload, of one part."""
    connection = http.client.HTTPConnection(address)
    try:
        connection.request("POST", f"{path}?uploads")
        upload = ElementTree.fromstring(connection.getresponse().read()).findtext(f"{S3}UploadId")
        connection.request("PUT", f"{path}?partNumber=1&uploadId={upload}", content)
        response = connection.getresponse()
        response.read()
        parts = f"<Part><PartNumber>1</PartNumber><ETag>{response.getheader('ETag')}</ETag></Part>"
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
        connection.request("POST", f"{path}?uploadId={upload}", body)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        response.read()
    finally:
        connection.close()
