"""Making the index anew from the segments, when it is missing or can't be read. Reads everything once; blocks.

Of each key the highest sequence whose payload is right wins. Tombstones and dropped namespaces are respected. Records of
other generations than their segment's do not count. Lost: time to live and pins, which only the index had. Blocks that
were evicted without a tombstone may come back, which is no harm: their bytes are right.
"""

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.nvme.index import Index
from mooncask.tiers.nvme.index_entry import (
    META_COMPLETE,
    META_SEQUENCE,
    META_STORE,
    BlockEntry,
    Change,
    Delete,
    Put,
    SegmentState,
    Set,
    Use,
    namespace_key,
    pack_sequence,
    segment_key,
)
from mooncask.tiers.nvme.namespaces import NamespaceTable
from mooncask.tiers.nvme.record import Header, Tombstone
from mooncask.tiers.nvme.scan import Scanner, wrong_with
from mooncask.tiers.nvme.segment_files import SegmentFiles

log = logging.getLogger(__name__)

_BATCH = 1000


@dataclass(slots=True)
class RebuildReport:
    blocks: int = 0
    """Records found whole; of some keys there may be several."""
    damaged: int = 0
    """Records whose payload is wrong: writes that a crash cut short, or damage."""
    tombstones: int = 0
    segments: int = 0
    headless_segments: int = 0
    """Segments whose own header can't be read: what they hold can't be told from what was deleted."""
    seconds: float = 0.0


class Rebuild:
    """One rebuild, on the calling thread."""

    def __init__(
        self, folder: Path, files: SegmentFiles, segment_bytes: int, namespaces: NamespaceTable, numbers: Iterable[int]
    ) -> None:
        self._folder = folder
        self._files = files
        self._segment_bytes = segment_bytes
        self._namespaces = namespaces
        self._numbers = numbers
        self._tombstones: dict[tuple[int, bytes], Tombstone] = {}
        self._highest = 0
        self.report = RebuildReport()

    def run(self) -> Index:
        """A complete index. Cut short, it leaves one that the next start rebuilds again."""
        started = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        index = self._files.files.open_index(self._folder, create=True)
        try:
            for number in self._numbers:
                for batch in _batches(self._changes(number)):
                    index.apply(batch)
            for batch in _batches(Delete(t.namespace, t.key, t.sequence) for t in self._tombstones.values()):
                index.apply(batch)
            crash_point("nvme.rebuild.filled")
            index.apply(self._completion())
            self._files.files.sync_folder(self._folder.parent)
        except BaseException:
            index.close()
            raise
        self.report.seconds = time.monotonic() - started
        return index

    def _changes(self, number: int) -> Iterator[Change]:
        found = self._files.read_header(number)
        if found is None:
            self.report.headless_segments += 1
            return
        self.report.segments += 1
        generation = found[0].generation
        used, tombstones = False, 0
        for header in Scanner(self._files, number, generation, self._segment_bytes).headers():
            used = True
            tombstones += 1 if header.block is None else 0
            yield from self._change(header)
        yield Set(segment_key(number), SegmentState(generation, Use.SEALED if used else Use.FREE, tombstones).pack())

    def _change(self, header: Header) -> Iterator[Change]:
        for tombstone in header.tombstones:
            self._note(tombstone)
        record = header.block
        if record is None:
            return
        self._highest = max(self._highest, record.sequence)
        if record.namespace in self._namespaces.dropped:
            return
        if wrong_with(self._files, header.place, record):
            self.report.damaged += 1  # an older copy, if there is one, is better than this
            return
        self.report.blocks += 1
        yield Put(BlockEntry(header.place, record))

    def _note(self, tombstone: Tombstone) -> None:
        self.report.tombstones += 1
        self._highest = max(self._highest, tombstone.sequence)
        key = (tombstone.namespace, tombstone.key)
        known = self._tombstones.get(key)
        if known is None or known.sequence < tombstone.sequence:
            self._tombstones[key] = tombstone

    def _completion(self) -> list[Change]:
        blobs: list[Change] = [Set(namespace_key(number), blob) for number, blob in self._namespaces.blobs.items()]
        return [
            *blobs,
            Set(META_STORE, self._files.store),
            Set(META_SEQUENCE, pack_sequence(self._highest)),
            Set(META_COMPLETE, b"1"),
        ]


def _batches(changes: Iterable[Change]) -> Iterator[list[Change]]:
    batch: list[Change] = []
    for change in changes:
        batch.append(change)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
