"""Starting the NVMe tier: folder, index (or its rebuild), segment table. Blocks; runs before the tier serves anybody."""

import logging
from dataclasses import dataclass

from mooncask.errors import ConfigError, FolderNotWritable, MooncaskError
from mooncask.tiers.nvme.config import Layout, NvmeConfig
from mooncask.tiers.nvme.file_layer import FileLayer
from mooncask.tiers.nvme.folder import INDEX, SEGMENTS, SETTING, DataFolder
from mooncask.tiers.nvme.group_commit import segment_state
from mooncask.tiers.nvme.index import Index, IndexFault, IndexUnreadable
from mooncask.tiers.nvme.index_entry import (
    BLOCK_PREFIX,
    META_COMPLETE,
    META_SEQUENCE,
    META_STORE,
    Change,
    SegmentState,
    Set,
    Use,
    numbered,
    pack_sequence,
    segment_key,
    unpack_fields,
    unpack_sequence,
)
from mooncask.tiers.nvme.namespaces import NAMESPACES, NamespacesUnreadable, NamespaceTable
from mooncask.tiers.nvme.rebuild import Rebuild, RebuildReport
from mooncask.tiers.nvme.reconcile import reconcile
from mooncask.tiers.nvme.record import record_length
from mooncask.tiers.nvme.segment import Segment, SegmentTable, State
from mooncask.tiers.nvme.segment_files import SegmentFiles

log = logging.getLogger(__name__)

SEQUENCES_AHEAD = 1 << 20
"""The index holds a sequence that no write has reached. A start begins there: it reads no segment to find the highest."""


@dataclass(slots=True)
class Opened:
    """What a started tier consists of."""

    folder: DataFolder
    files: SegmentFiles
    index: Index
    table: SegmentTable
    namespaces: NamespaceTable
    highest_sequence: int
    sequence_mark: int
    rebuilt: RebuildReport | None


def open_tier(config: NvmeConfig, file_layer: FileLayer) -> Opened:
    """Raises the errors of `DataFolder.open`, ConfigError, NoDirectIO, and FolderNotWritable for a disk that fails."""
    wanted = config.layout()
    folder = DataFolder.open(config.path, wanted.segment_bytes, file_layer)
    try:
        return _open_in(folder, config, file_layer)
    except (OSError, IndexFault) as exc:
        folder.close()
        raise FolderNotWritable(SETTING, str(config.path), str(exc)) from exc
    except MooncaskError:
        folder.close()
        raise


def _open_in(folder: DataFolder, config: NvmeConfig, file_layer: FileLayer) -> Opened:
    identity = folder.identity
    layout = _layout(config, identity.segment_bytes)
    files = SegmentFiles(folder.path / SEGMENTS, identity.store, identity.segment_bytes, config.direct, file_layer)
    files.probe_direct_io()
    numbers = files.numbers()
    namespaces = _read_namespaces(folder)
    index, rebuilt = _index(folder, files, file_layer, namespaces, numbers)
    try:
        table = _table(layout, files, index.segments(), numbers)
        table.keep_reclaimer_room()
        _settle_open(table, files, index)
        dropped = _account(table, index, namespaces)
        mark = unpack_sequence(index.get(META_SEQUENCE) or bytes(8))
        index.apply([*dropped, Set(META_SEQUENCE, pack_sequence(mark + SEQUENCES_AHEAD))])
        if namespaces is None:
            namespaces = _namespaces_of(index, folder, file_layer)
    except BaseException:
        index.close()
        raise
    return Opened(folder, files, index, table, namespaces, mark, mark + SEQUENCES_AHEAD, rebuilt)


def _layout(config: NvmeConfig, segment_bytes: int) -> Layout:
    if config.segment_bytes and config.segment_bytes != segment_bytes:
        log.warning("nvme.segment = %d has no effect: %s has segments of %d bytes", config.segment_bytes,
                    config.path, segment_bytes)  # fmt: skip
    return config.with_segments_of(segment_bytes)


# --- namespaces ------------------------------------------------------------------------------------------------------


def _read_namespaces(folder: DataFolder) -> NamespaceTable | None:
    path = folder.path / NAMESPACES
    if not path.exists():
        return NamespaceTable()
    try:
        return NamespaceTable.unpack(path.read_bytes())
    except NamespacesUnreadable as exc:
        log.error("%s: %s; taking the index's copy", path, exc)
        return None


def _namespaces_of(index: Index, folder: DataFolder, file_layer: FileLayer) -> NamespaceTable:
    """The index's copy, written back to the file. Which ones were dropped is not known any more."""
    table = NamespaceTable()
    for number, blob in index.namespaces().items():
        table.save(number, blob)
    file_layer.publish(folder.path / NAMESPACES, table.pack())
    return table


# --- index -----------------------------------------------------------------------------------------------------------


def _index(
    folder: DataFolder,
    files: SegmentFiles,
    file_layer: FileLayer,
    namespaces: NamespaceTable | None,
    numbers: list[int],
) -> tuple[Index, RebuildReport | None]:
    path = folder.path / INDEX
    try:
        index = file_layer.open_index(path)
        why = _foreign(index, folder.identity.store)
        if not why:
            return index, None
        index.close()
    except IndexUnreadable as exc:
        why = str(exc)
    if numbers:
        log.warning("the index in %s can't be used (%s): rebuilding it from %d segments", path, why, len(numbers))
    if namespaces is None:
        raise ConfigError(SETTING, str(folder.path), f"both {NAMESPACES} and the index are unreadable; restore either")
    rebuild = Rebuild(path, files, folder.identity.segment_bytes, namespaces, numbers)
    index = rebuild.run()
    if numbers:
        log.warning("rebuilt the index: %s", rebuild.report)
    return index, rebuild.report if numbers else None


def _foreign(index: Index, store: bytes) -> str:
    """Why this index can't be used, though RocksDB reads it."""
    try:
        if index.get(META_COMPLETE) is None:
            return "it is incomplete"
        return "" if index.get(META_STORE) == store else "it belongs to another store"
    except IndexFault as exc:
        return str(exc)


# --- segments --------------------------------------------------------------------------------------------------------


def _table(layout: Layout, files: SegmentFiles, states: dict[int, SegmentState], numbers: list[int]) -> SegmentTable:
    """Segments as the index and their own headers say. Open ones of the last run are full from now on."""
    table = SegmentTable(layout)
    found = {number: _header(files, number) for number in numbers}
    known = [state.generation for state in states.values()]
    table.highest_generation = max([0, *known, *(generation for generation, _ in found.values())])
    for number, (generation, copy) in found.items():
        state = states.get(number) or SegmentState(table.next_generation(), Use.FREE, 0)
        table.put(_segment(layout, number, state, generation, copy))
    for segment in list(table):
        _rewrite_header(table, segment, files, states)
    return table


def _header(files: SegmentFiles, number: int) -> tuple[int, int]:
    """(generation, which copy says so); generation 0 when neither does."""
    try:
        header = files.read_header(number)
    except OSError as exc:
        log.error("nvme tier: the header of segment %d can't be read: %s", number, exc)
        header = None
    return (header[0].generation, header[1]) if header is not None else (0, 0)


def _segment(layout: Layout, number: int, state: SegmentState, generation: int, copy: int) -> Segment:
    if state.use is Use.FREE:
        return Segment(number, state.generation, header_copy=copy, headed=generation == state.generation)
    if generation not in (0, state.generation):
        log.error("nvme tier: segment %d is of generation %d, the index says %d; its blocks are gone",
                  number, generation, state.generation)  # fmt: skip
    return Segment(
        number,
        generation or state.generation,
        State.SEALED,
        tail=layout.segment_bytes,
        tombstones=state.tombstones,
        header_copy=copy,
        headed=generation != 0,
        unsaved=state.use is Use.OPEN,
    )


def _rewrite_header(
    table: SegmentTable, segment: Segment, files: SegmentFiles, states: dict[int, SegmentState]
) -> None:
    """A header that is not what the index says: lost, or a crash came between freeing the segment and saying so in it.

    Until it is right a rebuild would count what does not count, or not count what does.
    """
    if segment.headed or segment.number not in states:
        return
    try:
        segment.header_copy = files.prepare(segment.number, segment.generation, segment.header_copy)
        segment.headed = True
    except OSError as exc:
        log.error("nvme tier: the header of segment %d can't be written: %s; it is not used", segment.number, exc)
        segment.generation = 0  # what it held still counts in a rebuild: no tombstone may go
        table.give_up(segment, absent=False)


def _settle_open(table: SegmentTable, files: SegmentFiles, index: Index) -> None:
    """Segments that were open at a crash hold nothing that the index does not know, afterwards."""
    for segment in [segment for segment in table if segment.unsaved]:
        found = reconcile(segment, files, index, table.layout.segment_bytes)
        segment.tombstones = found.tombstones
        segment.unsaved = False
        use = Use.SEALED if found.settled else Use.OPEN
        index.apply([*found.deletes, segment_state(segment, use)])
        if found.blanked or found.deletes:
            log.info("nvme tier: segment %d: %d unacknowledged writes blanked, %d deletes completed",
                     segment.number, found.blanked, len(found.deletes))  # fmt: skip


def _account(table: SegmentTable, index: Index, namespaces: NamespaceTable | None) -> list[Change]:
    """Counts live bytes; returns the removal of entries that point to what is not there, or whose namespace was dropped."""
    wrong: list[Change] = []
    dropped = namespaces.dropped if namespaces is not None else {}
    for key, value in index.pairs(BLOCK_PREFIX):
        number, _, generation, size = unpack_fields(value)[:4]
        segment = table.segments.get(number)
        right = segment is not None and segment.generation == generation and segment.state is State.SEALED
        if not right or segment is None or (dropped and numbered(key) in dropped):
            wrong.append(Set(key, None))
            continue
        length = record_length(size)
        segment.live_bytes += length
        table.used_bytes += length
    wrong += [Set(segment_key(number), None) for number in index.segments() if number not in table.segments]
    if wrong:
        log.warning("nvme tier: dropped %d index entries whose segment or namespace is gone", len(wrong))
    return wrong
