"""One get that waits for a block somebody else is putting."""

import asyncio
from collections.abc import Callable

from mooncask.daemon.arrivals import Layers


class Waiter:
    """Registered in `Arrivals` while it waits. Woken once; later wakes change nothing."""

    __slots__ = ("_published", "progress")

    def __init__(self, on_progress: Callable[[Layers], None]) -> None:
        self._published: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.progress = on_progress

    def wake(self, *, published: bool) -> None:
        if not self._published.done():
            self._published.set_result(published)

    async def until(self, deadline: float) -> bool:
        """Whether the block was published by `deadline` (time of the loop's clock, which is time.monotonic)."""
        try:
            async with asyncio.timeout_at(deadline):
                return await self._published
        except TimeoutError:
            return False
