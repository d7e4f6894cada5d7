"""Segments by rank, lowest first, with those that were refused set aside in their order."""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from mooncask.tiers.policies.order import Order
from mooncask.tiers.policies.segments import Segment

MaySegmentLose = Callable[[Segment], bool]
"""Answers whether a segment's deepest block may leave."""

Entry = tuple[float, float, int, int, Segment]
"""Rank, time of the latest use (older first among equals), number (so that segments are never compared), version."""


class Ranking:
    """A heap whose entries are outdated by a higher version of their segment. O(log n) a call, amortised."""

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._set_aside = Order()
        self._set_aside_segments: dict[int, Segment] = {}

    def put(self, segment: Segment, rank: float) -> None:
        """Give a segment its rank, whether it had one or not."""
        self.drop(segment)
        heappush(self._heap, (rank, segment.seconds, segment.number, segment.version, segment))

    def drop(self, segment: Segment) -> None:
        """Take a segment out, if it is in."""
        segment.version += 1
        if self._set_aside_segments.pop(segment.number, None) is not None:
            self._set_aside.discard(segment.number)

    def first(self, may_lose: MaySegmentLose) -> Segment | None:
        """The lowest segment that may lose its deepest block, left where it is; None when there is none."""

        def may_leave(number: int) -> bool:
            return may_lose(self._set_aside_segments[number])

        number = self._set_aside.first(may_leave)
        if number is not None:
            return self._set_aside_segments[number]
        while self._heap:
            *_, version, segment = self._heap[0]
            if version == segment.version:
                if may_lose(segment):
                    return segment
                self._set_aside.append(segment.number, None)
                self._set_aside_segments[segment.number] = segment
            heappop(self._heap)
        number = self._set_aside.first(may_leave, ask_all=True)
        return None if number is None else self._set_aside_segments[number]

    def rerank(self, rank: Callable[[Segment], float]) -> int:
        """Rank all anew and forget outdated entries; how many there are."""
        segments = [segment for *_, version, segment in self._heap if version == segment.version]
        segments += self._set_aside_segments.values()
        self._set_aside, self._set_aside_segments = Order(), {}
        self._heap = [(rank(each), each.seconds, each.number, each.version, each) for each in segments]
        heapify(self._heap)
        return len(segments)
