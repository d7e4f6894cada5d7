"""Walking through a segment without the index: for the reclaimer, a rebuild and the check. All of it blocks.

From record to record where headers are whole; over holes (a torn write, a place that was reserved and given up) in steps
of 4 KiB. A payload is never mistaken for a header unless it carries this store's secret id, this segment, this
generation and the very offset at which it lies.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import xxhash

from mooncask.tiers.block import BlockRecord
from mooncask.tiers.nvme.buffers import aligned_buffer
from mooncask.tiers.nvme.file_layer import read_fully
from mooncask.tiers.nvme.record import HEADER_BYTES, SEGMENT_DATA_START, Header, Place, mismatch, record_length, unpack
from mooncask.tiers.nvme.segment_files import SegmentFiles

_WINDOW_BYTES = 64 << 10
"""Read at a time: 16 steps in a hole, and little wasted where records are large."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The disk refused to give these bytes."""

    offset: int
    why: str


class Scanner:
    """Walks one segment of one generation up to `end`. For one thread."""

    def __init__(self, files: SegmentFiles, segment: int, generation: int, end: int) -> None:
        self._files = files
        self._segment = segment
        self._generation = generation
        self._end = end
        self._window = aligned_buffer(_WINDOW_BYTES)
        self._start = 0
        self._length = 0
        self.unreadable: list[Unreadable] = []

    def headers(self) -> Iterator[Header]:
        """Every whole header of this generation, in order of place."""
        position = SEGMENT_DATA_START
        while position + HEADER_BYTES <= self._end:
            header = self._header_at(position)
            if header is None:
                position += HEADER_BYTES
                continue
            yield header
            position += max(header.length, HEADER_BYTES)

    def _header_at(self, position: int) -> Header | None:
        if not self._start <= position < self._start + self._length:
            self._load(position)
        at = position - self._start
        header = unpack(self._window[at : at + HEADER_BYTES], self._files.store)
        expected = Place(self._segment, position, self._generation)
        return header if isinstance(header, Header) and header.place == expected else None

    def _load(self, position: int) -> None:
        length = min(_WINDOW_BYTES, self._end - position)
        self._start, self._length = position, length
        piece = self._window[:length]
        try:
            with self._files.descriptor(self._segment) as fd:
                got = read_fully(self._files.files, fd, [piece], position)
        except OSError as exc:
            self.unreadable.append(Unreadable(position, exc.strerror or str(exc)))
            got = 0
        if got < length:
            self._window[got:length] = bytes(length - got)


def wrong_with(files: SegmentFiles, place: Place, record: BlockRecord) -> str:
    """Reads a block's header and payload and says what is wrong with them; empty when they are right."""
    buffer = aligned_buffer(record_length(record.size))
    try:
        with files.descriptor(place.segment) as fd:
            got = read_fully(files.files, fd, [buffer], place.offset)
    except OSError as exc:
        return f"unreadable: {exc.strerror or exc}"
    if got < len(buffer):
        return "unreadable: the segment file ends before it"
    return judge(buffer[:HEADER_BYTES], buffer[HEADER_BYTES : HEADER_BYTES + record.size], files.store, place, record)


def judge(page: memoryview, payload: memoryview, store: bytes, place: Place, record: BlockRecord) -> str:
    """What is wrong with a header and a payload that were read for `record`; empty when they are right."""
    header = unpack(page, store)
    if isinstance(header, str):
        return header
    why = mismatch(header, place, record)
    if not why and xxhash.xxh3_128_digest(payload) != record.checksum:
        why = "wrong payload checksum"
    return why
