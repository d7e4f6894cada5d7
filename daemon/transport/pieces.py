"""How a batch of blocks is cut into pieces and shared out over the connections of a link. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

STRIPE_BYTES_MIN = 4 << 20
"""Less than this is not worth a second connection: its threads' turns take longer than these bytes."""
STRIPE_BYTES_MAX = 16 << 20
"""More than this at a time would keep other readers of the link waiting."""
STRIPE_PIECES_MAX = 1024
_UNIT = 64 << 10
"""Stripes end at multiples of this within a block, so that no copy starts in mid-page."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes [start, start + length) of item `index`."""

    index: int
    start: int
    length: int


def cut_stripes(sizes: Sequence[int], connections: int) -> list[list[Piece]]:
    """Every byte of every item in exactly one piece; each stripe is for one connection, and about as long as the others."""
    total = sum(sizes)
    if not total:
        return []
    share = max(STRIPE_BYTES_MIN, min(STRIPE_BYTES_MAX, -(-total // connections)))
    share = -(-share // _UNIT) * _UNIT
    stripes: list[list[Piece]] = [[]]
    room = share
    for index, size in enumerate(sizes):
        start = 0
        while start < size:
            if room <= 0 or len(stripes[-1]) >= STRIPE_PIECES_MAX:
                stripes.append([])
                room = share
            length = _piece(size - start, room)
            stripes[-1].append(Piece(index, start, length))
            start += length
            room -= length
    return stripes


def _piece(left: int, room: int) -> int:
    """A tail that is shorter than the unit goes along: no piece of a few bytes for a whole round trip."""
    if left <= room + _UNIT:
        return left
    return max(_UNIT, room // _UNIT * _UNIT)
