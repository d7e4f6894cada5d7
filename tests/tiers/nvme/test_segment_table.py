"""Placing and choosing, without a disk."""

from hypothesis import given
from hypothesis import strategies as st

from mooncask.tiers.nvme.config import SEGMENTS_RESERVED, Layout
from mooncask.tiers.nvme.record import SEGMENT_DATA_START
from mooncask.tiers.nvme.segment import Head, Segment, SegmentTable, State

PAGE = 4096
LAYOUT = Layout(segment_bytes=SEGMENT_DATA_START + 10 * PAGE, segments=6)


def fill(table: SegmentTable) -> list[tuple[Segment, int]]:
    """Pages reserved until there is no room."""
    taken = []
    while (place := table.reserve(PAGE)) is not None:
        segment = table.segments[place.segment]
        segment.reserved.discard(place.offset)
        taken.append((segment, place.offset))
    return taken


def test_writers_never_open_the_two_segments_that_the_reclaimer_needs() -> None:
    table = SegmentTable(LAYOUT)
    assert len(fill(table)) == (LAYOUT.segments - SEGMENTS_RESERVED) * 10
    assert table.available == SEGMENTS_RESERVED
    assert table.used_bytes == table.usable_bytes
    assert table.take(Head.RECLAIMER, PAGE) is not None
    assert table.reserve(PAGE) is None


@given(st.lists(st.integers(1, 10), max_size=60))
def test_places_never_overlap_and_lie_within_their_segment(pages: list[int]) -> None:
    table = SegmentTable(LAYOUT)
    ends: dict[int, int] = {}
    for count in pages:
        place = table.reserve(count * PAGE)
        if place is None:
            break
        assert place.offset >= ends.get(place.segment, SEGMENT_DATA_START)
        ends[place.segment] = place.offset + count * PAGE
        assert ends[place.segment] <= LAYOUT.segment_bytes


def test_generations_grow_over_all_segments_and_uses() -> None:
    table = SegmentTable(LAYOUT)
    seen = [segment.generation for segment, _ in fill(table)]
    first = table.segments[0]
    table.release(first, table.next_generation())
    assert table.segments[0].generation > max(seen)


def test_a_dead_segment_is_always_a_victim_a_full_one_never() -> None:
    table = SegmentTable(LAYOUT)
    taken = fill(table)
    assert table.victim(urgent=True, passed_over=set()) is None
    for segment, _ in taken[:10]:
        table.drop_live(segment, PAGE)
    assert table.victim(urgent=False, passed_over=set()) is table.segments[0]
    assert table.victim(urgent=False, passed_over={0}) is None


def test_the_least_live_segment_is_chosen_if_it_is_worth_its_copying() -> None:
    table = SegmentTable(LAYOUT)
    fill(table)
    table.drop_live(table.segments[1], PAGE)
    assert table.victim(urgent=False, passed_over=set()) is None
    assert table.victim(urgent=True, passed_over=set()) is table.segments[1]
    table.drop_live(table.segments[2], 4 * PAGE)
    assert table.victim(urgent=False, passed_over=set()) is table.segments[2]


def test_a_segment_with_a_reservation_or_a_write_under_way_is_no_victim() -> None:
    table = SegmentTable(LAYOUT)
    taken = fill(table)
    for segment, _ in taken[:10]:
        table.drop_live(segment, PAGE)
    table.segments[0].reserved.add(taken[0][1])
    assert table.victim(urgent=True, passed_over=set()) is None
    table.segments[0].reserved.clear()
    table.segments[0].writes = 1
    assert table.victim(urgent=True, passed_over=set()) is None


def test_a_fenced_segment_takes_no_more_and_is_no_victim() -> None:
    table = SegmentTable(LAYOUT)
    place = table.reserve(PAGE)
    assert place is not None
    segment = table.segments[place.segment]
    table.fence(segment)
    segment.reserved.clear()
    table.drop_live(segment, PAGE)
    after = table.reserve(PAGE)
    assert after is not None
    assert after.segment != place.segment
    assert table.victim(urgent=True, passed_over=set()) is None
    assert segment.holds_records


def test_the_reclaimer_keeps_two_segments_after_a_start_with_everything_full() -> None:
    table = SegmentTable(LAYOUT)
    for number in range(LAYOUT.segments):
        table.put(Segment(number, table.next_generation(), State.SEALED))
    table.keep_reclaimer_room()
    assert table.available == SEGMENTS_RESERVED
    assert table.reserve(PAGE) is None
    assert table.take(Head.RECLAIMER, PAGE) is not None
    assert table.too_many
