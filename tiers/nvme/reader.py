"""Reading records: one preadv a block, everything compared before a byte is believed."""

import logging
from functools import partial

from mooncask.tiers.block import BlockRecord
from mooncask.tiers.nvme.buffers import PagePool, ReadTarget
from mooncask.tiers.nvme.file_layer import read_fully
from mooncask.tiers.nvme.record import HEADER_BYTES, Header, Place, unpack
from mooncask.tiers.nvme.scan import judge
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

log = logging.getLogger(__name__)


class Reader:
    """For the event loop's thread; the reading itself is done by the workers. The caller counts segment readers."""

    def __init__(self, files: SegmentFiles, workers: Workers, pages: PagePool) -> None:
        self._files = files
        self._workers = workers
        self._pages = pages

    async def block(self, place: Place, record: BlockRecord, into: memoryview) -> str:
        """Brings the payload into `into`; returns what is wrong with it, empty when it is right."""
        page, spare = self._pages.take(), self._pages.take()
        try:
            return await run_off_loop(self._workers.io, partial(self._block, place, record, into, page, spare))
        finally:
            self._pages.give(page)
            self._pages.give(spare)

    def _block(self, place: Place, record: BlockRecord, into: memoryview, page: memoryview, spare: memoryview) -> str:
        target = ReadTarget(page, into, record.size, spare)
        try:
            with self._files.descriptor(place.segment) as fd:
                got = read_fully(self._files.files, fd, target.pieces, place.offset)
        except OSError as exc:
            return f"unreadable: {exc.strerror or exc}"
        if got < sum(len(piece) for piece in target.pieces):
            return "unreadable: the segment file ends before it"
        return judge(page, target.settle(), self._files.store, place, record)

    async def header(self, place: Place) -> Header | None:
        """The record header at a place; None when there is none that is whole and belongs there."""
        page = self._pages.take()
        try:
            return await run_off_loop(self._workers.io, partial(self._header, place, page))
        finally:
            self._pages.give(page)

    def _header(self, place: Place, page: memoryview) -> Header | None:
        try:
            with self._files.descriptor(place.segment) as fd:
                got = read_fully(self._files.files, fd, [page], place.offset)
        except OSError as exc:
            log.error("nvme tier: header in segment %d can't be read: %s", place.segment, exc)
            return None
        header = unpack(page, self._files.store) if got == HEADER_BYTES else ""
        return header if isinstance(header, Header) and header.place == place else None
