"""Registered memory as both ends know it, and how reads are cut into work requests. Pure.

An arena is registered in regions of at most REGION_BYTES_MAX: one of hundreds of gigabytes is more than some devices take, and
holds up whatever else the thread has to do for minutes. Blocks do not care where one ends: work requests do.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

REGION_BYTES_MAX = 1 << 30
REQUEST_BYTES_MAX = 1 << 20
"""A lost packet is answered by sending the rest of its request again: the longer it is the more."""
REQUEST_BYTES_MIN = 4 << 10


class Region(msgspec.Struct, frozen=True, array_like=True):
    """Bytes [offset, offset + length) of an arena, where they are in their process, and the key that opens them."""

    offset: int
    length: int
    address: int
    key: int


class Span(NamedTuple):
    """`length` bytes, at two offsets: where in the other's arena they are, and where in ours they go."""

    theirs: int
    ours: int
    length: int


class WorkRequest(NamedTuple):
    """One READ as the device gets it."""

    local_address: int
    local_key: int
    remote_address: int
    remote_key: int
    length: int


class Regions:
    """All regions of one arena, in order and without gaps."""

    def __init__(self, regions: Sequence[Region]) -> None:
        """Raises ValueError for what is no arena."""
        end = 0
        for region in regions:
            if region.offset != end or region.length <= 0:
                raise ValueError(f"a region at {region.offset} of {region.length} bytes; the one before ends at {end}")
            end += region.length
        self.size_bytes = end
        self._regions = list(regions)
        self._step = regions[0].length if regions else 1
        if any(region.length != self._step for region in regions[:-1]) or (regions and regions[-1].length > self._step):
            raise ValueError("regions of different lengths: only the last one may be shorter")

    def at(self, offset: int) -> Region:
        """The region of this byte. The caller has checked that there is one."""
        return self._regions[offset // self._step]


def cut_arena(size_bytes: int) -> list[tuple[int, int]]:
    """Offset and length of each region."""
    return [(at, min(REGION_BYTES_MAX, size_bytes - at)) for at in range(0, size_bytes, REGION_BYTES_MAX)]


def cut_reads(spans: Iterable[Span], theirs: Regions, ours: Regions, bytes_max: int) -> list[WorkRequest]:
    """Every byte of every span in one work request, none longer than `bytes_max` or across the end of a region.

    Raises ValueError for a span that is not in both arenas.
    """
    requests: list[WorkRequest] = []
    for span in spans:
        if min(span) < 0 or span.theirs + span.length > theirs.size_bytes or span.ours + span.length > ours.size_bytes:
            raise ValueError(
                f"{span.length} bytes from {span.theirs} of {theirs.size_bytes} to {span.ours} of {ours.size_bytes}"
            )
        done = 0
        while done < span.length:
            request = _request(span, done, theirs, ours, bytes_max)
            requests.append(request)
            done += request.length
    return requests


def _request(span: Span, done: int, theirs: Regions, ours: Regions, bytes_max: int) -> WorkRequest:
    remote, local = theirs.at(span.theirs + done), ours.at(span.ours + done)
    at_remote, at_local = span.theirs + done - remote.offset, span.ours + done - local.offset
    length = min(span.length - done, bytes_max, remote.length - at_remote, local.length - at_local)
    return WorkRequest(local.address + at_local, local.key, remote.address + at_remote, remote.key, length)
