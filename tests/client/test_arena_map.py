"""Mapping a daemon's memory: no descriptor is kept, no child inherits it, the last view ends it."""

import faulthandler
import gc
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mooncask.client.arena_map import ArenaMap, Populator
from mooncask.errors import DaemonUnavailable

SIZE = 1 << 20


def memory(fill: bytes = b"") -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, SIZE)
    os.pwrite(descriptor, fill, 0)
    return descriptor


def mapped(address: int) -> bool:
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = (line.split()[0].split("-") for line in lines)
    return any(int(start, 16) <= address < int(stop, 16) for start, stop in ranges)


def exit_status_of_child(run: Callable[[], object]) -> int:
    """Forks; the child runs `run` and exits with 0."""
    pid = os.fork()
    if pid == 0:
        try:
            faulthandler.disable()  # a fault is what the child may be for
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            run()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1]


def test_the_descriptor_is_closed_and_the_bytes_are_there() -> None:
    descriptor = memory(b"hello")
    arena = ArenaMap(descriptor, SIZE, "test", writable=False)
    with pytest.raises(OSError):
        os.fstat(descriptor)
    assert arena.bytes[:5].tobytes() == b"hello"
    assert arena.bytes.nbytes == SIZE


def test_a_read_only_map_cannot_be_made_writable_from_python() -> None:
    arena = ArenaMap(memory(), SIZE, "test", writable=False)
    view = arena.bytes[10:20]
    with pytest.raises(ValueError):
        view[0] = 1
    with pytest.raises(ValueError):
        view.setflags(write=True)
    assert view.data.readonly


def test_a_writable_map_writes_into_the_shared_memory() -> None:
    descriptor = memory()
    other = os.dup(descriptor)
    ArenaMap(descriptor, SIZE, "test", writable=True).bytes[100:103] = np.frombuffer(b"abc", np.uint8)
    assert os.pread(other, 3, 100) == b"abc"
    os.close(other)


def test_the_mapping_lives_as_long_as_any_view_and_no_longer() -> None:
    arena = ArenaMap(memory(b"hello"), SIZE, "test", writable=False)
    address = arena.address
    view = np.frombuffer(arena.bytes[:8].data, np.uint32)[1:]
    del arena
    gc.collect()
    assert mapped(address)
    assert view.tobytes() == b"o\0\0\0"
    del view
    assert not mapped(address)


def test_a_forked_child_has_neither_the_memory_nor_its_descriptor() -> None:
    arena = ArenaMap(memory(b"hello"), SIZE, "test", writable=False)
    assert exit_status_of_child(lambda: arena.bytes[:5].tobytes()) == signal.SIGSEGV


def test_a_forked_child_that_drops_the_map_does_not_unmap_what_is_there_now() -> None:
    holder = [ArenaMap(memory(), SIZE, "test", writable=False)]
    address = holder[0].address

    def reuse_the_address_and_drop() -> None:
        # The kernel gives the freed addresses again, when it has no room above them.
        maps = [ArenaMap(memory(b"mine"), SIZE, "test", writable=False) for _ in range(64)]
        own = next(one for one in maps if one.address == address)
        holder.clear()
        gc.collect()
        assert own.bytes[:4].tobytes() == b"mine"

    assert exit_status_of_child(reuse_the_address_and_drop) == 0


def test_what_cannot_be_mapped_is_an_error_that_leaks_no_descriptor() -> None:
    descriptor = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
    with pytest.raises(DaemonUnavailable, match="cannot be mapped"):
        ArenaMap(descriptor, SIZE, "test", writable=False)
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.parametrize("writable", [False, True])
def test_populating_changes_nothing_and_stops_when_asked(writable: bool) -> None:
    arena = ArenaMap(memory(b"hello"), SIZE, "test", writable=writable)
    Populator(arena, SIZE * 10).stop()
    assert arena.bytes[:5].tobytes() == b"hello"
    assert not arena.bytes[5:].any()
