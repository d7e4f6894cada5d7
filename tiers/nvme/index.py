"""The index of the NVMe tier: RocksDB in raw mode, every batch synced. What the pairs mean is in index_entry.py.

All methods block. `apply` is called by one thread at a time; reading beside it is safe.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedOptions,
    Cache,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from mooncask.tiers.nvme.index_entry import (
    BLOCK_PREFIX,
    NAMESPACE_PREFIX,
    SEGMENT_PREFIX,
    BlockEntry,
    Change,
    Delete,
    DropNamespace,
    Forget,
    Move,
    Put,
    SegmentState,
    Set,
    SetMeta,
    block_key,
    namespace_blocks,
    namespace_key,
    numbered,
    unpack_entry,
    unpack_fields,
)
from mooncask.tiers.nvme.record import Place

_WRITE_BUFFER_BYTES = 4 << 20
_BLOCK_CACHE_BYTES = 4 << 20
_WAL_BYTES_MAX = 16 << 20
_UNREADABLE_SIGNS = ("Corruption", "does not exist", "No such file", "Invalid argument", "Not implemented")


class IndexUnreadable(Exception):
    """There is no index, or RocksDB can't read it: it has to be rebuilt from the segments."""


class IndexFault(Exception):
    """RocksDB could not do what it was asked: no space, an I/O error. The index must be opened anew."""


class Index:
    """An open index."""

    def __init__(self, database: Rdict) -> None:
        self._database: Any = database  # its annotations know nothing of raw mode, where all is bytes
        self._synced = WriteOptions()
        self._synced.sync = True

    @classmethod
    def open(cls, path: Path, create: bool = False) -> "Index":
        """Raises IndexUnreadable when it is absent (and not to be created) or damaged, IndexFault for a disk's fault."""
        if not create and not (path / "CURRENT").exists():
            raise IndexUnreadable("there is none")
        try:
            return cls(Rdict(str(path), _options(create)))
        except Exception as exc:  # rocksdict has no class of its own
            if any(sign in str(exc) for sign in _UNREADABLE_SIGNS):
                raise IndexUnreadable(str(exc)) from exc
            raise IndexFault(str(exc)) from exc

    def close(self) -> None:
        """Release files and threads. Raises IndexFault, which costs nothing any more: what counted was synced."""
        try:
            self._database.close()
        except Exception as exc:
            raise IndexFault(str(exc)) from exc

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._database.get(key)
        except Exception as exc:
            raise IndexFault(str(exc)) from exc
        return value

    def entry(self, namespace: int, key: bytes) -> BlockEntry | None:
        whole = block_key(namespace, key)
        value = self.get(whole)
        return None if value is None else unpack_entry(whole, value)

    def pairs(self, prefix: bytes, after: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Pairs whose key begins with `prefix`, in order, from `after` (itself left out) on; a consistent view."""
        try:
            for key, value in self._database.items(from_key=max(prefix, after)):
                if not key.startswith(prefix):
                    return
                if key != after:
                    yield key, value
        except Exception as exc:
            raise IndexFault(str(exc)) from exc

    def entries(self) -> Iterator[BlockEntry]:
        for key, value in self.pairs(BLOCK_PREFIX):
            yield unpack_entry(key, value)

    def segments(self) -> dict[int, SegmentState]:
        return {numbered(key): SegmentState.unpack(value) for key, value in self.pairs(SEGMENT_PREFIX)}

    def namespaces(self) -> dict[int, bytes]:
        return {numbered(key): value for key, value in self.pairs(NAMESPACE_PREFIX)}

    def apply(self, changes: Iterable[Change]) -> list[Place]:
        """Apply changes in order as one synced batch; returns the places of the copies that the index lost by them.

        Raises IndexFault; whether the batch took effect is then known only after opening the index anew.
        """
        batch = _Batch(self)
        for change in changes:
            batch.add(change)
        self._write(batch.pairs)
        return batch.lost

    def _write(self, pairs: dict[bytes, bytes | None]) -> None:
        batch: Any = WriteBatch(raw_mode=True)
        for key, value in pairs.items():
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._database.write(batch, self._synced)
        except Exception as exc:
            raise IndexFault(str(exc)) from exc


class _Batch:
    """Works out what a list of changes does to the pairs; later changes see earlier ones."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.pairs: dict[bytes, bytes | None] = {}
        self.lost: list[Place] = []

    def add(self, change: Change) -> None:
        match change:
            case Put(entry):
                self._put(entry)
            case Move(namespace, key, old, new):
                self._move(block_key(namespace, key), old, new)
            case Forget(namespace, key, sequence):
                self._remove(block_key(namespace, key), sequence, older_too=False)
            case Delete(namespace, key, sequence):
                self._remove(block_key(namespace, key), sequence, older_too=True)
            case SetMeta(namespace, key, sequence, ttl_deadline, pins):
                self._set_meta(block_key(namespace, key), sequence, ttl_deadline, pins)
            case DropNamespace(namespace):
                self._drop_namespace(namespace)
            case Set(key, value):
                self.pairs[key] = value

    def _entry(self, key: bytes) -> BlockEntry | None:
        value = self.pairs[key] if key in self.pairs else self._index.get(key)
        return None if value is None else unpack_entry(key, value)

    def _put(self, entry: BlockEntry) -> None:
        key = block_key(entry.record.namespace, entry.record.key)
        have = self._entry(key)
        if have is not None and have.record.sequence >= entry.record.sequence:
            return
        if have is not None:
            self.lost.append(have.place)
        self.pairs[key] = entry.pack()

    def _move(self, key: bytes, old: Place, new: Place) -> None:
        have = self._entry(key)
        if have is not None and have.place == old:
            self.pairs[key] = have.moved(new).pack()

    def _remove(self, key: bytes, sequence: int, older_too: bool) -> None:
        have = self._entry(key)
        if have is None or have.record.sequence > sequence or (have.record.sequence < sequence and not older_too):
            return
        self.lost.append(have.place)
        self.pairs[key] = None

    def _set_meta(self, key: bytes, sequence: int, ttl_deadline: float, pins: int) -> None:
        have = self._entry(key)
        if have is not None and have.record.sequence == sequence:
            self.pairs[key] = have.with_meta(ttl_deadline, pins).pack()

    def _drop_namespace(self, namespace: int) -> None:
        prefix = namespace_blocks(namespace)
        for key in [key for key in self.pairs if key.startswith(prefix)]:
            self.pairs[key] = None
        for key, value in self._index.pairs(prefix):
            self.lost.append(Place(*unpack_fields(value)[:3]))
            self.pairs[key] = None
        self.pairs[namespace_key(namespace)] = None


def _options(create: bool) -> Options:
    """Small: the daemon has 100 MB beside its arena, and hits never come here (the catalogue is in memory)."""
    options = Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(_WAL_BYTES_MAX)
    options.set_max_background_jobs(2)
    options.set_max_open_files(64)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_stats_dump_period_sec(0)
    # A torn last record is what a power cut leaves; damage further in front must not drop acknowledged blocks in silence.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_compression_type(DBCompressionType.none())
    table = BlockBasedOptions()
    table.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    table.set_bloom_filter(10, False)
    options.set_block_based_table_factory(table)
    return options
