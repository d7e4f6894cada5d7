"""A process is killed at every named point; what it acknowledged is there afterwards, from the index and from a rebuild."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nvme_crash_child
import pytest
from nvme_crash_child import Promises, crash_config, verdict
from nvme_doubles import SmallStore

ROOT = Path(__file__).parents[3]
POINTS = [
    "nvme.segment.allocated:3",
    "nvme.segment.headed:3",
    "nvme.commit.written",
    "nvme.commit.written:23",
    "nvme.commit.synced:9",
    "nvme.commit.indexed:9",
    "nvme.delete.written:3",
    "nvme.delete.synced:3",
    "nvme.delete.indexed:3",
    "nvme.reclaim.copied:2",
    "nvme.reclaim.synced:3",
    "nvme.reclaim.indexed:3",
    "nvme.reclaim.moved:4",
    "nvme.reclaim.retired:5",
]


def run_child(folder: Path, seed: int, crash_at: str, operations: int = 60) -> "subprocess.CompletedProcess[str]":
    support = str(Path(nvme_crash_child.__file__).parent)
    environment = os.environ | {"PYTHONPATH": support, "MOONCASK_CRASH_AT": crash_at}
    command = [sys.executable, nvme_crash_child.__file__, str(folder), str(seed), str(operations)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


async def check_both_ways(folder: Path, promises: Promises) -> None:
    """Once with the index as the crash left it, once with an index rebuilt from a copy of the segments."""
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    shutil.rmtree(copy / "index")
    rebuilt = await SmallStore().open(crash_config(copy))
    await verdict(rebuilt, promises)
    await rebuilt.close()
    shutil.rmtree(copy)
    store = await SmallStore().open(crash_config(folder))
    for number, state in store.tier._group.index.segments().items():
        header = store.tier._files.read_header(number)
        assert header is not None
        assert header[0].generation == state.generation, "a rebuild would count what does not count"
    promises.settle(await verdict(store, promises))
    await store.close()


@pytest.mark.parametrize("point", POINTS)
async def test_what_was_acknowledged_survives_a_kill_at(tmp_path: Path, point: str) -> None:
    folder, promises = tmp_path / "nvme", Promises()
    for seed in range(2):  # the second run starts on what the first kill left
        child = run_child(folder, seed, point)
        assert child.returncode == -signal.SIGKILL, child.stderr
        promises.read(child.stdout.splitlines())
        await check_both_ways(folder, promises)


async def test_a_rebuild_that_was_killed_is_done_again(tmp_path: Path) -> None:
    folder, promises = tmp_path / "nvme", Promises()
    child = run_child(folder, 1, "")
    assert child.returncode == 0, child.stderr
    promises.read(child.stdout.splitlines())
    shutil.rmtree(folder / "index")
    assert run_child(folder, 1, "nvme.rebuild.filled").returncode == -signal.SIGKILL
    await check_both_ways(folder, promises)


async def test_a_namespace_that_was_being_dropped_at_a_kill_is_gone(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys; from pathlib import Path; from nvme_doubles import SmallStore\n"
        "from nvme_crash_child import crash_config\n"
        "async def main():\n"
        "    store = await SmallStore().open(crash_config(Path(sys.argv[1])))\n"
        "    await store.tier.save_namespace(7, b'seven'); await store.put(b'k', 100, 1)\n"
        "    await store.tier.drop_namespace(7)\n"
        "asyncio.run(main())"
    )
    support = str(Path(nvme_crash_child.__file__).parent)
    environment = os.environ | {"PYTHONPATH": support, "MOONCASK_CRASH_AT": "nvme.namespace.dropped"}
    folder = tmp_path / "nvme"
    command = [sys.executable, "-c", code, str(folder)]
    child = await asyncio.to_thread(subprocess.run, command, env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    for _ in range(2):
        store = await SmallStore().open(crash_config(folder))
        assert store.tier.saved_namespaces() == {}
        assert store.blocks == {}
        await store.close()
        shutil.rmtree(folder / "index")


def test_every_crash_point_is_listed_in_the_format_page() -> None:
    named = set()
    for source in [*(ROOT / "tiers" / "nvme").glob("*.py")]:
        named |= set(re.findall(r'crash_point\("([^"]+)"\)', source.read_text()))
    named |= {f"nvme.{kind}.{step}" for kind in ("commit", "delete", "reclaim") for step in ("synced", "indexed")}
    listed = set(re.findall(r"`(nvme\.[a-z]+\.[a-z]+)`", (ROOT / "docs" / "FORMAT.md").read_text()))
    assert named <= listed
    assert {point.partition(":")[0] for point in POINTS} <= named
