"""The data folder: does its file system take O_DIRECT, how much room is there, how fast is it for a moment.

The measurement is short and bounded in bytes and seconds; `mooncask bench store` measures properly. Nothing stays behind.
"""

import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mooncask.tools.doctor.finding import Finding, note, ok, wrong
from mooncask.tools.keys import format_size

CHUNK_BYTES = 4 << 20
BYTES_MAX = 128 << 20
SECONDS_MAX = 2.0
"""Each for writing and for reading."""
FREE_SHARE_MAX = 0.05
SLOW_BYTES = 200e6
"""Bytes a second below which loading is often slower than computing again: 1 MiB of KV in 5 ms."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Bytes a second of one thread with 4 MiB chunks; 0 = there was no room to measure in."""

    direct: bool
    free_bytes: int
    write_bytes: float
    read_bytes: float


def check_disk(folder: Path | None) -> list[Finding]:
    """The folder's findings. None: nobody said where the data are to be."""
    if folder is None:
        return [note("data folder", "not measured: no NVMe tier is known", "name one: mooncask doctor --data FOLDER")]
    if not folder.is_dir():
        return [wrong("data folder", f"{folder} is no folder", f"mkdir -p {folder}")]
    if not os.access(folder, os.W_OK):
        return [wrong("data folder", f"{folder} cannot be written", "give it to the daemon's user with chown")]
    return judge_disk(folder, measure(folder))


def judge_disk(folder: Path, measured: Measured) -> list[Finding]:
    what, free = f"disk of {folder}", f"{format_size(measured.free_bytes)} free"
    if not measured.direct:
        direct = wrong(
            f"O_DIRECT on {folder}",
            "refused by the file system",
            "put nvme.path on ext4 or xfs, or set nvme.direct = false",
        )
    else:
        direct = ok(f"O_DIRECT on {folder}", "taken")
    if not measured.write_bytes:
        return [direct, note(what, f"{free}, too little to measure in", "free some, or choose another nvme.path")]
    speed = f"writes {measured.write_bytes / 1e9:.2f} GB/s, reads {measured.read_bytes / 1e9:.2f} GB/s, {free}"
    if min(measured.write_bytes, measured.read_bytes) < SLOW_BYTES:
        return [
            direct,
            note(what, speed, "loading from it may take longer than computing again: use a local NVMe disk"),
        ]
    return [direct, ok(what, speed)]


def measure(folder: Path) -> Measured:
    """Writes and reads a temporary file without a name, and past the page cache where the file system lets it."""
    found = os.statvfs(folder)
    free_bytes = found.f_bavail * found.f_frsize
    chunks = int(min(BYTES_MAX, free_bytes * FREE_SHARE_MAX) // CHUNK_BYTES)
    with tempfile.TemporaryDirectory(prefix=".mooncask-doctor-", dir=folder) as name:
        file, direct = _open(Path(name) / "speed")
        try:
            if not chunks:
                return Measured(direct, free_bytes, 0.0, 0.0)
            with mmap.mmap(-1, CHUNK_BYTES) as buffer:  # page-aligned, as O_DIRECT wants it
                buffer.write(os.urandom(CHUNK_BYTES))
                written, write_seconds = _write(file, buffer, chunks)
                if not direct:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                read_seconds = _read(file, buffer, written)
        finally:
            os.close(file)
    size = written * CHUNK_BYTES
    return Measured(direct, free_bytes, size / write_seconds, size / read_seconds)


def _open(path: Path) -> tuple[int, bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_DIRECT, 0o600), True
    except OSError:
        return os.open(path, flags, 0o600), False


def _write(file: int, buffer: mmap.mmap, chunks: int) -> tuple[int, float]:
    """(chunks written, seconds with the fdatasync)."""
    begin, done = time.perf_counter(), 0
    while done < chunks and (not done or time.perf_counter() - begin < SECONDS_MAX):
        os.pwritev(file, [buffer], done * CHUNK_BYTES)
        done += 1
    os.fdatasync(file)
    return done, time.perf_counter() - begin


def _read(file: int, buffer: mmap.mmap, chunks: int) -> float:
    begin = time.perf_counter()
    for i in range(chunks):
        os.preadv(file, [buffer], i * CHUNK_BYTES)
    return time.perf_counter() - begin
