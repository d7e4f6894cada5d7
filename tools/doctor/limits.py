"""Limits of this process and of the kernel: open files, locked memory, huge pages, shared memory, process descriptors, clock.

Each check is a reader of the facts and a pure judge of them. They hold for the user and the unit that run the doctor: a
daemon under systemd has the limits of its unit.
"""

import ctypes
import mmap
import os
import resource
import socket
from collections.abc import Mapping
from pathlib import Path

from mooncask.tools.doctor.finding import Finding, note, ok, wrong
from mooncask.tools.keys import format_size

FILES_MIN = 1024
FILES_WANTED = 4096
"""256 connections with three descriptors each, 256 of HTTP, segment files and the index."""
SHARED_BYTES_WANTED = 1 << 30
SO_PEERPIDFD = 77
F_SEAL_FUTURE_WRITE = 0x10
STA_UNSYNC = 0x40
GOOD_CLOCKS = {"tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"}


def check_limits() -> list[Finding]:
    """All of this module."""
    return [
        judge_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        judge_memlock(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], Path("/sys/class/infiniband").is_dir()),
        judge_memory(read_meminfo(), read_memory_limit()),
        judge_huge_pages(read_meminfo()),
        judge_shared_memory(_free_shared_memory()),
        judge_memfd(has_sealed_memfd()),
        judge_pidfd(has_pidfd(), has_peer_pidfd()),
        judge_ptrace(_number_in(Path("/proc/sys/kernel/yama/ptrace_scope"))),
        judge_clock_source(_word_in(Path("/sys/devices/system/clocksource/clocksource0/current_clocksource"))),
        judge_clock_sync(clock_is_synchronised()),
    ]


# --- judges ----------------------------------------------------------------------------------------------------------


def judge_open_files(soft: int) -> Finding:
    what, found = "open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}"
    to_do = f"raise it: LimitNOFILE={FILES_WANTED} in the unit, or ulimit -n {FILES_WANTED}"
    if 0 <= soft < FILES_MIN:
        return wrong(what, found, to_do)
    return note(what, found, to_do) if 0 <= soft < FILES_WANTED else ok(what, found)


def judge_memlock(soft: int, has_rdma: bool) -> Finding:
    """Only RDMA locks memory: the arena is registered with the network card."""
    what = "locked memory"
    found = "no limit" if soft == resource.RLIM_INFINITY else f"at most {format_size(soft)}"
    if soft == resource.RLIM_INFINITY or not has_rdma:
        return ok(what, found if has_rdma else f"{found}; only RDMA needs more")
    return wrong(
        what, found, "RDMA registers the whole DRAM tier: LimitMEMLOCK=infinity in the unit, or ulimit -l unlimited"
    )


def judge_memory(meminfo: Mapping[str, int], limit_bytes: int | None) -> Finding:
    """`limit_bytes`: what the control group allows; None for no limit."""
    what, available = "memory", meminfo.get("MemAvailable", 0)
    found = f"{format_size(available)} available"
    if limit_bytes is not None:
        found += f", the control group allows {format_size(limit_bytes)}"
    room = available if limit_bytes is None else min(available, limit_bytes)
    if room < 2 << 30:
        return note(what, found, "the DRAM tier (1 GiB by default) counts as used memory: set dram.capacity to fit")
    return ok(what, found)


def judge_huge_pages(meminfo: Mapping[str, int]) -> Finding:
    what = "huge pages"
    total, free = meminfo.get("HugePages_Total", 0), meminfo.get("HugePages_Free", 0)
    size = meminfo.get("Hugepagesize", 2 << 20)
    if not total:
        return note(
            what,
            "none reserved",
            f"only dram.huge_pages = true needs them: sysctl vm.nr_hugepages=N with N = dram.capacity / {size >> 10} KiB",
        )
    return ok(what, f"{free:,} of {total:,} free, {format_size(size)} each ({format_size(free * size)})")


def judge_shared_memory(free_bytes: int | None) -> Finding:
    """The arena is a memfd and needs none of it; engines' worker processes do."""
    what = "/dev/shm"
    if free_bytes is None:
        return note(what, "not there", "mount a tmpfs there: engines' worker processes share tensors through it")
    if free_bytes < SHARED_BYTES_WANTED:
        return note(
            what,
            f"{format_size(free_bytes)} free",
            "the store does not need it, engines do: in a container use --shm-size=8g or --ipc=host",
        )
    return ok(what, f"{format_size(free_bytes)} free")


def judge_memfd(works: bool) -> Finding:
    what = "shared memory files"
    if works:
        return ok(what, "memfd with seals")
    return wrong(
        what, "memfd or its seals are refused", "Linux 5.1 or newer is needed, and memfd_create allowed by seccomp"
    )


def judge_pidfd(has_pidfd: bool, has_peer_pidfd: bool) -> Finding:
    what = "process descriptors"
    if not has_pidfd:
        return wrong(
            what, "pidfd_open is refused", "leases of dead processes end by it: Linux 5.3 or newer, allowed by seccomp"
        )
    if not has_peer_pidfd:
        return ok(what, "pidfd; SO_PEERPIDFD is not there (Linux 6.5), the peer's pid is used")
    return ok(what, "pidfd and SO_PEERPIDFD")


def judge_ptrace(scope: int | None) -> Finding:
    what = "ptrace"
    if scope:
        return ok(what, f"restricted (yama.ptrace_scope = {scope})")
    found = "not restricted" if scope == 0 else "not restricted (no yama)"
    return note(
        what,
        found,
        "any process of the daemon's user can read its memory: sysctl kernel.yama.ptrace_scope=1, or a user of its own",
    )


def judge_clock_source(name: str | None) -> Finding:
    what = "clock source"
    if name is None or name in GOOD_CLOCKS:
        return ok(what, name or "unknown")
    return note(what, name, "each reading of the clock is a system call: tsc or kvm-clock is faster by far")


def judge_clock_sync(synchronised: bool | None) -> Finding:
    what = "clock"
    if synchronised:
        return ok(what, "synchronised")
    found = "cannot be asked" if synchronised is None else "not synchronised"
    return note(
        what,
        found,
        "S3 signatures are refused beyond 15 minutes of difference, and times to live count wall time: run an NTP client",
    )


# --- readers ---------------------------------------------------------------------------------------------------------


def read_meminfo(path: Path = Path("/proc/meminfo")) -> dict[str, int]:
    """Its fields; those in kB as bytes."""
    fields = {}
    for line in path.read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words:
            fields[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return fields


def read_memory_limit(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    word = _word_in(path)
    return int(word) if word and word.isdigit() else None


def has_sealed_memfd() -> bool:
    """Whether a memfd can be made and sealed against later writers."""
    import fcntl

    try:
        found = os.memfd_create("mooncask-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        return False
    try:
        os.ftruncate(found, mmap.PAGESIZE)
        fcntl.fcntl(found, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SHRINK)
    except OSError:
        return False
    finally:
        os.close(found)
    return True


def has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def has_peer_pidfd() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            return False
    return True


def clock_is_synchronised() -> bool | None:
    """By adjtimex(2), which reading needs no right for; None where it fails."""
    buffer = ctypes.create_string_buffer(256)  # struct timex is 208 bytes on 64-bit; modes = 0 changes nothing
    if ctypes.CDLL(None, use_errno=True).adjtimex(buffer) < 0:
        return None
    # long-aligned: modes, offset, freq, maxerror, esterror, then the status word
    status = ctypes.c_int.from_buffer(buffer, 5 * ctypes.sizeof(ctypes.c_long)).value
    return not status & STA_UNSYNC


def _free_shared_memory() -> int | None:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _word_in(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _number_in(path: Path) -> int | None:
    word = _word_in(path)
    return int(word) if word and word.isdigit() else None
