"""The DRAM tier: blocks in the shared arena. Who may read them and when they leave is the store's business.

Nothing here survives the process.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from mooncask.tiers.arena import Arena
from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.checksum import check_digest, check_room, payload_checksum
from mooncask.tiers.ledger import Ledger
from mooncask.tiers.off_loop import INLINE_BYTES, run_off_loop, run_sized


@dataclass(frozen=True, slots=True)
class Filling:
    """A reserved extent of which the first `size` bytes count; they come from `source`, or were written in place."""

    extent: Extent
    size: int
    source: memoryview | None = None


class DramTier:
    """Implements `Tier` and `Addressable` over an arena, which it owns from now on.

    Extents come only from the populated part. Copies and checksums of more than 64 KiB run in `executor`, several at a
    time; every method is called on the event loop's thread. Until `start` is called, only what the arena has already
    populated can be reserved.
    """

    name = TierName.DRAM

    def __init__(
        self, arena: Arena, executor: Executor, *, threads: int = 1, first_generation: int | None = None
    ) -> None:
        """`threads`: among how many of the executor's a batch is divided."""
        self.arena = arena
        self._threads = threads
        self.capacity_bytes = arena.capacity_bytes
        self._executor = executor
        self._ledger = Ledger(self.name, arena.populated_bytes, first_generation)
        self._populated = asyncio.Event()
        self._closed = False

    @property
    def used_bytes(self) -> int:
        return self._ledger.allocator.used_bytes

    @property
    def populated_bytes(self) -> int:
        """Bytes that extents may come from by now; grows up to `capacity_bytes` after `start`."""
        return self._ledger.allocator.limit

    @property
    def largest_free_bytes(self) -> int:
        """The largest block that `reserve` could place now."""
        return self._ledger.allocator.largest_free_bytes

    @property
    def state(self) -> str:
        """ok, populating, or degraded with the reason: the kernel ran out of memory on the way."""
        if self.arena.fault is not None:
            return f"degraded: {self.populated_bytes} of {self.capacity_bytes} bytes, {self.arena.fault.strerror}"
        return "ok" if self.populated_bytes == self.capacity_bytes else "populating"

    def start(self, on_growth: Callable[[], None] = lambda: None) -> None:
        """Begin to populate the arena. `on_growth` is called on the loop each time that there is more room."""
        loop = asyncio.get_running_loop()

        def progress(_populated_bytes: int) -> None:
            loop.call_soon_threadsafe(self._grow, on_growth)

        self.arena.start_populating(progress)

    async def wait_populated(self) -> None:
        """Return when populating has ended: all is there, or `state` says why not, or the tier was closed."""
        await self._populated.wait()

    def reserve(self, size: int) -> Extent | None:
        return self._ledger.reserve(size)

    def view(self, extent: Extent) -> memoryview:
        """The extent's bytes [0, extent.length), writable, valid until the extent is freed."""
        return self.arena.view(extent.offset, extent.length)

    async def fill(self, extent: Extent, payload: memoryview) -> None:
        """Copy `payload` into a reserved extent and zero the pad behind it. Publishes nothing.

        `settle` does so for a whole batch, and digests it.
        """
        assert self._ledger.holds(extent), f"{extent} was freed"
        assert payload.nbytes <= extent.length, f"{payload.nbytes} bytes into {extent}"
        source = np.frombuffer(payload, np.uint8)
        target = np.frombuffer(self.view(extent), np.uint8, source.size)
        if source.__array_interface__["data"][0] != target.__array_interface__["data"][0]:
            await run_sized(self._executor, source.size, lambda: np.copyto(target, source))
            assert self._ledger.holds(extent), f"{extent} was freed while it was being filled"
        self.zero_pad(extent, payload.nbytes)

    def zero_pad(self, extent: Extent, size: int) -> None:
        """Zero the bytes [size, extent.length), less than 4 KiB: nobody shall read there what lay there before."""
        self.arena.array[extent.offset + size : extent.offset + extent.length] = 0

    async def checksum(self, extent: Extent, size: int) -> bytes:
        """The xxh3_128 digest of the first `size` bytes as they lie there."""
        payload = self.view(extent)[:size]
        return await run_sized(self._executor, size, lambda: payload_checksum(payload))

    async def settle(self, fillings: Sequence[Filling]) -> list[bytes]:
        """Several reserved extents taken in: copied from `source` where that is given, padded; the xxh3_128 of each.

        One piece of work a thread for all of them: handing over block by block costs more than digesting 256 KiB.
        """
        assert all(self._ledger.holds(filling.extent) for filling in fillings)
        if sum(filling.size for filling in fillings) <= INLINE_BYTES:
            return [self._settle_one(filling) for filling in fillings]
        step = -(-len(fillings) // self._threads)
        shares = [fillings[start : start + step] for start in range(0, len(fillings), step)]
        work = (run_off_loop(self._executor, partial(self._settle_share, share)) for share in shares)
        done = await asyncio.gather(*work, return_exceptions=True)  # all have ended, also after a cancellation
        digests: list[bytes] = []
        for share in done:
            if isinstance(share, BaseException):
                raise share
            digests += share
        return digests

    def _settle_share(self, fillings: Sequence[Filling]) -> list[bytes]:
        return [self._settle_one(filling) for filling in fillings]

    def _settle_one(self, filling: Filling) -> bytes:
        payload = self.view(filling.extent)[: filling.size]
        if filling.source is not None and filling.size:
            np.copyto(np.frombuffer(payload, np.uint8), np.frombuffer(filling.source, np.uint8, filling.size))
        self.zero_pad(filling.extent, filling.size)
        return payload_checksum(payload)

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        """See `Tier`. A payload that already is the extent's own memory is not copied; `record.checksum` is not compared."""
        self._ledger.check_reserved(extent, record)
        assert payload.nbytes >= record.size, f"{payload.nbytes} bytes offered for {record}"
        await self.fill(extent, payload[: record.size])
        self._ledger.publish(extent, record)

    def adopt(self, extent: Extent, record: BlockRecord) -> None:
        """Publish what was written in place (and checked by the caller): a commit without a copy."""
        self._ledger.check_reserved(extent, record)
        self.zero_pad(extent, record.size)
        self._ledger.publish(extent, record)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        """See `Tier`. What is checked is the copy in `into`. Raises BadRequest when `into` is too small."""
        check_room(record, into)
        self._ledger.check_committed(extent, record)
        source = np.frombuffer(self.view(extent), np.uint8, record.size)
        target = np.frombuffer(into, np.uint8, record.size)

        def copy_and_check() -> bytes:
            np.copyto(target, source)
            return payload_checksum(target.data)

        check_digest(self.name, record, await run_sized(self._executor, record.size, copy_and_check))

    async def verify(self, extent: Extent, record: BlockRecord) -> None:
        """Check a committed block in place. Raises CorruptBlock."""
        self._ledger.check_committed(extent, record)
        check_digest(self.name, record, await self.checksum(extent, record.size))

    def free(self, extent: Extent) -> None:
        self._ledger.free(extent)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        return self._ledger.keys()

    async def close(self) -> None:
        """See `Tier`. Views that still live keep the memory until they die. Idempotent."""
        self._closed = True
        await run_off_loop(self._executor, self.arena.stop_populating)
        self.arena.close()
        self._populated.set()

    def _grow(self, on_growth: Callable[[], None]) -> None:
        if self._closed:
            return
        self._ledger.allocator.grow(self.arena.populated_bytes)
        if self.state != "populating":
            self._populated.set()
        on_growth()
