"""How an arena is registered and reads are cut: every byte once, nothing across a border."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.transport.rdma.regions import REGION_BYTES_MAX, Region, Regions, Span, cut_arena, cut_reads

THEIRS, OURS = 1 << 40, 1 << 44
"""Where the arenas lie in their processes."""


def regions_of(size: int, step: int, base: int) -> Regions:
    return Regions([Region(at, min(step, size - at), base + at, at // step + 1) for at in range(0, size, step)])


def test_an_arena_is_cut_into_regions_of_at_most_1_gib() -> None:
    assert cut_arena(5 << 20) == [(0, 5 << 20)]
    assert cut_arena(2 * REGION_BYTES_MAX + 4096) == [
        (0, REGION_BYTES_MAX),
        (REGION_BYTES_MAX, REGION_BYTES_MAX),
        (2 * REGION_BYTES_MAX, 4096),
    ]


spans = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 1000)), min_size=1, max_size=6)


@given(spans, st.integers(1, 700), st.integers(100, 5000), st.integers(100, 5000))
def test_every_byte_is_in_one_request_with_the_keys_of_its_regions(
    cut: list[tuple[int, int, int]], bytes_max: int, their_step: int, our_step: int
) -> None:
    theirs, ours = regions_of(4000, their_step, THEIRS), regions_of(4000, our_step, OURS)
    moved = []
    for request in cut_reads([Span(*one) for one in cut], theirs, ours, bytes_max):
        assert 0 < request.length <= bytes_max
        at, to = request.remote_address - THEIRS, request.local_address - OURS
        assert at // their_step == (at + request.length - 1) // their_step == request.remote_key - 1
        assert to // our_step == (to + request.length - 1) // our_step == request.local_key - 1
        moved += [(at + i, to + i) for i in range(request.length)]
    assert moved == [(at + i, to + i) for at, to, length in cut for i in range(length)]


@pytest.mark.parametrize("span", [Span(3001, 0, 1000), Span(0, 3001, 1000), Span(-1, 0, 10), Span(0, -1, 10)])
def test_a_span_beyond_either_arena_is_refused(span: Span) -> None:
    with pytest.raises(ValueError, match="bytes from"):
        cut_reads([span], regions_of(4000, 1000, THEIRS), regions_of(4000, 4000, OURS), 100)


@pytest.mark.parametrize(
    "wrong",
    [
        [Region(4096, 4096, 1, 1)],
        [Region(0, 4096, 1, 1), Region(8192, 4096, 1, 1)],
        [Region(0, 4096, 1, 1), Region(4096, 8192, 1, 1)],
        [Region(0, 4096, 1, 1), Region(4096, 2048, 1, 1), Region(6144, 4096, 1, 1)],
        [Region(0, 0, 1, 1)],
    ],
)
def test_regions_with_gaps_and_of_uneven_lengths_are_no_arena(wrong: list[Region]) -> None:
    with pytest.raises(ValueError, match="region"):
        Regions(wrong)
