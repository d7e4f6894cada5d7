"""The project's own policy: blocks leave in the order of their expected hits per second kept.

A KV store knows what a page cache does not: which block continues which. Requests are recognised from the parents of
the blocks they use, and so are conversations (chains that are used again and grow), their turns, the pauses between
them, and beginnings that many share. `ReuseModel` learns from all of them, resident or not, how likely and how soon
something of a kind is used again; nothing is assumed but that all scales of time are alike, so that an untrained policy
is lru. Blocks of one segment share one rank; the deepest leaves first, and a segment leaves after those that continue it.

Hints are not needed. Where they are given, `conversation` and `turn` tell the turn even of a chain whose beginning was
forgotten, and `priority` moves the rank (8 steps double it).

Memory: about 100 bytes a resident block, 40 a ghost and 800 a segment.
"""

from heapq import heappop, heappush
from itertools import pairwise

from mooncask.tiers.block import Access
from mooncask.tiers.policies.forest import Forest
from mooncask.tiers.policies.policy import MayLeave
from mooncask.tiers.policies.ranking import Ranking
from mooncask.tiers.policies.reuse_model import BINS, EDGES_SECONDS, ReuseModel
from mooncask.tiers.policies.segments import NO_ROW, Segment, Use

REFRESH_AFTER_USES = 32
"""Bringing the ranks up to date begins after so many uses and as many more as a quarter of the ranked segments, and
goes on bit by bit with each use, so that none of them takes long."""

ECHO_SECONDS = 0.001
"""Two requests do not use one chain within a millisecond."""

PRIORITY_NEUTRAL, PRIORITY_DOUBLES = 128, 8

_EDGES: list[float] = EDGES_SECONDS.tolist()
_WIDTHS: list[float] = [after - before for before, after in pairwise(_EDGES)]


class Foresight:
    """Evicts what is least likely to be used again for the time it takes room. O(log n) a call, amortised."""

    def __init__(self) -> None:
        self._model = ReuseModel()
        self._forest = Forest()
        self._ranking = Ranking()
        self._timers: list[tuple[float, int, int, Segment]] = []
        self._returns: list[tuple[float, int, int, float, float]] = []
        self._unranked: dict[Segment, None] = {}
        self._use: Use | None = None
        self._last_seconds = 0.0
        self._uses_until_refresh = REFRESH_AFTER_USES

    def insert(self, access: Access) -> None:
        if access.key in self._forest.resident:
            self.touch(access)
            return
        self._advance(access.time_seconds)
        segment = self._forest.find(access)
        new = segment is None
        if segment is None:
            segment = self._forest.place(access)
            self._watch(self._forest.left_behind)
        position = segment.position(access.key, access.depth)
        self._forest.enter(segment, position)
        self._used(segment, position, access)
        if new:
            self._count_fresh(segment)

    def touch(self, access: Access) -> None:
        segment = self._forest.resident.get(access.key)
        if segment is not None:
            self._advance(access.time_seconds)
            self._used(segment, segment.position(access.key, access.depth), access)

    def remove(self, key: int) -> None:
        segment = self._forest.remove(key)
        if segment is not None:
            self._after_leaving(segment)

    def admits(self, access: Access, may_leave: MayLeave) -> bool:
        """False when the request that brings the block ranks below what would leave for it.

        The caller keeps a request's own blocks from leaving while it is inserted, so `evict` can't cut it off.
        """
        self._rank_waiting()
        use = self._use
        if use is None or access.parent is None or self._forest.resident.get(access.parent) is not use.tip:
            return True  # a chain's first block: nothing is known of its request yet
        victim = self._ranking.first(lambda segment: may_leave(segment.last_key))
        return victim is None or self._rank_unfinished(use.tip, use) >= self._rank(victim)

    def left_out(self, access: Access) -> None:
        """It becomes a ghost: what was not kept is learned from as what was, and is known when it is asked for again."""
        if access.key in self._forest.resident:
            return
        self.insert(access)
        segment = self._forest.resident[access.key]
        segment.use.cut_off = True
        self._forest.leave(segment, access.key)
        self._after_leaving(segment)

    def evict(self, may_leave: MayLeave) -> int | None:
        self._rank_waiting()
        segment = self._ranking.first(lambda segment: may_leave(segment.last_key))
        if segment is not None:
            key = segment.last_key
        else:  # perhaps one in the middle of a chain
            found = next((key for key in self._forest.resident if may_leave(key)), None)
            if found is None:
                return None
            key, segment = found, self._forest.resident[found]
        rank_changes = self._ends_a_request(segment)
        if self._use is not None and self._use.tip is segment and not self._use.cut_off:
            self._use.cut_off = rank_changes = True
        self._forest.leave(segment, key)
        if rank_changes or not segment.resident:
            self._after_leaving(segment)
        return key

    def __len__(self) -> int:
        return len(self._forest.resident)

    def __contains__(self, key: int) -> bool:
        return key in self._forest.resident

    # --- uses --------------------------------------------------------------------------------------------------------

    def _used(self, segment: Segment, position: int, access: Access) -> None:
        """Count the access to the latest use of the segment, or begin another one."""
        if self._is_echo(segment, position, access):
            return
        self._forest.last_used = (access.key, segment)
        self._last_seconds = access.time_seconds
        if not segment.goes_on_at(position):
            self._learn_return(segment, access.time_seconds)
            segment.low = segment.high = position
            segment.use = self._join(segment, access)
        elif segment.use_number:
            if segment.resident == 1:
                self._unranked[segment] = None
            return
        else:
            segment.use = self._join(segment, access)
        segment.use_number += 1
        self._unranked[segment] = None
        self._set_timer(segment)
        self._go_on_with(segment.use)

    def _is_echo(self, segment: Segment, position: int, access: Access) -> bool:
        """Whether this is the parent of the block used just before: some callers touch it whenever its child enters."""
        last = self._forest.last_used
        return (
            last is not None
            and last[1] is segment
            and access.time_seconds - self._last_seconds <= ECHO_SECONDS
            and segment.low <= position < segment.high
            and segment.keys[position + 1 : position + 2] == [last[0]]
        )

    def _learn_return(self, segment: Segment, now: float) -> None:
        """Counted only when the age bin is over for all of its cohort: those that did not return are not known before."""
        age = max(0.0, now - segment.seconds)
        row = segment.row if segment.row != NO_ROW else self._model.row(segment.use_class())
        if segment.bin < BINS - 1:
            due = segment.seconds + _EDGES[segment.bin + 1]
            heappush(self._returns, (due, row, segment.bin, age - _EDGES[segment.bin], segment.weight))
        segment.gap_seconds, segment.seconds, segment.again, segment.bin = age, now, True, 0

    def _join(self, segment: Segment, access: Access) -> Use:
        """The use that this access belongs to: that of the segment above or below, if it has come just there."""
        above, current = segment.parent, self._use
        if above and segment.again and above.latest not in (None, segment):
            above.hub = True
        if above and above.use.tip is above and not above.use.left_behind:
            use = above.use
            use.tip = segment
            if segment.again:
                use.continues(segment)
        elif current and current.top.parent is segment:
            use = current
            use.top = segment
        else:
            use = Use(segment, access.hint)
            if segment.again:
                use.continues(segment)
            elif above:
                use.continues(above)
        return use

    def _count_fresh(self, segment: Segment) -> None:
        """A use brought one more new block; its class changes when that number doubles."""
        fresh = segment.use.fresh_blocks = segment.use.fresh_blocks + 1
        if fresh & (fresh - 1) == 0:
            self._unranked[segment] = None

    def _go_on_with(self, use: Use) -> None:
        """Another use than before: what the one before has touched can be judged now that it is complete."""
        before, self._use = self._use, use
        if before is None or before is use:
            return
        segment: Segment | None = before.tip
        while segment and segment.use is before:
            self._unranked[segment] = None
            segment = segment.parent
        self._uses_until_refresh -= 1
        if self._uses_until_refresh <= 0 and self._model.refresh_some():
            self._uses_until_refresh = REFRESH_AFTER_USES + self._ranking.rerank(self._rank) // 4

    def _watch(self, left_behind: Segment | None) -> None:
        if left_behind is not None:
            self._unranked[left_behind] = None
            if left_behind.parent is not None:  # what it was split from may have no resident block any more
                self._unranked[left_behind.parent] = None
            self._set_timer(left_behind)

    # --- ages and ranks ----------------------------------------------------------------------------------------------

    def _set_timer(self, segment: Segment) -> None:
        """Wake up when the segment reaches its next age bin."""
        if segment.bin < BINS - 1:
            due = segment.seconds + _EDGES[segment.bin + 1]
            heappush(self._timers, (due, segment.number, segment.use_number, segment))

    def _advance(self, now: float) -> None:
        """Count the time that segments survived unused, and rank them by their new age."""
        while self._returns and self._returns[0][0] <= now:
            _, row, bin_number, seconds, weight = heappop(self._returns)
            self._model.returned(row, bin_number, seconds, weight)
        timers = self._timers
        while timers and timers[0][0] <= now:
            _, _, use_number, segment = heappop(timers)
            if use_number == segment.use_number:
                if segment.row == NO_ROW or segment in self._unranked:
                    self._classify(segment)
                self._model.survived(segment.row, segment.bin, _WIDTHS[segment.bin], segment.weight)
                segment.bin += 1
                self._set_timer(segment)
                self._unranked[segment] = None

    def _rank_waiting(self) -> None:
        for segment in self._unranked:
            self._classify(segment)
            self._rank_if_last(segment)
        self._unranked.clear()

    def _classify(self, segment: Segment) -> None:
        segment.row = self._model.row(segment.use_class())

    def _rank_if_last(self, segment: Segment) -> None:
        """Only segments that no resident one continues can lose a block."""
        if segment.resident and not segment.children:
            self._ranking.put(segment, self._rank(segment))
        else:
            self._ranking.drop(segment)

    def _rank(self, segment: Segment) -> float:
        if self._use is not None and self._use.tip is segment:
            return self._rank_unfinished(segment, self._use)
        rank = self._model.rank(segment.row, segment.bin)
        if self._ends_a_request(segment):
            forest = self._forest
            rank *= forest.ends_reached / (forest.ends_reached + forest.ends_passed)
        priority = segment.use.hint.priority
        return (
            rank if priority == PRIORITY_NEUTRAL else rank * 2.0 ** ((priority - PRIORITY_NEUTRAL) / PRIORITY_DOUBLES)
        )

    def _rank_unfinished(self, segment: Segment, use: Use) -> float:
        """While a request brings blocks, their number is not yet known. Once one of them had to leave again, those that
        follow are of no use: they leave at once."""
        return 0.0 if use.cut_off else self._model.rank(self._model.row(segment.use_class().unfinished()), segment.bin)

    def _ends_a_request(self, segment: Segment) -> bool:
        """Whether its deepest resident block was a request's last: often only half full, and never used again then."""
        return segment.open_ended and segment.end == len(segment.keys)

    def _after_leaving(self, segment: Segment) -> None:
        above = segment.parent
        for each in (segment, above):
            if each is not None:
                if each.row == NO_ROW:
                    self._classify(each)
                self._rank_if_last(each)
