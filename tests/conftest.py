"""What every test must leave behind: nothing. Threads, descriptors, child processes, mounts and /dev/shm are counted around each.

Mounts in the temporary folders of another run of the tests, which may go on beside this one, are not counted, nor what other
processes have in /dev/shm. Folders there are a bench's, which nobody maps: its own tests look after them.
"""

import gc
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
SETTLE_SECONDS = 5.0
"""How long a thread or a child that was told to end may take."""
COUNTED = ("/memfd:", "socket:", "/tmp/", "anon_inode:[pidfd]")
"""Descriptors that a fault would leak: arenas, connections, data files, watched processes."""


def pytest_configure() -> None:
    """A shell that runs the tests in the background has them ignore Ctrl-C, and what they start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process holds now."""

    threads: frozenset[threading.Thread]
    children: frozenset[int]
    descriptors: Counter[str]
    shared_memory: frozenset[str]
    mounts: Counter[str]

    @classmethod
    def now(cls, temporary: Path) -> "Resources":
        """`temporary`: where this run's temporary folders are, beside those of other runs."""
        return cls(
            threads=frozenset(threading.enumerate()),
            children=_children(),
            descriptors=_descriptors(),
            shared_memory=frozenset(path.name for path in Path("/dev/shm").iterdir() if not path.is_dir()),
            mounts=_mounts(temporary),
        )

    def without_those_of_others(self) -> "Resources":
        """What a living process that is not of this run has mapped from /dev/shm is not ours."""
        family = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
        others = {""} | {inode for pid in psutil.pids() if pid not in family for inode in _mapped_inodes(pid)}
        paths = (Path("/dev/shm") / name for name in self.shared_memory)
        ours = frozenset(path.name for path in paths if _inode(path) not in others)
        return replace(self, shared_memory=ours)


def _mapped_inodes(pid: int) -> set[str]:
    """Of files in /dev/shm. Not their names: a semaphore is mapped under a first one, which is removed."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()  # it has ended, or is another user's
    return {line.split()[4] for line in lines if " /dev/shm/" in line}


def _inode(path: Path) -> str:
    try:
        return str(path.stat().st_ino)
    except FileNotFoundError:
        return ""  # it has gone meanwhile


def _children() -> frozenset[int]:
    """Direct children of all threads: cheaper than a walk over all processes, and a grandchild has a parent that is found."""
    pids: set[int] = set()
    for path in Path("/proc/self/task").iterdir():
        try:
            pids.update(map(int, (path / "children").read_text().split()))
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that ended meanwhile
    return frozenset(pids)


def _descriptors() -> Counter[str]:
    kinds: Counter[str] = Counter()
    for path in Path("/proc/self/fd").iterdir():
        try:
            target = str(path.readlink())
        except FileNotFoundError:
            continue  # the listing's own
        if target.startswith((sys.prefix, str(ROOT))):
            continue  # what libraries keep open of themselves (matplotlib its fonts), wherever the checkout lies
        for kind in COUNTED:
            if target.startswith(kind):
                kinds[kind] += 1
    return kinds


def _mounts(temporary: Path) -> Counter[str]:
    """Mount points, one as often as something is mounted on it."""
    points = (line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines())
    others = f"{temporary.parent}/"
    return Counter(point for point in points if not point.startswith(others) or point.startswith(f"{temporary}/"))


@pytest.fixture(autouse=True)
def leaves_nothing_behind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    temporary = tmp_path_factory.getbasetemp()
    before = Resources.now(temporary)
    yield
    left = leaks(before, Resources.now(temporary))
    if left:  # seldom: collecting garbage after each of two thousand tests would take minutes
        settle(before)
        left = leaks(before, Resources.now(temporary).without_those_of_others())
    assert not left, f"{request.node.name} left behind: {left}"


def settle(before: Resources) -> None:
    """What was told to end has ended, and what only a cycle kept is gone."""
    gc.collect()
    for thread in set(threading.enumerate()) - before.threads:
        thread.join(SETTLE_SECONDS)
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in before.children]
    psutil.wait_procs(children, SETTLE_SECONDS)


def leaks(before: Resources, after: Resources) -> dict[str, object]:
    """What is there now and was not before."""
    found: dict[str, object] = {
        "threads": sorted(thread.name for thread in after.threads - before.threads),
        "child processes": sorted(after.children - before.children),
        "descriptors": dict(after.descriptors - before.descriptors),
        "/dev/shm": sorted(after.shared_memory - before.shared_memory),
        "mounts": sorted(after.mounts - before.mounts),
    }
    return {what: left for what, left in found.items() if left}
