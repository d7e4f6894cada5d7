"""What tests of the NVMe tier share: a small store on top of it, a file system that fails on demand, hands on its bytes."""

import asyncio
import errno
import mmap
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from mooncask.tiers.block import BlockRecord, Extent, aligned
from mooncask.tiers.nvme import FileLayer, NvmeConfig, NvmeTier
from mooncask.tiers.nvme.index import Index, IndexFault
from mooncask.tiers.nvme.index_entry import Change
from mooncask.tiers.nvme.record import Place

MIB = 1 << 20
NAMESPACE = 7


def config(path: Path, capacity_bytes: int = 64 * MIB, segment_bytes: int = 8 * MIB, **more: object) -> NvmeConfig:
    return NvmeConfig(path, capacity_bytes, segment_bytes, **more)  # type: ignore[arg-type]


def payload_of(seed: int, size: int) -> memoryview:
    """`size` bytes that only this seed gives, in aligned memory padded with zeros."""
    memory = memoryview(mmap.mmap(-1, max(aligned(size), mmap.PAGESIZE)))
    np.frombuffer(memory, np.uint8)[:size] = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return memory[: aligned(size)]


def record_of(key: bytes, payload: memoryview, size: int, sequence: int, namespace: int = NAMESPACE) -> BlockRecord:
    checksum = xxhash.xxh3_128_digest(payload[:size])
    return BlockRecord(namespace, key, size, checksum, sequence, parent=b"p" + key[:15], depth=3, tokens=16)


@dataclass
class Kept:
    record: BlockRecord
    extent: Extent


class SmallStore:
    """The least that a store does: one entry a key, told by the reclaimer where blocks went."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, bytes], Kept] = {}
        self.moves = 0
        self.sequence = 0
        self.closed = True
        self.tier: NvmeTier

    def is_live(self, record: BlockRecord) -> Extent | None:
        kept = self.blocks.get((record.namespace, record.key))
        return kept.extent if kept is not None and kept.record.sequence == record.sequence else None

    def moved(self, record: BlockRecord, old: Extent, new: Extent) -> bool:
        kept = self.blocks.get((record.namespace, record.key))
        if kept is None or kept.record.sequence != record.sequence:
            return False
        assert (kept.extent.offset, kept.extent.generation) == (old.offset, old.generation)
        kept.extent = new
        self.moves += 1
        return True

    async def open(self, config: NvmeConfig, files: FileLayer | None = None) -> "SmallStore":
        """(Re)start: the catalogue is what the tier recovered."""
        self.blocks = {}
        self.tier = await NvmeTier.open(config, self.is_live, self.moved, files)
        self.closed = False
        self.sequence = self.tier.highest_sequence
        for block in self.tier.recovered:
            assert (block.record.namespace, block.record.key) not in self.blocks
            self.blocks[block.record.namespace, block.record.key] = Kept(block.record, block.extent)
        return self

    def next_sequence(self) -> int:
        self.sequence += 1
        return self.sequence

    async def reserve(self, size: int) -> Extent:
        extent = self.tier.reserve(size)
        if extent is None:
            assert await self.tier.room(size), "the tier is full"
            extent = self.tier.reserve(size)
        assert extent is not None
        return extent

    async def put(self, key: bytes, size: int, seed: int, namespace: int = NAMESPACE) -> BlockRecord:
        payload = payload_of(seed, size)
        record = record_of(key, payload, size, self.next_sequence(), namespace)
        extent = await self.reserve(size)
        try:
            await self.tier.commit(extent, record, payload)
        except BaseException:
            self.tier.free(extent)
            raise
        old = self.blocks.get((namespace, key))
        self.blocks[namespace, key] = Kept(record, extent)
        if old is not None:
            self.tier.free(old.extent)
        return record

    async def get(self, key: bytes, namespace: int = NAMESPACE) -> bytes:
        kept = self.blocks[namespace, key]
        into = memoryview(mmap.mmap(-1, max(aligned(kept.record.size), mmap.PAGESIZE)))
        await self.tier.read(kept.extent, kept.record, into[: aligned(kept.record.size)])
        return bytes(into[: kept.record.size])

    async def delete(self, key: bytes, namespace: int = NAMESPACE) -> None:
        kept = self.blocks.pop((namespace, key))
        self.tier.free(kept.extent)
        await self.tier.delete([(namespace, key, kept.record.sequence)])

    def evict(self, key: bytes, namespace: int = NAMESPACE) -> None:
        kept = self.blocks.pop((namespace, key))
        self.tier.forget(kept.extent, kept.record)

    async def close(self) -> None:
        self.closed = True
        await self.tier.close()


OpenStore = Callable[..., Awaitable[SmallStore]]
"""The fixture `open_store`: (files=FileLayer(), config=the test's) -> an open store."""


async def until(condition: Callable[[], bool]) -> None:
    """What happens in the background and tells nobody; at most 20 s."""
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 (nobody sets an event for it)
            await asyncio.sleep(0.005)


# --- faults ----------------------------------------------------------------------------------------------------------


class FaultyIndex(Index):
    """An index whose batches fail while `fault` says so."""

    fault: Callable[[], str] = staticmethod(lambda: "")

    def apply(self, changes: "Sequence[Change]") -> list[Place]:  # type: ignore[override]
        why = self.fault()
        if why:
            raise IndexFault(why)
        return super().apply(changes)


@dataclass
class FaultyFiles(FileLayer):
    """The real file system, until a rule in `rules` raises. Rules run in the worker threads."""

    rules: dict[str, Callable[..., None]] = field(default_factory=dict)
    index_fault: str = ""
    short_write_bytes: int = 0
    """A pwritev takes at most this much; 0 = all."""
    calls: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def _before(self, name: str, *what: object) -> None:
        with self._lock:
            self.calls[name] = self.calls.get(name, 0) + 1
        rule = self.rules.get(name)
        if rule is not None:
            rule(*what)

    def fail(self, name: str, number: int, times: int = 1_000_000) -> None:
        """The next `times` calls of `name` fail with `number`."""
        left = [times]

        def rule(*_: object) -> None:
            with self._lock:
                left[0] -= 1
                if left[0] < 0:
                    return
            raise OSError(number, errno.errorcode[number])

        self.rules[name] = rule

    def heal(self) -> None:
        self.rules.clear()
        self.index_fault = ""

    def open(self, path: Path, direct: bool, create: bool) -> int:
        self._before("open", path, direct)
        return super().open(path, direct, create)

    def pwritev(self, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        self._before("pwritev", fd, pieces, offset)
        if self.short_write_bytes:
            left, short = self.short_write_bytes, []
            for piece in pieces:
                short.append(piece[:left])
                left -= len(short[-1])
            pieces = [piece for piece in short if len(piece)]
        return super().pwritev(fd, pieces, offset)

    def preadv(self, fd: int, pieces: Sequence[memoryview], offset: int) -> int:
        self._before("preadv", fd, pieces, offset)
        return super().preadv(fd, pieces, offset)

    def allocate(self, fd: int, size_bytes: int) -> None:
        self._before("allocate", fd, size_bytes)
        super().allocate(fd, size_bytes)

    def fdatasync(self, fd: int) -> None:
        self._before("fdatasync", fd)
        super().fdatasync(fd)

    def publish(self, path: Path, content: bytes) -> None:
        self._before("publish", path)
        super().publish(path, content)

    def open_index(self, path: Path, create: bool = False) -> Index:
        self._before("open_index", path)
        index = FaultyIndex.open(path, create)
        assert isinstance(index, FaultyIndex)
        index.fault = lambda: self.index_fault
        return index


# --- hands on the bytes beneath the tier -----------------------------------------------------------------------------


def position(config: NvmeConfig, extent: Extent) -> tuple[Path, int]:
    """The segment file of an extent and the offset of its header there."""
    segment, offset = divmod(extent.offset, config.segment_bytes)
    return config.path / "segments" / f"{segment:08d}.seg", offset


def read_behind(config: NvmeConfig, extent: Extent, start: int, length: int) -> bytes:
    path, offset = position(config, extent)
    with path.open("rb") as file:
        file.seek(offset + start)
        return file.read(length)


def write_behind(config: NvmeConfig, extent: Extent, start: int, content: bytes) -> None:
    path, offset = position(config, extent)
    with path.open("r+b") as file:
        file.seek(offset + start)
        file.write(content)


def flip_behind(config: NvmeConfig, extent: Extent, at: int) -> None:
    """One bit of the record, `at` counted from its header."""
    [byte] = read_behind(config, extent, at, 1)
    write_behind(config, extent, at, bytes([byte ^ 0x10]))
