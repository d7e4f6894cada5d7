"""Objects that are replaced all the time, and readers that tell whether what they read was one whole version.

Each version is filled with records that say which one it is, how long, and where in it they are: bytes of two versions, of
another object or from a wrong place can't look right.

    python version_stress.py FOLDER NAME...    maps the files, privately, until its input ends; says what was odd
"""

import errno
import mmap
import os
import random
import select
import signal
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from mooncask.errors import MooncaskError

GONE = 2
"""A mapper's exit code where the version that it opened is there no more."""
RECORD = struct.Struct("<IIII")
"""Object, version, length, place."""


@lru_cache(64)
def payload(number: int, version: int, length: int) -> bytes:
    """All bytes of one version of one object."""
    records = np.empty((-(-length // RECORD.size), 4), "<u4")
    records[:] = (number, version, length, 0)
    records[:, 3] = np.arange(len(records))
    return records.tobytes()[:length]


def is_first(data: bytes) -> bool:
    """Of the version that the mount knew as the only one: its readers may meet the end of the next one (docs/MOUNT.md)."""
    return len(data) >= RECORD.size and RECORD.unpack_from(data)[1] == 1


def oddity(number: int, data: bytes, start: int = 0, *, whole: bool = True) -> str:
    """What is wrong with bytes read from `start` (a multiple of a record) on; empty when they are those of one version."""
    if len(data) < RECORD.size:
        return f"only {len(data)} bytes at {start}"
    _, version, length, _ = RECORD.unpack_from(data)
    right = payload(number, version, min(length, 1 << 24))[start:]
    if whole and len(data) != len(right):
        return f"version {version} has {len(right)} bytes from {start} on, {len(data)} came"
    if data == right[: len(data)]:
        return ""
    wrong = next(at for at in range(len(data)) if data[at : at + 1] != right[at : at + 1])
    found = RECORD.unpack_from(data, min(wrong // 16 * 16, len(data) - 16))
    return (
        f"begins as version {version} of {length} bytes at {start}, and has {found} at {start + wrong} of {len(data)}"
    )


@dataclass
class Stress:
    """Threads that run until `seconds` are over. `odd` is what must stay empty; `done` counts what each of them did."""

    numbers: range
    lengths: tuple[int, ...]
    seconds: float
    odd: list[str] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _versions: Counter[int] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def next_version(self, number: int) -> bytes:
        with self._lock:
            self._versions[number] += 1
            version = self._versions[number]
        return payload(number, version, random.choice(self.lengths))

    def note(self, door: str, number: int, data: bytes, start: int = 0, *, whole: bool = True) -> None:
        self.done[door] += 1
        wrong = oddity(number, data, start, whole=whole)
        if wrong:
            self.odd.append(f"{door}: {wrong}")

    def run(self, *steps: Callable[[int], None]) -> None:
        """Each step is a thread of its own, and is called with one object after another."""
        stop = time.monotonic() + self.seconds

        def loop(step: Callable[[int], None]) -> None:
            try:
                while time.monotonic() < stop:
                    step(random.choice(self.numbers))
            except (OSError, AssertionError, MooncaskError) as error:
                self.odd.append(f"{getattr(step, '__name__', step)}: {error!r}")

        threads = [threading.Thread(target=loop, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class FileReaders:
    """The ways to read a file of the mount. ESTALE is what a reader of a replaced version may get instead of bytes."""

    def __init__(self, stress: Stress, folder: Path) -> None:
        self._stress, self._folder = stress, folder
        self._kept: dict[int, tuple[int, int]] = {}

    def whole(self, number: int) -> None:
        with self._stale("whole"), (self._folder / str(number)).open("rb", buffering=0) as file:
            data = file.readall()
            self._stress.note("whole", number, data, whole=not is_first(data))

    def pieces(self, number: int) -> None:
        with self._stale("pieces"), (self._folder / str(number)).open("rb", buffering=0) as file:
            data = b""
            while piece := file.read(random.choice((16, 4096, 100_000))):
                data += piece
            self._stress.note("pieces", number, data, whole=not is_first(data))

    def kept_open(self, number: int) -> None:
        """Somewhere in a file that was opened a while ago: the version that its first read had."""
        fd, version = self._kept.pop(number, (-1, 0))
        if fd >= 0 and random.random() < 0.2:
            os.close(fd)
            fd = -1
        if fd < 0:
            fd, version = os.open(self._folder / str(number), os.O_RDONLY), 0
        with self._stale("kept"):
            start = random.randrange(0, max(self._stress.lengths), 16) if version else 0
            data = os.pread(fd, 32_768, start)
            if len(data) >= RECORD.size:
                self._stress.note("kept", number, data, start, whole=False)
                found = RECORD.unpack_from(data)[1]
                if version and version != found:
                    self._stress.odd.append(f"kept: version {version} was opened, {found} came")
                version = found
        self._kept[number] = (fd, version)

    def close(self) -> None:
        for fd, _ in self._kept.values():
            os.close(fd)
        self._kept.clear()

    @contextmanager
    def _stale(self, door: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            self._stress.done[f"{door} stale"] += 1


def _map_for_ever(folder: Path, numbers: list[int]) -> None:
    """One map at a time, each in a process of its own: a map whose version is gone is answered with SIGBUS."""
    done: Counter[str] = Counter()
    while not select.select([sys.stdin], [], [], 0 if numbers else None)[0]:
        number = random.choice(numbers)
        if (child := os.fork()) == 0:
            os._exit(_map_once(folder / str(number), number))
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        done["gone" if code in (GONE, -signal.SIGBUS) else "right" if code == 0 else f"code {code}"] += 1
    print(*(f"{count} {name}" for name, count in done.items()), sep=", ", file=sys.stderr)


def _map_once(path: Path, number: int) -> int:
    """As long as the kernel says that the file is, which may be another version's length: what counts is what its own has."""
    try:
        with path.open("rb", buffering=0) as file:
            mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
            data = mapped[: RECORD.unpack_from(mapped)[2]]
    except OSError:
        return GONE
    wrong = oddity(number, data, whole=False)
    if wrong:
        print(f"mapped: {wrong}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    _map_for_ever(Path(sys.argv[1]), [int(name) for name in sys.argv[2:]])
