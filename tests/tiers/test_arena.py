"""Shared memory as the kernel sees it: modes, seals, descriptors, and pages faulted in by a thread."""

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mooncask.errors import AccessDenied, ConfigError
from mooncask.tiers.arena import POPULATE_STEP_BYTES, Arena, StagingArea, touch_pages

MIB = 1 << 20
F_GET_SEALS = 1034
SEAL, SHRINK, GROW, FUTURE_WRITE = 1, 2, 4, 16


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(MIB)
    yield arena
    arena.close()


@pytest.fixture
def sealed() -> Iterator[Arena]:
    arena = Arena(MIB, trusted_writers=False)
    yield arena
    arena.close()


def test_it_is_zeros_that_only_this_user_may_open_and_nobody_may_resize(arena: Arena) -> None:
    descriptor = arena.writable_descriptor()
    try:
        assert not arena.array.any()
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        assert fcntl.fcntl(descriptor, F_GET_SEALS) == SEAL | SHRINK | GROW
        for size in (0, 2 * MIB):
            with pytest.raises(PermissionError):
                os.ftruncate(descriptor, size)
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_a_reader_maps_it_for_reading_only(arena: Arena) -> None:
    descriptor = arena.read_only_descriptor()
    try:
        with pytest.raises(PermissionError):
            mmap.mmap(descriptor, MIB)
        with mmap.mmap(descriptor, MIB, prot=mmap.PROT_READ) as reader:
            arena.view(4096, 5)[:] = b"hello"
            assert reader[4096:4101] == b"hello"
        assert not os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)


def test_a_trusted_writer_maps_it_for_writing(arena: Arena) -> None:
    descriptor = arena.writable_descriptor()
    try:
        with mmap.mmap(descriptor, MIB) as writer:
            writer[0:5] = b"hello"
        assert bytes(arena.view(0, 5)) == b"hello"
    finally:
        os.close(descriptor)


def test_an_arena_for_untrusted_writers_gives_no_writable_mapping_even_through_proc(sealed: Arena) -> None:
    with pytest.raises(AccessDenied, match="staging"):
        sealed.writable_descriptor()
    reader = sealed.read_only_descriptor()
    reopened = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_CLOEXEC)
    try:
        assert fcntl.fcntl(reader, F_GET_SEALS) == SEAL | SHRINK | GROW | FUTURE_WRITE
        with pytest.raises(PermissionError):
            mmap.mmap(reopened, MIB)
        with pytest.raises(PermissionError):
            os.pwrite(reopened, b"evil", 0)
    finally:
        os.close(reopened)
        os.close(reader)


def test_the_daemons_own_mapping_outlives_the_seal(sealed: Arena) -> None:
    sealed.view(0, 4)[:] = b"good"
    reader = sealed.read_only_descriptor()
    try:
        assert os.pread(reader, 4, 0) == b"good"
    finally:
        os.close(reader)


def test_a_staging_area_is_written_by_its_writer_and_read_here() -> None:
    staging = StagingArea(MIB)
    descriptor = staging.writable_descriptor()
    try:
        with mmap.mmap(descriptor, MIB) as writer:
            writer[100:105] = b"block"
        assert bytes(staging.view(100, 5)) == b"block"
    finally:
        os.close(descriptor)
        staging.close()


@pytest.mark.parametrize(("offset", "length"), [(-1, 10), (0, MIB + 1), (MIB, 1), (10, -1)])
def test_a_view_outside_is_an_error_in_the_program(arena: Arena, offset: int, length: int) -> None:
    with pytest.raises(AssertionError):
        arena.view(offset, length)


def test_populating_goes_in_steps_to_the_end_and_the_pages_are_there() -> None:
    capacity = POPULATE_STEP_BYTES + 3 * 4096
    arena = Arena(capacity)
    steps: list[int] = []
    ended = threading.Event()

    def progress(populated_bytes: int) -> None:
        steps.append(populated_bytes)
        if populated_bytes == capacity:
            ended.set()

    arena.start_populating(progress)
    assert ended.wait(60)
    descriptor = arena.read_only_descriptor()
    try:
        assert steps == [POPULATE_STEP_BYTES, capacity]
        assert (arena.populated_bytes, arena.fault) == (capacity, None)
        assert os.fstat(descriptor).st_blocks * 512 >= capacity
    finally:
        os.close(descriptor)
        arena.close()


def test_touching_pages_does_the_same_where_the_kernel_can_not_populate(arena: Arena) -> None:
    descriptor = arena.read_only_descriptor()
    try:
        assert os.fstat(descriptor).st_blocks == 0
        touch_pages(arena, 0, MIB // 2)
        assert os.fstat(descriptor).st_blocks * 512 == MIB // 2
    finally:
        os.close(descriptor)


def test_closing_ends_the_thread_before_all_is_populated() -> None:
    arena = Arena(8 << 30)
    first_step = threading.Event()
    arena.start_populating(lambda _: first_step.set())
    assert first_step.wait(60)
    arena.close()
    assert arena.populated_bytes < 8 << 30
    assert "mooncask-populate" not in {thread.name for thread in threading.enumerate()}


def test_closing_leaves_no_descriptor_and_may_be_done_twice() -> None:
    before = open_descriptors()
    arena = Arena(MIB)
    arena.close()
    arena.close()
    assert open_descriptors() == before


def test_views_outlive_the_arena() -> None:
    arena = Arena(MIB)
    before = open_descriptors()
    view, part = arena.view(4096, 4), arena.array[:10]
    view[:] = b"kept"
    arena.close()
    assert bytes(view) == b"kept"
    assert part.sum() == 0
    del view, part
    assert open_descriptors() < before


@pytest.mark.parametrize("capacity", [0, -4096, 4097])
def test_a_capacity_that_is_not_whole_pages_is_refused_by_name(capacity: int) -> None:
    with pytest.raises(ConfigError, match=rf"dram\.capacity = {capacity}.*4096"):
        Arena(capacity)


@pytest.mark.skipif(
    Path("/proc/sys/vm/nr_hugepages").read_text().strip() != "0", reason="this machine has huge pages reserved"
)
def test_huge_pages_that_nobody_reserved_are_refused_with_the_remedy() -> None:
    before = open_descriptors()
    with pytest.raises(ConfigError, match=r"4 free huge pages.*vm\.nr_hugepages"):
        Arena(8 * MIB, huge_pages=True)
    assert open_descriptors() == before


def test_huge_pages_need_a_multiple_of_2_mib() -> None:
    with pytest.raises(ConfigError, match="2097152"):
        Arena(3 * MIB, huge_pages=True)
