"""Where an untrusted writer puts its bytes: memory of its own, from which commit copies into the arena."""

import asyncio

from mooncask.errors import BadRequest, Busy
from mooncask.tiers.allocator import Allocator
from mooncask.tiers.arena import StagingArea


class Staging:
    """One connection's staging area and what of it is in use. Views that are being copied from outlive `close`."""

    def __init__(self, capacity_bytes: int) -> None:
        self.area = StagingArea(capacity_bytes)
        self._allocator = Allocator(capacity_bytes)
        self._changed = asyncio.Event()

    async def allocate(self, sizes: list[int], deadline: float) -> list[int]:
        """Offsets for all `sizes`, or none: Busy at the deadline (the loop's time); BadRequest for what never fits."""
        if sum(sizes) > self.area.capacity_bytes:
            raise BadRequest(
                f"a batch of {sum(sizes)} bytes; this connection's staging area has {self.area.capacity_bytes} "
                "(socket.staging): reserve in smaller batches"
            )
        try:
            async with asyncio.timeout_at(deadline):
                while (offsets := self._try(sizes)) is None:
                    self._changed.clear()
                    await self._changed.wait()
                return offsets
        except TimeoutError as error:
            raise Busy("no room in this connection's staging area; commit or abort what is open") from error

    def free(self, offset: int, size: int) -> None:
        self._allocator.free(offset, max(1, size))
        self._changed.set()

    def view(self, offset: int, size: int) -> memoryview:
        return self.area.view(offset, size)

    def close(self) -> None:
        self.area.close()

    def _try(self, sizes: list[int]) -> list[int] | None:
        offsets: list[int] = []
        for size in sizes:
            offset = self._allocator.allocate(max(1, size))
            if offset is None:
                for index, taken in enumerate(offsets):
                    self._allocator.free(taken, max(1, sizes[index]))
                return None
            offsets.append(offset)
        return offsets
