"""Files that get another name: what this mount wrote may be renamed, and how programs that write under another name use it."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from mount_process import run, wait_until
from mounted_store import BLOCK, Mounted, refused

LONG = 3 << 20
"""More than a block of these tests' daemon."""


def test_a_file_written_under_another_name_is_renamed(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects(final=b"old", other=b"x")
    (folder.blocks / ".final.tmp").write_bytes(b"new")
    run("mv", folder.blocks / ".final.tmp", folder.blocks / "final")
    assert folder.stored(b"final") == b"new" == (folder.blocks / "final").read_bytes()
    assert folder.keys() == {b"final", b"other"}
    (folder.blocks / "long.tmp").write_bytes(content := os.urandom(LONG))
    (folder.blocks / "long.tmp").rename(folder.blocks / "long")
    assert (folder.blocks / "long").read_bytes() == content
    assert folder.keys() == {b"final", b"other", b"long"}


def test_a_file_is_renamed_while_it_is_being_written(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "a").open("wb", buffering=0) as file:
        file.write(b"one")
        (folder.blocks / "a").rename(folder.blocks / "b")
        assert folder.keys() == {b"b"} and folder.stored(b"b") == b"one"
        file.write(b" two")
    assert folder.keys() == {b"b"} and folder.stored(b"b") == b"one two"


def test_a_block_is_staged_under_any_name_and_becomes_one_by_its_digest(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    staged = folder.blocks / ".incoming.Xa7fQ1"
    staged.write_bytes(payload := os.urandom(BLOCK))
    assert staged.read_bytes() == payload and folder.keys() == set(folder.payloads)
    staged.rename(folder.blocks / ("ef" * 16))
    assert folder.stored(b"\xef" * 16) == payload
    assert not staged.exists()
    staged.write_bytes(b"short")
    with refused(errno.EIO):
        staged.rename(folder.blocks / ("01" * 16))
    staged.unlink()
    assert folder.keys() == {*folder.payloads, b"\xef" * 16}


def test_what_this_mount_did_not_write_is_not_renamed(mounted: Mounted) -> None:
    objects, other, kv = mounted.objects(a=b"x"), mounted.objects(), mounted.kv(1)
    (objects.blocks / "ours").write_bytes(b"y")
    block = kv.blocks / next(iter(kv.payloads)).hex()
    for source, target, number in (
        (objects.blocks / "a", objects.blocks / "b", errno.EPERM),
        (block, kv.blocks / ("01" * 16), errno.EPERM),
        (objects.blocks / "ours", other.blocks / "ours", errno.EXDEV),
        (objects.path, mounted.mount.path / "else", errno.EPERM),
    ):
        with refused(number):
            source.rename(target)
    assert objects.keys() == {b"a", b"ours"}


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_rsync_writes_under_a_temporary_name_and_renames(mounted: Mounted, tmp_path: Path) -> None:
    folder, source = mounted.objects(), tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    for number in range(5):
        (source / "deep" / f"f{number}").write_bytes(os.urandom(1000 * number))
    run("rsync", "-r", f"{source}/", folder.blocks)
    wait_until(lambda: folder.keys() == {f"deep/f{number}".encode() for number in range(5)})
    run("diff", "-r", source, folder.blocks)


def test_sed_changes_an_object_in_place(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"one two\n")
    run("sed", "-i", "s/two/three/", folder.blocks / "a", ok=False)
    assert folder.stored(b"a") == b"one three\n"


def test_who_still_writes_a_file_that_another_took_the_name_of_does_not_store_over_it(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "a").open("wb", buffering=0) as file:
        file.write(b"late")
        (folder.blocks / "b").write_bytes(b"new")
        (folder.blocks / "b").rename(folder.blocks / "a")
        file.write(b"r")
    assert folder.stored(b"a") == b"new" and folder.keys() == {b"a"}


def test_of_two_that_are_written_the_one_renamed_over_the_other_is_stored(mounted: Mounted) -> None:
    folder = mounted.objects()
    with (folder.blocks / "b").open("wb", buffering=0) as winner, (folder.blocks / "a").open("wb") as loser:
        loser.write(b"late")
        winner.write(b"new")
        (folder.blocks / "b").rename(folder.blocks / "a")
    assert folder.stored(b"a") == b"new" and folder.keys() == {b"a"}
