"""From an engine's threads to a reader on the event loop: lines in order, one reader, bounded by the answer itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from mooncask.client.worker_api import ALIVE_SECONDS, DecodeDone, Failure, PrefillDone, StreamLine


class LineStream:
    """`tell` from any thread; iterate on the loop that made it. Ends behind a PrefillDone, DecodeDone or Failure.

    What waits here is at most one answer's lines: an engine makes no more than max_tokens of them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: asyncio.Queue[StreamLine] = asyncio.Queue()

    def tell(self, line: StreamLine) -> None:
        """Passes a line on. A loop that has ended by now wants none."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._lines.put_nowait, line)

    async def __aiter__(self) -> AsyncIterator[list[StreamLine]]:
        """What has come together, in order; nothing at all after each ALIVE_SECONDS in which nothing came."""
        ended = False
        while not ended:
            lines = await self._next()
            ended = bool(lines) and isinstance(lines[-1], PrefillDone | DecodeDone | Failure)
            yield lines

    async def _next(self) -> list[StreamLine]:
        lines: list[StreamLine] = []
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ALIVE_SECONDS):
                lines.append(await self._lines.get())
        while not self._lines.empty():
            lines.append(self._lines.get_nowait())
        return lines
