"""Chains of blocks as runs that were used together: the units that the foresight policy judges.

    request 1 uses  a b c d e            one segment  [a b c d e]
    request 2 uses  a b c d f g          splits it:   [a b c d] -> [e]
                                                             \\-> [f g]

A segment belongs to the last use (`Use`) that touched it, shared by all segments on that request's chain. Blocks may be
resident or ghosts; a segment remembers the keys of both. Not here: which segment leaves (`foresight.py`).
"""

from mooncask.tiers.block import Access, Hint
from mooncask.tiers.policies.reuse_model import Kind, UseClass


class Use:
    """One request's way down a chain. `tip` and `top` are the deepest and highest segments that it has touched so far."""

    __slots__ = ("_turn", "cut_off", "fresh_blocks", "gap_seconds", "hint", "left_behind", "tip", "top")

    def __init__(self, segment: "Segment", hint: Hint) -> None:
        self.tip = self.top = segment
        self.hint = hint
        self._turn = 1
        self.fresh_blocks = 0
        self.cut_off = False
        """Whether a block that it brought has left before the last one came."""
        self.left_behind = False
        """Whether it is no use at all: a request went another way at the beginning of this segment."""
        self.gap_seconds: float | None = None
        """Time since the use before of the deepest segment that was there already; None when all is new."""

    @property
    def turn(self) -> int:
        """The how-manieth use of its line this is, from 1, as the hint or the chain tells."""
        return self.hint.turn + 1 if self.hint.conversation else self._turn

    def continues(self, segment: "Segment") -> None:
        """Note the deepest segment that was there already, before this use becomes its latest one.

        The line that it belongs to begins below the deepest hub; how often its first segment was used is the turn.
        """
        self.gap_seconds = segment.gap_seconds
        start = segment
        while start.parent and not start.parent.hub:
            start = start.parent
        self._turn = 1 if segment.hub else start.use_number + (start.use is not self)


class Segment:
    """A run of blocks, each the parent of the next, with what is known of its latest use.

    `keys[end - 1]` is its deepest resident block; any other may be a ghost, or None where a block was removed.
    """

    __slots__ = (
        "again",
        "bin",
        "children",
        "continued",
        "depth",
        "end",
        "followers",
        "gap_seconds",
        "ghost_blocks",
        "high",
        "hub",
        "keys",
        "latest",
        "low",
        "number",
        "open_ended",
        "parent",
        "resident",
        "row",
        "seconds",
        "use",
        "use_number",
        "version",
    )

    def __init__(self, number: int, parent: "Segment | None", access: Access) -> None:
        self.number = number
        self.parent = parent
        self.keys: list[int | None] = []
        self.continued = 0
        """How many requests have gone on from its end with blocks of their own."""
        self.depth = access.depth
        """Depth of the first key in its chain."""
        self.end = self.resident = 0
        self.children = 0
        """How many segments that continue this one have resident blocks."""
        self.followers: set[Segment] = set()
        """All segments that continue this one."""
        self.latest: Segment | None = None
        """The segment that came last to continue this one."""
        self.hub = False
        """Whether several lines that go on from here live at the same time."""
        self.use = Use(self, access.hint)
        self.use_number = 0
        self.seconds = access.time_seconds
        self.again = False
        """Whether it has been used since it came into being."""
        self.gap_seconds = 0.0
        self.ghost_blocks = 0
        """How many blocks it had when the last of them left."""
        self.open_ended = True
        """Whether its last key is the end of a request that nothing has continued yet."""
        self.low = 0
        self.high = -1
        """The positions that the latest use has touched."""
        self.bin = 0
        """The age bin that the latest use is in."""
        self.row = NO_ROW
        self.version = 0
        """Grows with each change of rank, so that outdated heap entries are known."""

    def position(self, key: int, depth: int) -> int:
        """Where a key is that belongs to the segment; `depth` makes finding it quick."""
        guess = depth - self.depth
        if 0 <= guess < len(self.keys) and self.keys[guess] == key:
            return guess
        return self.keys.index(key)

    def goes_on_at(self, position: int) -> bool:
        """Whether touching `position` goes on with the latest use, which then covers it. Else it is another use."""
        if position == self.high + 1:
            self.high = position
        elif position == self.low - 1:
            self.low = position
        else:
            return False
        return True

    @property
    def last_key(self) -> int:
        """Its deepest resident block, which leaves first."""
        key = self.keys[self.end - 1]
        assert key is not None
        return key

    def forget(self) -> None:
        """Nothing refers to it any more but outdated entries of heaps."""
        self.use_number += 1
        self.version += 1

    def use_class(self) -> UseClass:
        """The class of the latest use, as far as this segment is concerned."""
        use = self.use
        if use.left_behind:
            return UseClass(Kind.LEFT_BEHIND)
        gap = self.gap_seconds if self.again else use.gap_seconds
        gap_bucket = 0 if gap is None else 1 + int(gap).bit_length()
        if self.hub:
            return UseClass(Kind.HUB, gap=gap_bucket)
        turn = min(use.turn, EXACT_TURNS + use.turn.bit_length(), TURN_BUCKET_MAX)
        if self.continued > 1:
            return UseClass(Kind.SHARED, turn, gap=gap_bucket)
        if self.open_ended and len(self.keys) == 1 and not self.again:
            return UseClass(Kind.TAIL, turn)
        return UseClass(Kind.LINE, turn, use.fresh_blocks.bit_length(), int(self.again), gap_bucket)

    @property
    def weight(self) -> float:
        """How much its next return counts: all uses of one segment together weigh about as much as a few first ones."""
        return 1.0 / max(1, self.use_number)


NO_ROW = -1
EXACT_TURNS = 8
TURN_BUCKET_MAX = 15
"""Turns up to about 8 are told apart one by one, later ones by their logarithm, and all from 64 on are alike."""
