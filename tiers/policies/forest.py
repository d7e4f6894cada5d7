"""All segments as a forest: which one a block belongs to, where chains fork, which blocks are resident.

Not here: uses, ages and ranks (`foresight.py`).
"""

from collections import OrderedDict

from mooncask.tiers.block import NO_HINT, Access
from mooncask.tiers.policies.segments import Segment, Use

GHOST_BLOCKS_LEAST = 65_536
"""Even a small cache remembers so many blocks that left (about 3 MB): what is learned from lies mostly outside of it."""

GHOSTS_PER_RESIDENT = 2


class Forest:
    """Segments with resident blocks, and ghosts: the latest of those whose blocks have all left."""

    def __init__(self) -> None:
        self.resident: dict[int, Segment] = {}
        self._ghosts: OrderedDict[int, Segment] = OrderedDict()  # by first key, longest gone first
        self._ghost_blocks = 0
        self._segments_made = 0
        self.last_used: tuple[int, Segment] | None = None
        """The block that the latest access was to: the parent of the next one, even if it leaves before."""
        self.left_behind: Segment | None = None
        """The segment that the latest `place` split off, if it did."""
        self.ends_reached, self.ends_passed = 1.0, 1.0
        """How often a request went on from a chain's last block, and how often from the one before it."""

    def find(self, access: Access) -> Segment | None:
        """The segment that a block belongs to, if it is resident or a ghost."""
        segment = self.resident.get(access.key) or self._ghosts.get(access.key)
        if segment is None and (above := self._holder(access.parent)):
            after = self._after(above, access)
            if after < len(above.keys) and above.keys[after] == access.key:
                return above
        return segment

    def place(self, access: Access) -> Segment:
        """Put a block that is not known where its parent says: at the end of a segment that still grows, or in a new one."""
        self.left_behind = None
        above = self._holder(access.parent)
        if above is None:
            segment = self._new(None, access)
        else:
            after = self._after(above, access)
            grows = after == len(above.keys) and above.open_ended and not above.again
            segment = above if grows else self._branch(above, after, access)
        segment.keys.append(access.key)
        return segment

    def enter(self, segment: Segment, position: int) -> None:
        """A block of the segment becomes resident."""
        key = segment.keys[position]
        assert key is not None
        self.resident[key] = segment
        segment.resident += 1
        segment.end = max(segment.end, position + 1)
        if segment.resident == 1:
            self._unghost(segment)
            if segment.parent:
                segment.parent.children += 1

    def leave(self, segment: Segment, key: int) -> None:
        """A resident block leaves and becomes a ghost."""
        del self.resident[key]
        segment.resident -= 1
        self._cut_end(segment)
        if not segment.resident:
            if segment.parent:
                segment.parent.children -= 1
            self._make_ghost(segment)

    def remove(self, key: int) -> Segment | None:
        """Forget a block, resident or the first of a ghost; the segment that had it resident."""
        segment = self.resident.get(key)
        if segment is None:
            ghost = self._ghosts.get(key)
            if ghost:
                self._forget(ghost)
            return None
        position = segment.keys.index(key)
        segment.keys[position] = None
        self.leave(segment, key)
        while segment.keys and segment.keys[-1] is None:
            segment.keys.pop()
        return segment

    def _holder(self, parent: int | None) -> Segment | None:
        """The segment of a parent: resident, or just inserted and already gone."""
        if parent is None:
            return None
        segment = self.resident.get(parent)
        if segment is None and self.last_used and self.last_used[0] == parent:
            return self.last_used[1]
        return segment

    def _after(self, above: Segment, access: Access) -> int:
        """The position in the parent's segment that follows the parent."""
        assert access.parent is not None
        return above.position(access.parent, access.depth - 1) + 1

    def _new(self, parent: Segment | None, access: Access) -> Segment:
        self._segments_made += 1
        segment = Segment(self._segments_made, parent, access)
        if parent:
            parent.followers.add(segment)
            parent.latest = segment
        return segment

    def _branch(self, above: Segment, after: int, access: Access) -> Segment:
        """A new segment that continues the first `after` keys of `above`."""
        if above.open_ended:
            self.ends_reached += after == len(above.keys)
            self.ends_passed += after == len(above.keys) - 1
        if after < len(above.keys):
            self._split(above, after)
        above.open_ended = False
        above.continued += 1
        return self._new(above, access)

    def _split(self, segment: Segment, at: int) -> None:
        """Give the keys from `at` on, which the latest use left behind, a segment of their own."""
        rest_keys = segment.keys[at:]
        del segment.keys[at:]
        segment.high = min(segment.high, at - 1)
        rest_resident = [key for key in rest_keys if key is not None and self.resident.get(key) is segment]
        if not rest_resident and not segment.followers:
            self._cut_end(segment)
            return
        self._segments_made += 1
        rest = Segment(self._segments_made, segment, Access(0, depth=segment.depth + at, time_seconds=segment.seconds))
        rest.keys, rest.open_ended, rest.hub = rest_keys, segment.open_ended, segment.hub
        rest.latest, segment.latest, segment.hub = segment.latest, rest, False
        rest.continued, segment.continued = segment.continued, int(segment.continued > 0)
        rest.use = Use(rest, NO_HINT)
        rest.use.left_behind = True
        rest.high = len(rest_keys) - 1
        rest.end = max(0, segment.end - at)
        rest.resident = len(rest_resident)
        for key in rest_resident:
            self.resident[key] = rest
        for follower in segment.followers:
            follower.parent = rest
        rest.followers, segment.followers = segment.followers, {rest}
        rest.children, segment.children = segment.children, int(rest.resident > 0)
        segment.resident -= rest.resident
        self._cut_end(segment)
        if not segment.resident:  # those that are here were all behind the fork
            if segment.parent:
                segment.parent.children -= 1
            self._make_ghost(segment)
        if not rest.resident:
            self._make_ghost(rest)
        self.left_behind = rest

    def _make_ghost(self, segment: Segment) -> None:
        first = segment.keys[0] if segment.keys else None
        if first is None:
            self._forget(segment)
            return
        self._ghosts[first] = segment
        segment.ghost_blocks = len(segment.keys)
        self._ghost_blocks += segment.ghost_blocks
        most = max(GHOST_BLOCKS_LEAST, GHOSTS_PER_RESIDENT * len(self.resident))
        while self._ghost_blocks > most:
            self._forget(next(iter(self._ghosts.values())))

    def _unghost(self, segment: Segment) -> None:
        first = segment.keys[0]
        if first is not None and self._ghosts.get(first) is segment:
            del self._ghosts[first]
            self._ghost_blocks -= segment.ghost_blocks

    def _forget(self, segment: Segment) -> None:
        """Drop a segment without resident blocks for good."""
        self._unghost(segment)
        if segment.parent:
            segment.parent.followers.discard(segment)
            if segment.parent.latest is segment:
                segment.parent.latest = None
        for follower in segment.followers:
            follower.parent = None
        segment.forget()

    def _cut_end(self, segment: Segment) -> None:
        """Its end is behind its deepest resident block: what is behind that one may have left, or gone to another segment."""
        segment.end = min(segment.end, len(segment.keys))
        while segment.end and not self._has(segment, segment.keys[segment.end - 1]):
            segment.end -= 1

    def _has(self, segment: Segment, key: int | None) -> bool:
        return key is not None and self.resident.get(key) is segment
