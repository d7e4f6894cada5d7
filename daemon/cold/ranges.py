"""Which reads bring which blocks: neighbours in one pack come with one read. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from mooncask.daemon.cold.index import Pack, Place

GAP_BYTES_MAX = 64 << 10
"""Bytes that nobody wants, read since a second request would cost more."""
READ_BYTES_MAX = 8 << 20
"""One read, unless a block is larger: the first blocks are of use while the others come."""


@dataclass(slots=True)
class Read:
    """[offset, offset + length) of a pack; `places` in it, with the keys they were wanted for."""

    pack: Pack
    offset: int
    length: int = 0
    places: dict[bytes, Place] = field(default_factory=dict)


def plan_reads(wanted: Iterable[tuple[bytes, Place]]) -> list[Read]:
    """All of `wanted`, each key in one read."""
    ordered = sorted(wanted, key=lambda item: (item[1].pack.name, item[1].offset))
    reads: list[Read] = []
    for key, place in ordered:
        last = reads[-1] if reads else None
        if last is None or not _belongs(last, place):
            last = Read(place.pack, place.offset)
            reads.append(last)
        last.length = max(last.length, place.offset + place.length - last.offset)
        last.places[key] = place
    return reads


def _belongs(read: Read, place: Place) -> bool:
    if read.pack is not place.pack:
        return False
    gap = place.offset - (read.offset + read.length)
    return gap <= GAP_BYTES_MAX and place.offset + place.length - read.offset <= READ_BYTES_MAX
