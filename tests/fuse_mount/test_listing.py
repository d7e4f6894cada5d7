"""Folders of a mount hold exactly what the store has, whatever the keys and however many."""

import os
import random
import time
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from mounted_store import Folder, Mounted, names

from mooncask.fuse_mount.names import key_of_path
from mooncask.fuse_mount.open_folders import OpenFolder

SEGMENTS = [
    b"",
    b".",
    b"..",
    b"%",
    b"%-",
    b"%=",
    b"50%",
    b"a",
    b"a!",
    b"a-b",
    b"a0",
    b"b",
    b"\xff\xfe",
    b"\n",
    b"x" * 300,
]


def files_below(folder: Path) -> dict[bytes, Path]:
    """Every file in a namespace's `blocks/`, by the key that its path means."""
    found: dict[bytes, Path] = {}
    for top, _, files in os.walk(folder):
        for name in files:
            path = Path(top) / name
            found[key_of_path(os.fsencode(path.relative_to(folder)))] = path
    return found


def put_all(folder: Folder, keys: list[bytes]) -> None:
    for start in range(0, len(keys), 1000):
        part = keys[start : start + 1000]
        folder.mounted.client.put(folder.handle, part, [b"of " + key for key in part])


def test_every_key_has_a_path_and_every_path_its_key(mounted: Mounted) -> None:
    folder = mounted.objects()
    dice = random.Random(7)
    keys = {b"/".join(dice.choices(SEGMENTS, k=dice.randint(1, 5))) for _ in range(250)} - {b""}
    keys = {key for key in keys if len(key) <= 1024} | {b"a", b"a/b", b"a//", b"/", b"//", b"." * 3}
    put_all(folder, sorted(keys))
    found = files_below(folder.blocks)
    assert found.keys() == keys
    assert all(path.read_bytes() == b"of " + key for key, path in found.items())


def test_what_is_listed_can_be_removed_by_its_path(mounted: Mounted) -> None:
    folder = mounted.objects()
    keys = [b"a", b"a/b", b"a//c", b"/x", b".", b"50%", b"y" * 600]
    put_all(folder, keys)
    for path in files_below(folder.blocks).values():
        path.unlink()
    assert folder.keys() == set()


def test_a_folder_of_thousands_is_listed_once_each_and_in_time(mounted: Mounted) -> None:
    folder = mounted.kv()
    keys = [number.to_bytes(8, "big") * 2 for number in range(4_000)]
    put_all(folder, keys)
    start = time.perf_counter()
    found = names(folder.blocks)
    assert time.perf_counter() - start < 4  # `mooncask bench mount` measures
    assert found == [key.hex() for key in keys]


def test_a_folder_is_seen_whole_although_pages_end_within_its_subfolders(mounted: Mounted) -> None:
    folder = mounted.objects()
    put_all(folder, [b"d%02d/%04d" % (number % 3, number) for number in range(3600)] + [b"zz", b"d01!", b"d01"])
    assert sorted(names(folder.blocks)) == ["d00", "d01", "d01!", "d01%=", "d02", "zz"]
    assert len(names(folder.blocks / "d01")) == 1200
    assert (folder.blocks / "d01%=").read_bytes() == b"of d01"


def test_a_block_stands_beside_its_folder_however_much_comes_between(mounted: Mounted) -> None:
    folder = mounted.objects()
    put_all(folder, [b"a", *(b"a!%04d" % number for number in range(1500)), b"a/x"])
    assert {"a", "a%="} <= set(names(folder.blocks))
    assert (folder.blocks / "a%=").read_bytes() == b"of a"


def test_what_shares_the_beginning_of_a_long_name_is_not_in_its_folder(mounted: Mounted) -> None:
    folder = mounted.objects()
    long, near = b"x" * 260, b"x" * 250 + b"z"
    put_all(folder, [*(long + b"/%04d" % number for number in range(1500)), near])
    assert sorted(names(folder.blocks)) == ["x" * 250 + "%+", near.decode()]
    assert len(files_below(folder.blocks)) == 1501


@given(st.integers(0, 6000), st.lists(st.integers(0, 6000), max_size=8), st.lists(st.integers(1, 3000), max_size=8))
def test_reading_goes_on_from_any_position(count: int, starts: list[int], lengths: list[int]) -> None:
    folder = OpenFolder(lambda: iter(range(count)))
    for start, length in zip(starts, lengths, strict=False):
        found = [pair for pair, _ in zip(folder.entries(start), range(length), strict=False)]
        assert found == [(number, number + 1) for number in range(start, min(count, start + length))]
