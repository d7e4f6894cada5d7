"""Blocks read as files by the programs that people use."""

import contextlib
import errno
import json
import mmap
import os
import stat
from hashlib import sha256
from pathlib import Path

import pytest
from mount_process import run
from mounted_store import BLOCK, Folder, Mounted, names

from mooncask.client.http import HttpClient

VERSION_BYTES = 2 << 20
"""Far more than the kernel reads ahead."""


def first(folder: Folder) -> tuple[Path, bytes, bytes]:
    """(its file, its key, its bytes) of a namespace's first block."""
    key, payload = next(iter(folder.payloads.items()))
    return folder.blocks / key.hex(), key, payload


def test_a_namespace_whose_keys_are_made_with_another_hash_is_shown_too(mounted: Mounted) -> None:
    folder = mounted.kv(1, hash="xxh3_128")
    path, _, payload = first(folder)
    assert names(folder.blocks) == [path.name] and path.read_bytes() == payload


def test_cat_cp_dd_and_mmap_give_the_blocks_bytes(mounted: Mounted, tmp_path: Path) -> None:
    path, _, payload = first(mounted.kv(3))
    assert path.read_bytes() == payload
    run("cp", path, tmp_path / "copied")
    assert (tmp_path / "copied").read_bytes() == payload
    run("dd", f"if={path}", f"of={tmp_path / 'cut'}", "bs=1000", "skip=3", "count=7", "status=none")
    assert (tmp_path / "cut").read_bytes() == payload[3000:10000]
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert mapped[BLOCK - 100 :] == payload[-100:]
    assert run("cmp", path, tmp_path / "copied").stdout == ""


def test_a_folder_holds_every_block_and_nothing_else(mounted: Mounted) -> None:
    folder = mounted.kv(20)
    assert set(names(folder.blocks)) == {key.hex() for key in folder.payloads}
    assert {path.name: path.read_bytes() for path in folder.blocks.iterdir()} == {
        key.hex(): payload for key, payload in folder.payloads.items()
    }


def test_stat_find_du_and_ls_show_sizes_and_times(mounted: Mounted) -> None:
    folder = mounted.kv(3)
    path, key, _ = first(folder)
    found = path.stat()
    assert found.st_size == BLOCK and found.st_blocks == BLOCK // 512
    assert int(found.st_mtime) == int(folder.stat(key).created_seconds)
    assert stat.S_IMODE(found.st_mode) == 0o444 and found.st_uid == os.getuid()
    assert len(run("find", folder.blocks, "-size", f"{BLOCK}c").stdout.split()) == 3
    assert run("du", "-s", "--block-size=1", folder.blocks).stdout.split()[0] == str(3 * BLOCK)
    lines = run("ls", "-l", folder.blocks).stdout.splitlines()
    assert [line.split()[4] for line in lines[1:]] == [str(BLOCK)] * 3


def test_digests_are_found_in_folders_by_their_first_bytes(mounted: Mounted) -> None:
    folder = mounted.kv(30)
    _, key, payload = first(folder)
    text = key.hex()
    assert (folder.path / "by-digest" / text[:2] / text[2:4] / text).read_bytes() == payload
    found = run("find", folder.path / "by-digest", "-type", "f", "-printf", "%f\n").stdout.split()
    assert sorted(found) == sorted(key.hex() for key in folder.payloads)
    assert not (folder.path / "by-digest" / text[:2] / text[:2] / "zz").exists()


def test_a_chain_is_a_folder_of_its_blocks_in_order_with_links_to_what_continues_it(mounted: Mounted) -> None:
    folder = mounted.kv(4)
    keys, chains = list(folder.payloads), folder.path / "chains"
    assert names(chains) == [keys[-1].hex()]
    whole = chains / keys[-1].hex()
    blocks = sorted(name for name in names(whole) if not name.startswith((".", "next")))
    assert blocks == [f"{index:06d}-{key.hex()}" for index, key in enumerate(keys)]
    assert (
        run("sh", "-c", f"cat {whole}/0* | sha256sum").stdout.split()[0]
        == sha256(b"".join(folder.payloads.values())).hexdigest()
    )
    half = chains / keys[1].hex()
    assert names(half / "next") == [keys[2].hex()]
    assert (half / "next" / keys[2].hex()).readlink() == Path("../..") / keys[2].hex()
    assert len(names(half / "next" / keys[2].hex())) == 3 + 2
    info = json.loads((half / ".info").read_text())
    assert (info["blocks"], info["tokens"], info["depth"], info["size_bytes"]) == (2, 32, 1, 2 * BLOCK)
    assert info["continued_by"] == 1 and info["whole"] is True


def test_pages_about_the_store_are_json(mounted: Mounted) -> None:
    folder = mounted.kv(2)
    stats = json.loads((folder.path / ".stats").read_text())
    assert stats["blocks"] == 2 and stats["bytes"] == 2 * BLOCK
    own = mounted.mount.path / ".mooncask"
    assert sorted(names(own)) == ["config", "peers", "stats"]
    assert json.loads((own / "stats").read_text())["ready"] is True
    config = json.loads((own / "config").read_text())
    assert config["sections"]["limits"]["block_max"] == 2 << 20
    assert json.loads((own / "peers").read_text())["peers"] == []


def test_extended_attributes_tell_of_a_block_and_two_of_them_can_be_set(mounted: Mounted) -> None:
    folder = mounted.kv(2)
    keys = list(folder.payloads)
    path = folder.blocks / keys[1].hex()
    found = {name.removeprefix("user.mooncask."): os.getxattr(path, name).decode() for name in os.listxattr(path)}
    assert found["parent"] == keys[0].hex() and found["depth"] == "1" and found["tokens"] == "16"
    assert found["checksum"] == folder.stat(keys[1]).checksum.hex()
    assert "dram" in found["tier"] and found["pinned"] == "0" and found["ttl"] == "0"
    os.setxattr(path, "user.mooncask.pinned", b"1")
    assert folder.stat(keys[1]).pins == 1
    os.setxattr(path, "user.mooncask.pinned", b"1")
    os.setxattr(path, "user.mooncask.pinned", b"0")
    assert folder.stat(keys[1]).pins == 0
    os.setxattr(path, "user.mooncask.ttl", b"900")
    assert 890 < folder.stat(keys[1]).ttl_seconds <= 900
    os.removexattr(path, "user.mooncask.ttl")
    assert folder.stat(keys[1]).ttl_seconds == 0


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("user.mooncask.hits", b"7", errno.EPERM),
        ("user.mooncask.pinned", b"yes", errno.EINVAL),
        ("user.mooncask.ttl", b"-1", errno.EINVAL),
        ("user.other", b"x", errno.EOPNOTSUPP),
    ],
)
def test_what_nobody_may_set_is_refused(mounted: Mounted, name: str, value: bytes, number: int) -> None:
    path, _, _ = first(mounted.kv(1))
    with pytest.raises(OSError) as raised:
        os.setxattr(path, name, value)
    assert raised.value.errno == number


def test_an_attribute_that_is_not_there_is_no_data(mounted: Mounted) -> None:
    path, _, _ = first(mounted.kv(1))
    for name in ("user.mooncask.parent", "user.mooncask.color", "user.other"):
        with pytest.raises(OSError) as raised:
            os.getxattr(path, name)
        assert raised.value.errno == errno.ENODATA


def test_rm_evicts_and_who_has_the_file_open_goes_on_reading(mounted: Mounted) -> None:
    folder = mounted.kv(1)
    path, key, payload = first(folder)
    with path.open("rb", buffering=0) as file:
        run("rm", "-f", path)
        assert folder.stat(key) is None
        assert file.read(BLOCK) == payload
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        path.read_bytes()


def test_a_block_that_is_only_on_nvme_is_read_from_there(mounted: Mounted) -> None:
    folder = mounted.kv(4)
    mounted.client.put(folder.handle, [b"\1" * 16], [os.urandom(BLOCK)], durable=True)
    path, key, payload = first(folder)
    pressure = mounted.client.open_namespace("pressure", {"model": "pressure"}, mode="memory")
    for number in range(1200):
        mounted.client.put(pressure, [number.to_bytes(16, "big")], [bytes(BLOCK)])
        if number % 100 == 99 and 2 not in folder.stat(key).tiers:
            break
    assert 2 not in folder.stat(key).tiers
    assert path.read_bytes() == payload


def test_df_shows_the_room_of_the_slowest_tier(mounted: Mounted) -> None:
    found = os.statvfs(mounted.mount.path)
    assert 64 << 20 < found.f_blocks * found.f_frsize <= 512 << 20
    assert found.f_bfree < found.f_blocks and found.f_namemax == 255


def test_an_object_longer_than_a_block_is_read_by_ranges(mounted: Mounted, tmp_path: Path) -> None:
    folder = mounted.objects()
    content = os.urandom((11 << 20) + 12345)
    with HttpClient.beside(mounted.daemon.socket_path) as http:
        http.put(folder.handle.name, "long/object.bin", content)
    path = folder.blocks / "long" / "object.bin"
    assert path.stat().st_size == len(content)
    assert path.read_bytes() == content
    run("dd", f"if={path}", f"of={tmp_path / 'cut'}", "bs=4096", "skip=1000", "count=2", "status=none")
    assert (tmp_path / "cut").read_bytes() == content[4096000 : 4096000 + 8192]
    path.unlink()
    assert not path.exists()


def test_a_reader_of_a_long_object_never_gets_parts_of_another_version(mounted: Mounted) -> None:
    folder, length = mounted.objects(), 12 << 20
    with HttpClient.beside(mounted.daemon.socket_path) as http:
        http.put(folder.handle.name, "long", bytes(length))
        with (folder.blocks / "long").open("rb", buffering=0) as file:
            assert file.read(4096) == bytes(4096)
            http.put(folder.handle.name, "long", b"\1" * length)
            with pytest.raises(OSError) as raised:
                os.pread(file.fileno(), 4096, length - 4096)
            assert raised.value.errno == errno.ESTALE
        assert (folder.blocks / "long").read_bytes() == b"\1" * length


def test_another_version_of_an_object_is_seen_by_the_next_open(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"one")
    path = folder.blocks / "a"
    assert path.read_bytes() == b"one"
    for content in (b"two", b"six", b"three"):  # some of the same length, all within a second
        mounted.client.put(folder.handle, [b"a"], [content])
        with path.open("rb", buffering=0) as file:
            assert file.read(3) == content[:3]


def test_a_reader_never_gets_bytes_of_another_version_than_it_opened(mounted: Mounted) -> None:
    folder = mounted.objects(a=b"1" * BLOCK)
    with (folder.blocks / "a").open("rb", buffering=0) as file:
        mounted.client.put(folder.handle, [b"a"], [b"2" * BLOCK])
        with pytest.raises(OSError) as raised:
            file.read(10)
        assert raised.value.errno == errno.ESTALE


@pytest.mark.parametrize("by_mount", [True, False])
def test_who_opens_the_next_version_gets_no_byte_of_one_that_is_still_being_read(
    mounted: Mounted, by_mount: bool
) -> None:
    one, other = b"1" * VERSION_BYTES, b"2" * VERSION_BYTES
    folder = mounted.objects(a=one)
    with (folder.blocks / "a").open("rb", buffering=0) as old:
        assert old.read(4096) == one[:4096]
        if by_mount:
            (folder.blocks / "a").write_bytes(other)
        else:
            mounted.client.put(folder.handle, [b"a"], [other])
        with (folder.blocks / "a").open("rb", buffering=0) as new:
            assert new.read(4096) == other[:4096]
            with contextlib.suppress(OSError):  # it may be told that its version is gone
                old.seek(VERSION_BYTES // 2)
                assert old.read() in (one[VERSION_BYTES // 2 :], b"")
            new.seek(0)
            assert new.readall() == other
    assert (folder.blocks / "a").read_bytes() == other


@pytest.mark.parametrize("lengths", [(100, 70_000), (70_000, 100)])
def test_an_object_that_was_just_looked_at_is_read_to_the_end_of_its_next_version(
    mounted: Mounted, lengths: tuple[int, int]
) -> None:
    """The kernel goes by the length that it was told for a second."""
    folder = mounted.objects(a=bytes(lengths[0]))
    assert (folder.blocks / "a").stat().st_size == lengths[0]
    mounted.client.put(folder.handle, [b"a"], [bytes(lengths[1])])
    with (folder.blocks / "a").open("rb", buffering=0) as file:
        assert len(file.read(1 << 20)) == lengths[1]


def test_what_is_not_there_is_not_found(mounted: Mounted) -> None:
    root, kv, objects = mounted.mount.path, mounted.kv(1), mounted.objects(a=b"x")
    for path in (
        root / "nobody",
        root / ".mooncask" / "other",
        kv.path / "other",
        kv.blocks / "zz",
        kv.blocks / ("0" * 32),
        kv.path / "chains" / ("0" * 32),
        kv.path / "by-digest" / "0",
        objects.path / "chains",
        objects.blocks / "b",
    ):
        with pytest.raises(FileNotFoundError):
            path.stat()
