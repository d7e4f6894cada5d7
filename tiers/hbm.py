"""The HBM tier: blocks in GPU memory. It is off unless hbm.capacity > 0. What touches the device: `device_memory.py`.

Nothing here survives the process.
"""

from collections.abc import Iterator
from concurrent.futures import Executor

from mooncask.errors import CorruptBlock, TierDegraded
from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.checksum import check_digest, check_room, payload_checksum
from mooncask.tiers.device_memory import DeviceMemory
from mooncask.tiers.ledger import Ledger
from mooncask.tiers.off_loop import run_off_loop


class HbmTier:
    """Implements `Tier` over device memory, which it owns from now on.

    Transfers run in `executor`, several at a time; every method is called on the event loop's thread. It is not
    `Addressable`: its extents are no memory of this process; workers reach them by `export_handle`.
    """

    name = TierName.HBM

    def __init__(self, memory: DeviceMemory, executor: Executor, *, first_generation: int | None = None) -> None:
        self.memory = memory
        self.capacity_bytes = memory.capacity_bytes
        self._executor = executor
        self._ledger = Ledger(self.name, memory.capacity_bytes, first_generation)

    @classmethod
    def open(cls, device: str, capacity_bytes: int, executor: Executor) -> "HbmTier":
        """Allocate on `device` (`cuda:N`; `cpu` for tests). Raises ConfigError naming hbm.capacity or hbm.device."""
        return cls(DeviceMemory(device, capacity_bytes), executor)

    @property
    def device(self) -> str:
        """Where the bytes are, for every report: `cuda:N`, or `cpu` in tests."""
        return self.memory.device

    @property
    def used_bytes(self) -> int:
        return self._ledger.allocator.used_bytes

    @property
    def largest_free_bytes(self) -> int:
        """The largest block that `reserve` could place now."""
        return self._ledger.allocator.largest_free_bytes

    def reserve(self, size: int) -> Extent | None:
        return self._ledger.reserve(size)

    async def commit(self, extent: Extent, record: BlockRecord, payload: memoryview) -> None:
        """See `Tier`. Returns when the bytes are on the device. Raises TierDegraded when it fails."""
        self._ledger.check_reserved(extent, record)
        assert payload.nbytes >= record.size, f"{payload.nbytes} bytes offered for {record}"
        try:
            await run_off_loop(
                self._executor, lambda: self.memory.write(extent.offset, payload[: record.size], extent.length)
            )
        except OSError as error:
            raise TierDegraded(self.name.name.lower(), str(error)) from error
        self._ledger.publish(extent, record)

    async def read(self, extent: Extent, record: BlockRecord, into: memoryview) -> None:
        """See `Tier`. What is checked is the copy in `into`. Raises BadRequest when `into` is too small."""
        check_room(record, into)
        self._ledger.check_committed(extent, record)
        payload = into[: record.size]

        def copy_and_check() -> bytes:
            self.memory.read(extent.offset, payload)
            return payload_checksum(payload)

        try:
            digest = await run_off_loop(self._executor, copy_and_check)
        except OSError as error:
            raise CorruptBlock(record.name, self.name.name.lower(), f"unreadable ({error})") from error
        check_digest(self.name, record, digest)

    def free(self, extent: Extent) -> None:
        self._ledger.free(extent)

    def keys(self) -> Iterator[tuple[int, bytes]]:
        return self._ledger.keys()

    def export_handle(self) -> bytes:
        """The device memory's CUDA IPC handle as msgpack, one for each worker; raises BadRequest on cpu."""
        return self.memory.export_handle()

    async def close(self) -> None:
        """See `Tier`. Idempotent."""
        await run_off_loop(self._executor, self.memory.close)
