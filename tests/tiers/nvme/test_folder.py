"""Whose folder: what is refused, and that refusing changes nothing."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nvme_doubles import MIB, FaultyFiles, OpenStore, SmallStore, config

from mooncask.errors import (
    ConfigError,
    FolderInUse,
    FolderNotWritable,
    ForeignFolder,
    NoDirectIO,
    UnsupportedVersion,
)
from mooncask.tiers.nvme import NvmeConfig


async def test_a_folder_with_foreign_files_is_refused_and_left_as_it_was(small: NvmeConfig) -> None:
    small.path.mkdir()
    (small.path / "thesis.tex").write_text("dear")
    with pytest.raises(ForeignFolder, match=r"thesis\.tex"):
        await SmallStore().open(small)
    assert [p.name for p in small.path.iterdir()] == ["thesis.tex"]


async def test_a_folder_of_another_version_is_refused_by_both_versions(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    await (await open_store()).close()
    identity = json.loads((small.path / "FOLDER").read_text())
    (small.path / "FOLDER").write_text(json.dumps(identity | {"format": 3}))
    with pytest.raises(UnsupportedVersion, match="format 3; this version reads 2"):
        await SmallStore().open(small)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"kind": "mooncask"}', b'{"kind": "other"}', b"\xff\xfe"])
async def test_an_identity_that_is_not_ours_is_refused(
    open_store: OpenStore, small: NvmeConfig, content: bytes
) -> None:
    await (await open_store()).close()
    (small.path / "FOLDER").write_bytes(content)
    with pytest.raises(ForeignFolder):
        await SmallStore().open(small)


async def test_a_folder_in_use_names_the_process_that_uses_it(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    with pytest.raises(FolderInUse, match=f"process {os.getpid()}"):
        await SmallStore().open(small)
    await store.put(b"k", 100, seed=1)


async def test_the_lock_dies_with_its_process(small: NvmeConfig) -> None:
    code = (
        "import asyncio, os, sys; from pathlib import Path; from nvme_doubles import SmallStore, config\n"
        "async def main():\n"
        "    store = await SmallStore().open(config(Path(sys.argv[1]))); await store.put(b'k', 100, 1); os._exit(9)\n"
        "asyncio.run(main())"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "support")}
    command = [sys.executable, "-c", code, str(small.path)]
    child = await asyncio.to_thread(subprocess.run, command, env=environment, check=False)
    assert child.returncode == 9
    store = await SmallStore().open(small)
    assert len(store.blocks) == 1
    await store.close()


async def test_a_path_that_cannot_be_a_folder_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderNotWritable, match=r"nvme\.path"):
        await SmallStore().open(config(tmp_path / "file" / "data"))


async def test_a_file_system_without_o_direct_is_refused_by_name(small: NvmeConfig, faulty_files: FaultyFiles) -> None:
    def refuse(_path: Path, direct: bool) -> None:
        if direct:
            raise OSError(22, "Invalid argument")

    faulty_files.rules["open"] = refuse
    with pytest.raises(NoDirectIO, match=r"nvme\.direct = false"):
        await SmallStore().open(small, faulty_files)


async def test_buffered_io_serves_where_it_is_allowed(tmp_path: Path, faulty_files: FaultyFiles) -> None:
    def refuse(_path: Path, direct: bool) -> None:
        if direct:
            raise OSError(22, "Invalid argument")

    faulty_files.rules["open"] = refuse
    buffered = config(tmp_path / "nvme", direct=False)
    store = await SmallStore().open(buffered, faulty_files)
    await store.put(b"k", 5001, seed=1)
    assert len(await store.get(b"k")) == 5001
    await store.close()


async def test_a_first_start_that_was_cut_short_is_begun_again(small: NvmeConfig) -> None:
    small.path.mkdir()
    (small.path / "LOCK").write_text("17\n")
    (small.path / "FOLDER.tmp").write_text("{")
    store = await SmallStore().open(small)
    await store.put(b"k", 100, seed=1)
    await store.close()


async def test_a_folder_keeps_its_segment_size(open_store: OpenStore, small: NvmeConfig) -> None:
    store = await open_store()
    await store.put(b"k", 5000, seed=1)
    await store.close()
    store = await SmallStore().open(config(small.path, 256 * MIB, 16 * MIB))
    assert store.tier.block_bytes_max < 8 * MIB
    assert len(await store.get(b"k")) == 5000
    await store.close()


async def test_a_capacity_below_four_of_the_folders_segments_is_refused(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    await (await open_store()).close()
    with pytest.raises(ConfigError):
        await SmallStore().open(config(small.path, 20 * MIB, 4 * MIB))


async def test_a_smaller_capacity_gives_segments_back_as_they_become_free(
    open_store: OpenStore, small: NvmeConfig
) -> None:
    store = await open_store()
    for i in range(30):
        await store.put(b"k%d" % i, MIB, seed=i)
    await store.close()
    tight = config(small.path, 34 * MIB)
    store = await SmallStore().open(tight)
    for i in range(29):
        await store.delete(b"k%d" % i)
    for i in range(40):
        await store.put(b"n%d" % (i % 4), MIB, seed=i)
    await store.close()
    assert len(list((small.path / "segments").iterdir())) <= 4
    store = await SmallStore().open(tight)
    assert len(store.blocks) == 5
    await store.close()
