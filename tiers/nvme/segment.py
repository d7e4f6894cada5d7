"""Segments and their accounting: which are free, where the next record goes, which is worth reclaiming. Pure; no I/O.

    FREE --open--> OPEN --full--> SEALED --copied away--> DRAINING --no reader left--> FREE
                     |               |
                     +--- a failed fdatasync or write ---> FENCED: read, never written or reclaimed again until a restart

Two heads append: the writers' and the reclaimer's, so that what was copied once (and lives long) does not lie among
what is new.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from mooncask.tiers.block import Extent, TierName
from mooncask.tiers.nvme.config import SEGMENTS_RESERVED, Layout
from mooncask.tiers.nvme.record import HEADER_BYTES, SEGMENT_DATA_START, Place

WATERMARK_SEGMENTS = SEGMENTS_RESERVED + 2
"""Reclaiming begins when fewer segments than this are free."""
DEAD_SHARE_BACKGROUND = 0.25
"""In the background only segments with this much dead are copied: at most three bytes copied for one gained."""
DEAD_SHARE_URGENT = 0.05
"""When somebody waits for room, at most 19 bytes copied for one gained."""


class State(Enum):
    FREE = auto()
    OPEN = auto()
    SEALED = auto()
    DRAINING = auto()
    FENCED = auto()


class Head(Enum):
    """Who appends."""

    WRITERS = auto()
    RECLAIMER = auto()


@dataclass(slots=True, eq=False)
class Segment:
    """One segment file and what the tier knows of it."""

    number: int
    generation: int
    state: State = State.FREE
    tail: int = SEGMENT_DATA_START
    """Where the next record goes, while it is open."""
    live_bytes: int = 0
    """In extents that are reserved or committed and not freed."""
    tombstones: int = 0
    """Tombstone records in it."""
    header_copy: int = 0
    """Which of the two copies of its header is the valid one."""
    headed: bool = False
    """The file exists as a whole and its header carries this generation."""
    ready: bool = False
    """And the index knows that it may hold records: nothing may be written before."""
    preparing: "asyncio.Task[None] | None" = None
    """Makes it ready."""
    fault: str = ""
    """Why nothing that is not yet acknowledged in it can be: a failed fdatasync, a file that could not be made."""
    absent: bool = False
    """Its file could not be made: the segment vanishes when its extents are freed."""
    unsaved: bool = False
    """It was sealed and the index does not know yet."""
    reserved: set[int] = field(default_factory=set)
    """Offsets of extents that are reserved and not yet committed."""
    begun: set[int] = field(default_factory=set)
    """Offsets of those whose bytes may be on the disk already."""
    writes: int = 0
    """Records of the tier's own (tombstones, copies) on their way into it."""
    readers: int = 0
    hidden: set[int] = field(default_factory=set)
    """Offsets of copies that are gone, while the index may still have them."""
    moved: set[int] = field(default_factory=set)
    """Offsets of copies that the reclaimer has moved: nobody's any more, freeing them changes nothing."""
    deleted: set[int] = field(default_factory=set)
    """Offsets of copies that the index has lost, while their extents are not freed."""

    @property
    def holds_records(self) -> bool:
        """Whether records of its generation on disk may count in a rebuild."""
        return self.state in (State.OPEN, State.SEALED, State.FENCED)

    @property
    def busy(self) -> bool:
        return bool(self.reserved) or self.writes > 0

    @property
    def settled(self) -> bool:
        """It was sealed, and every write in it has ended: the index knows of all that counts."""
        return self.state is State.SEALED and not self.busy

    def place(self, offset: int) -> Place:
        return Place(self.number, offset, self.generation)


class SegmentTable:
    """All segments of a tier. For the event loop's thread only."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.segments: dict[int, Segment] = {}
        self.limit = layout.segments
        """How many segments there may be; lower than the layout's when the disk is full."""
        self.highest_generation = 0
        self.used_bytes = 0
        self._free: dict[int, Segment] = {}
        self._heads: dict[Head, Segment] = {}
        self.on_open: Callable[[], None] = lambda: None
        """Called when a segment came into use."""

    # --- looking ---

    @property
    def usable_bytes(self) -> int:
        return (min(self.limit, self.layout.segments) - SEGMENTS_RESERVED) * self.layout.data_bytes

    @property
    def available(self) -> int:
        """Segments that can still be opened, those whose file does not exist yet included."""
        return max(0, self.limit - len(self.segments) + len(self._free))

    def spare(self) -> Segment | None:
        """A segment to make ready before it is needed; None when one is ready or there is nothing to gain."""
        if any(segment.ready or segment.preparing for segment in self._free.values()) or not self.available:
            return None
        return min(self._free.values(), key=_readiness) if self._free else self.add()

    def of(self, extent: Extent) -> Segment | None:
        """The segment an extent lies in; None when that use of the segment is over."""
        segment = self.segments.get(extent.offset // self.layout.segment_bytes)
        return segment if segment is not None and segment.generation == extent.generation else None

    def at(self, place: Place) -> Segment | None:
        segment = self.segments.get(place.segment)
        return segment if segment is not None and segment.generation == place.generation else None

    def place_of(self, extent: Extent) -> Place:
        segment, offset = divmod(extent.offset, self.layout.segment_bytes)
        return Place(segment, offset, extent.generation)

    def extent_at(self, place: Place, length: int, size: int) -> Extent:
        offset = place.segment * self.layout.segment_bytes + place.offset
        return Extent(TierName.NVME, offset, length, place.generation, size)

    def oldest_generation(self, beside: Segment | None = None) -> int:
        """The lowest generation whose records count in a rebuild, `beside` left out; above all when there is none."""
        held = [s.generation for s in self.segments.values() if s.holds_records and s is not beside]
        return min(held, default=self.highest_generation + 1)

    # --- placing ---

    def next_generation(self) -> int:
        """Generations grow over all segments, so they also say in which order segments came into use."""
        self.highest_generation += 1
        return self.highest_generation

    def take(self, head: Head, length: int) -> Place | None:
        """The next `length` bytes under a head, opening a segment if need be; None when there is no room."""
        segment = self._heads.get(head)
        if segment is None or segment.state is not State.OPEN or segment.tail + length > self.layout.segment_bytes:
            opened = self._open(head)
            if opened is None:
                return None
            segment = opened
        place = segment.place(segment.tail)
        segment.tail += length
        return place

    def can_take(self, head: Head, length: int) -> bool:
        segment = self._heads.get(head)
        fits = segment is not None and segment.state is State.OPEN
        if fits and segment is not None and segment.tail + length <= self.layout.segment_bytes:
            return True
        return self._may_open(head) and length <= self.layout.data_bytes

    def reclaimer_room(self) -> int:
        """Bytes the reclaimer can copy to at once."""
        head = self._heads.get(Head.RECLAIMER)
        open_room = self.layout.segment_bytes - head.tail if head is not None and head.state is State.OPEN else 0
        return open_room + self.available * self.layout.data_bytes

    def _may_open(self, head: Head) -> bool:
        if head is Head.RECLAIMER:
            return self.available > 0
        held = self._heads.get(Head.RECLAIMER)
        kept_open = 1 if held is not None and held.state is State.OPEN else 0
        return self.available + kept_open > SEGMENTS_RESERVED

    def _open(self, head: Head) -> Segment | None:
        if not self._may_open(head):
            return None
        old = self._heads.pop(head, None)
        if old is not None:
            self._seal(old)
        segment = min(self._free.values(), key=_readiness) if self._free else self.add()
        del self._free[segment.number]
        segment.state = State.OPEN
        segment.tail = SEGMENT_DATA_START
        self._heads[head] = segment
        self.on_open()
        return segment

    def _seal(self, segment: Segment) -> None:
        if segment.state is State.OPEN:
            segment.state = State.SEALED
            segment.unsaved = True

    def seal_heads(self) -> None:
        """Nothing more will be written."""
        while self._heads:
            self._seal(self._heads.popitem()[1])

    def add(self) -> Segment:
        """A segment whose file does not exist yet."""
        number = next(number for number in range(len(self.segments) + 1) if number not in self.segments)
        segment = Segment(number, self.next_generation())
        self.put(segment)
        return segment

    def put(self, segment: Segment) -> None:
        """A segment joins (or takes the place of its former use)."""
        self.segments[segment.number] = segment
        if segment.state is State.FREE:
            self._free[segment.number] = segment

    def remove(self, segment: Segment) -> None:
        del self.segments[segment.number]
        self._free.pop(segment.number, None)

    # --- accounting ---

    def reserve(self, length: int) -> Place | None:
        place = self.take(Head.WRITERS, length)
        if place is not None:
            self.segments[place.segment].reserved.add(place.offset)
            self.add_live(place, length)
        return place

    def add_live(self, place: Place, length: int) -> None:
        self.segments[place.segment].live_bytes += length
        self.used_bytes += length

    def add_copy(self, place: Place, length: int) -> None:
        """A copy under way keeps its segment from being reclaimed; in `used_bytes` a block counts once."""
        self.segments[place.segment].live_bytes += length

    def drop_copy(self, place: Place, length: int) -> None:
        self.segments[place.segment].live_bytes -= length

    def drop_live(self, segment: Segment, length: int) -> None:
        segment.live_bytes -= length
        self.used_bytes -= length

    def release(self, segment: Segment, generation: int) -> None:
        """A drained segment is empty and carries its new generation on disk."""
        self.used_bytes -= segment.live_bytes
        self.put(Segment(segment.number, generation, header_copy=segment.header_copy, headed=True))

    def give_up(self, segment: Segment, absent: bool) -> None:
        """A segment that could not be made ready. `absent`: it has no file, so its number may be tried again."""
        self._free.pop(segment.number, None)
        segment.state = State.FENCED
        segment.absent = absent
        self.drop_absent(segment)

    def drop_absent(self, segment: Segment) -> None:
        """A segment that never had a file goes when nobody holds an extent in it."""
        if segment.absent and not segment.live_bytes and self.segments.get(segment.number) is segment:
            self.remove(segment)
            if self.limit < self.layout.segments:
                self.limit = min(self.limit, len(self.segments))

    def fence(self, segment: Segment) -> None:
        if segment.state in (State.OPEN, State.SEALED):
            segment.state = State.FENCED

    def keep_reclaimer_room(self) -> None:
        """After a start: what was open is full now, and the capacity may have become smaller.

        The reclaimer gets its two segments all the same; they are given back as soon as others are free.
        """
        in_use = len(self.segments) - len(self._free)
        self.limit = max(self.limit, in_use + SEGMENTS_RESERVED)

    @property
    def too_many(self) -> bool:
        return len(self.segments) > self.layout.segments

    def discard(self, segment: Segment) -> None:
        """A free segment more than the capacity allows goes."""
        self.remove(segment)
        self.limit = max(self.layout.segments, self.limit - 1)

    # --- choosing ---

    def dead_bytes(self, segment: Segment) -> int:
        """Bytes that were written and are of no use. The unused end of a full segment would be unused in its copy, too."""
        return segment.tail - SEGMENT_DATA_START - segment.live_bytes

    def worth_a_look(self, segment: Segment) -> bool:
        """Whether freeing bytes in this segment may have made it a victim. Cheap: asked at every `free`."""
        if segment.state is not State.SEALED:
            return False
        if not segment.live_bytes:
            return True
        short = self.available < WATERMARK_SEGMENTS
        return short and self.dead_bytes(segment) >= DEAD_SHARE_BACKGROUND * self.layout.data_bytes

    def victim(self, urgent: bool, passed_over: set[int]) -> Segment | None:
        """The sealed segment with the least live bytes, if reclaiming it is worth its copying.

        Empty ones always are. Others only when free segments are short, or when somebody waits (`urgent`).
        """
        candidates = [
            segment
            for segment in self.segments.values()
            if segment.state is State.SEALED and not segment.busy and segment.number not in passed_over
        ]
        if not candidates:
            return None
        best = min(candidates, key=lambda s: (s.live_bytes, s.tombstones))
        if best.live_bytes == 0:
            return best
        if not urgent and self.available >= WATERMARK_SEGMENTS:
            return None
        share = DEAD_SHARE_URGENT if urgent else DEAD_SHARE_BACKGROUND
        worth = self.dead_bytes(best) >= share * self.layout.data_bytes
        # A copy may leave an unused end in each segment it fills: without a whole free one it could get stuck half way.
        return best if worth and self.reclaimer_room() >= best.live_bytes + HEADER_BYTES else None

    def __iter__(self) -> Iterator[Segment]:
        return iter(self.segments.values())


def _readiness(segment: Segment) -> tuple[int, int]:
    """Ready ones first, then those being made ready, then those that have a file."""
    return (0 if segment.ready else 1 if segment.preparing else 2 if segment.headed else 3, segment.number)
