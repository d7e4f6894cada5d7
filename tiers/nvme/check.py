"""The check of a whole NVMe tier."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice

from mooncask.errors import TierDegraded
from mooncask.tiers.nvme.group_commit import GroupCommit
from mooncask.tiers.nvme.index import IndexFault
from mooncask.tiers.nvme.index_entry import BLOCK_PREFIX, BlockEntry, block_key, unpack_entry
from mooncask.tiers.nvme.record import Place
from mooncask.tiers.nvme.scan import wrong_with
from mooncask.tiers.nvme.segment import SegmentTable, State
from mooncask.tiers.nvme.segment_files import SegmentFiles
from mooncask.tiers.nvme.workers import Workers
from mooncask.tiers.off_loop import run_off_loop

_BATCH = 256

Progress = Callable[[int, int], None]
"""(blocks checked, bytes read) so far; called on the loop's thread."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One inconsistency. `key` is empty where it is about a segment."""

    what: str
    segment: int
    offset: int = 0
    namespace: int = 0
    key: bytes = b""


async def check_tier(
    table: SegmentTable,
    files: SegmentFiles,
    workers: Workers,
    group: GroupCommit,
    progress: Progress | None = None,
) -> list[Problem]:
    """Reads every block that the index names and every segment's header; reports whatever does not fit together.

    Finds: unreadable, damaged, torn or misdirected records; entries that point to a segment that is gone, was reclaimed
    or is free; two entries that share bytes; segments whose header on disk is lost or names another generation.

    Can't detect: a block that is missing as a whole (neither in the index nor known to anybody else), a payload that
    was wrong before its checksum was taken, an older record of a key whose newer one and its index entry were lost
    together, damage in bytes that no living block occupies, and what the disk's own cache would answer differently
    after a power cut. Blocks that are written, moved or deleted while it runs are not reported.
    """
    problems = await _check_segments(table, files, workers)
    seen: dict[int, Place] = {}
    after, blocks, size_bytes = b"", 0, 0
    while True:
        batch = await run_off_loop(workers.index, partial(_next_entries, group, after))
        if not batch:
            return problems
        for entry in batch:
            why = _overlap(entry, seen) or await _check_entry(entry, table, files, workers)
            if why and await _unchanged(entry, group, workers):
                problems.append(_problem(entry, why))
            blocks, size_bytes = blocks + 1, size_bytes + entry.length
        if progress is not None:
            progress(blocks, size_bytes)
        last = batch[-1].record
        after = block_key(last.namespace, last.key)


def _next_entries(group: GroupCommit, after: bytes) -> list[BlockEntry]:
    pairs: Iterator[tuple[bytes, bytes]] = group.index.pairs(BLOCK_PREFIX, after)
    try:
        return [unpack_entry(key, value) for key, value in islice(pairs, _BATCH)]
    except IndexFault as fault:
        raise TierDegraded("nvme", f"the index can't be read: {fault}") from fault


def _overlap(entry: BlockEntry, seen: dict[int, Place]) -> str:
    """Entries come in the order of keys, so only equal places are seen here; partly shared bytes fail their checksum."""
    known = seen.setdefault(hash((entry.place.segment, entry.place.offset)), entry.place)
    return "its place is another block's, too" if known == entry.place and known is not entry.place else ""


async def _check_entry(entry: BlockEntry, table: SegmentTable, files: SegmentFiles, workers: Workers) -> str:
    segment = table.at(entry.place)
    if segment is None:
        return "its segment is gone or was reclaimed"
    if segment.state is State.FREE:
        return "its segment is free"
    segment.readers += 1
    try:
        return await run_off_loop(workers.io, partial(wrong_with, files, entry.place, entry.record))
    finally:
        segment.readers -= 1


async def _unchanged(entry: BlockEntry, group: GroupCommit, workers: Workers) -> bool:
    """Whether the index still says the same: a block may have been moved or deleted meanwhile."""
    now = await run_off_loop(workers.index, partial(group.index.entry, entry.record.namespace, entry.record.key))
    return now is not None and now.place == entry.place and now.record == entry.record


def _problem(entry: BlockEntry, why: str) -> Problem:
    return Problem(why, entry.place.segment, entry.place.offset, entry.record.namespace, entry.record.key)


async def _check_segments(table: SegmentTable, files: SegmentFiles, workers: Workers) -> list[Problem]:
    problems: list[Problem] = []
    for segment in list(table):
        if not segment.holds_records or not segment.headed:
            continue
        generation = segment.generation
        try:
            header = await run_off_loop(workers.io, partial(files.read_header, segment.number))
        except OSError as exc:
            problems.append(Problem(f"its header is unreadable: {exc.strerror or exc}", segment.number))
            continue
        if table.segments.get(segment.number) is not segment or not segment.holds_records:
            continue  # reclaimed meanwhile
        if header is None:
            problems.append(Problem("neither copy of its header is whole", segment.number))
        elif header[0].generation != generation:
            why = f"its header says generation {header[0].generation}, the index {generation}"
            problems.append(Problem(why, segment.number))
        await asyncio.sleep(0)
    return problems
