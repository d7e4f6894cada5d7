"""After a crash: what the segments that were open then hold beyond what was acknowledged. Blocks; part of starting.

Without this, index and segments would disagree for as long as those segments live: a start from the index would not show
a write that was never acknowledged, a rebuild years later would. So an unacknowledged block is blanked (its header
becomes zeros), an unacknowledged delete is completed. Everything acknowledged is in the index, which is the truth here.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from mooncask.tiers.nvme.buffers import aligned_buffer
from mooncask.tiers.nvme.file_layer import write_fully
from mooncask.tiers.nvme.index import Index
from mooncask.tiers.nvme.index_entry import Change, Delete
from mooncask.tiers.nvme.record import HEADER_BYTES, Header, Place
from mooncask.tiers.nvme.scan import Scanner
from mooncask.tiers.nvme.segment import Segment
from mooncask.tiers.nvme.segment_files import SegmentFiles

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciled:
    tombstones: int
    """Tombstone records in the segment."""
    deletes: list[Change]
    """To be applied to the index."""
    blanked: int
    settled: bool
    """False when the disk refused: to be tried again at the next start."""


def reconcile(segment: Segment, files: SegmentFiles, index: Index, end: int) -> Reconciled:
    """Bring one segment that was open in line with the index."""
    scanner = Scanner(files, segment.number, segment.generation, end)
    tombstones, deletes, strays = 0, list[Change](), list[Place]()
    for header in scanner.headers():
        if header.block is None:
            tombstones += 1
            deletes += _unfinished(header, index)
            continue
        entry = index.entry(header.block.namespace, header.block.key)
        if entry is None or entry.place != header.place:
            strays.append(header.place)
    try:
        _blank(strays, files, segment.number)
    except OSError as exc:
        log.error("nvme tier: segment %d: unacknowledged writes can't be blanked: %s", segment.number, exc)
        return Reconciled(tombstones, deletes, 0, settled=False)
    return Reconciled(tombstones, deletes, len(strays), settled=not scanner.unreadable)


def _unfinished(header: Header, index: Index) -> Iterator[Change]:
    for tombstone in header.tombstones:
        entry = index.entry(tombstone.namespace, tombstone.key)
        if entry is not None and entry.record.sequence <= tombstone.sequence:
            yield Delete(tombstone.namespace, tombstone.key, tombstone.sequence)


def _blank(strays: list[Place], files: SegmentFiles, number: int) -> None:
    if not strays:
        return
    zeros = aligned_buffer(HEADER_BYTES)
    with files.descriptor(number) as fd:
        for place in strays:
            write_fully(files.files, fd, [zeros], place.offset)
        files.files.fdatasync(fd)
