"""The allocator against a naive oracle: a map of which 4 KiB pages are in use."""

import random
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mooncask.tiers.allocator import Allocator

PAGE = 4096
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def assert_holes_are_what_is_left(allocator: Allocator, live: dict[int, int]) -> None:
    """Extents and holes tile [0, limit) exactly, and no two holes touch."""
    holes = allocator.holes()
    spans = sorted([(offset, offset + length) for offset, length in [*holes, *live.items()]])
    assert all(stop == start for (_, stop), (start, _) in pairwise(spans))
    if spans:
        assert (spans[0][0], spans[-1][1]) == (0, allocator.limit)
    assert all(offset + length < following for (offset, length), (following, _) in pairwise(holes))


class AllocatorMachine(RuleBasedStateMachine):
    """Pages are 0 (free) or 1 (in use); a hole is a run of zeros."""

    extents = Bundle("extents")

    def __init__(self) -> None:
        super().__init__()
        self.pages = bytearray()
        self.allocator = Allocator()
        self.live: dict[int, int] = {}

    @rule(pages=st.integers(0, 40), rest=st.integers(0, PAGE - 1))
    def grow(self, pages: int, rest: int) -> None:
        self.pages.extend(bytes(pages))
        self.allocator.grow(len(self.pages) * PAGE + rest)

    @rule(target=extents, size=st.integers(1, 12 * PAGE))
    def allocate(self, size: int) -> tuple[int, int] | None:
        count = -(-size // PAGE)
        offset = self.allocator.allocate(size)
        if offset is None:
            assert bytes(count) not in self.pages
            return None
        first, remainder = divmod(offset, PAGE)
        assert remainder == 0
        assert self.pages[first : first + count] == bytes(count)
        self.pages[first : first + count] = b"\x01" * count
        self.live[offset] = count * PAGE
        return offset, size

    @rule(extent=consumes(extents))
    def free(self, extent: tuple[int, int] | None) -> None:
        if extent is None:
            return
        self.allocator.free(*extent)
        first, count = extent[0] // PAGE, -(-extent[1] // PAGE)
        self.pages[first : first + count] = bytes(count)
        del self.live[extent[0]]

    @invariant()
    def sizes_add_up(self) -> None:
        assert self.allocator.limit == len(self.pages) * PAGE
        assert self.allocator.used_bytes == sum(self.pages) * PAGE
        assert self.allocator.free_bytes == self.pages.count(0) * PAGE

    @invariant()
    def the_largest_hole_is_known(self) -> None:
        assert self.allocator.largest_free_bytes == max(map(len, self.pages.split(b"\x01"))) * PAGE

    @invariant()
    def holes_are_whole(self) -> None:
        assert_holes_are_what_is_left(self.allocator, self.live)

    def teardown(self) -> None:
        for offset, length in self.live.items():
            self.allocator.free(offset, length)
        assert self.allocator.holes() == ([(0, self.allocator.limit)] if self.pages else [])


TestAllocator = AllocatorMachine.TestCase
TestAllocator.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)


def test_the_smallest_hole_that_fits_is_used_and_among_equals_the_lowest() -> None:
    allocator = Allocator(10 * PAGE)
    offsets = [allocator.allocate(size * PAGE) for size in (3, 1, 2, 1, 2, 1)]
    assert offsets == [0, 3 * PAGE, 4 * PAGE, 6 * PAGE, 7 * PAGE, 9 * PAGE]
    for offset, size in ((0, 3), (7 * PAGE, 2), (4 * PAGE, 2)):
        allocator.free(offset, size * PAGE)
    assert allocator.allocate(2 * PAGE) == 4 * PAGE


def test_a_second_free_is_an_error_in_the_program() -> None:
    allocator = Allocator(PAGE)
    offset = allocator.allocate(1)
    assert offset is not None
    allocator.free(offset, 1)
    with pytest.raises(AssertionError, match="freed twice"):
        allocator.free(offset, 1)


def test_freeing_another_size_or_the_middle_of_an_extent_is_an_error_and_changes_nothing() -> None:
    allocator = Allocator(8 * PAGE)
    offset = allocator.allocate(4 * PAGE)
    assert offset is not None
    with pytest.raises(AssertionError):
        allocator.free(offset, 2 * PAGE)
    with pytest.raises(AssertionError):
        allocator.free(offset + PAGE, PAGE)
    assert allocator.used_bytes == 4 * PAGE
    allocator.free(offset, 4 * PAGE)


def test_growing_joins_a_hole_at_the_old_end() -> None:
    allocator = Allocator(2 * PAGE)
    allocator.grow(5 * PAGE)
    assert allocator.holes() == [(0, 5 * PAGE)]


def test_the_limit_does_not_shrink() -> None:
    with pytest.raises(AssertionError):
        allocator = Allocator(2 * PAGE)
        allocator.grow(PAGE)


def test_with_one_size_nothing_is_lost_between_extents() -> None:
    size = 1_370_000
    allocator, rng = Allocator(64 * MIB), random.Random(1)
    live = []
    while (offset := allocator.allocate(size)) is not None:
        live.append(offset)
    for _ in range(2000):
        allocator.free(live.pop(rng.randrange(len(live))), size)
        offset = allocator.allocate(size)
        assert offset is not None
        live.append(offset)


@pytest.mark.parametrize("weights", [(64, 8, 1), (8, 4, 1), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_mixed_sizes_replaced_at_random_at_90_percent_fill_lose_little_to_fragmentation(
    weights: tuple[int, int, int], seed: int
) -> None:
    """The bound that the module states: fewer than 1 request in 100 finds no hole, and none below 70 % fill."""
    limit, rng = 2 * GIB, random.Random(seed)
    allocator = Allocator(limit)
    live: list[tuple[int, int]] = []
    requests, failures, lowest_fill = 20_000, 0, 1.0
    for _ in range(requests):
        size = rng.choices((256 * KIB, 2 * MIB, 16 * MIB), weights)[0]
        while allocator.used_bytes + size > limit * 0.9:
            allocator.free(*live.pop(rng.randrange(len(live))))
        failed = False
        while (offset := allocator.allocate(size)) is None:
            failed = True
            lowest_fill = min(lowest_fill, (allocator.used_bytes + size) / limit)
            allocator.free(*live.pop(rng.randrange(len(live))))
        failures += failed
        live.append((offset, size))
    assert failures / requests < 0.01
    assert lowest_fill > 0.7
    assert_holes_are_what_is_left(allocator, {offset: size for offset, size in live})


def test_many_holes_stay_cheap_to_search() -> None:
    """100,000 holes of one page and as many extents: all bookkeeping stays exact when every other extent is freed."""
    count = 200_000
    allocator = Allocator(count * PAGE)
    offsets = [allocator.allocate(PAGE) for _ in range(count)]
    for offset in offsets[::2]:
        assert offset is not None
        allocator.free(offset, PAGE)
    assert allocator.largest_free_bytes == PAGE
    assert allocator.allocate(2 * PAGE) is None
    for offset in offsets[1::2]:
        assert offset is not None
        allocator.free(offset, PAGE)
    assert allocator.holes() == [(0, count * PAGE)]
