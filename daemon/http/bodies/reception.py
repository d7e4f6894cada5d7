"""The body of a PUT or of a part on its way to a writer, hashed beside reception; whoever sends too slowly is cut off."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.bodies.body import IncomingBody
from mooncask.daemon.http.bodies.running_digests import RunningDigests
from mooncask.errors import DeadlineExceeded

STRIDE_BYTES = 16 << 20
"""The slowest sender that is allowed holds a place in memory for as long as this much takes."""


class Sink(Protocol):
    async def write(self, piece: memoryview) -> None: ...


@dataclass(frozen=True, slots=True)
class Digested:
    """What was received, as far as it was hashed: digests by name, and the checksums that the client gave, in base64."""

    digests: Mapping[str, bytes]
    checksums: dict[str, str]

    def etag(self) -> str:
        """MD5 in hex where it was made; else empty, for an ETag from the stored checksums."""
        return self.digests["md5"].hex() if "md5" in self.digests else ""


async def receive(body: IncomingBody, sink: Sink, names: Iterable[str], config: HttpSection) -> Digested:
    """All of it, verified against what the client said of it. Raises DeadlineExceeded for one that comes too slowly, Refused for
    one that is not as announced, and what the sink raises."""
    digests = RunningDigests(body.wanted | frozenset(names))
    loop = asyncio.get_running_loop()
    seconds = config.grace + min(body.size, STRIDE_BYTES) / config.rate_min
    came = mark = 0
    try:
        async with asyncio.timeout(seconds) as limit:
            async for piece in body:
                await sink.write(piece)
                await digests.feed(piece)
                came += piece.nbytes
                if came - mark >= STRIDE_BYTES:
                    mark = came
                    limit.reschedule(loop.time() + seconds)
            found = await digests.finish()
    except TimeoutError as error:
        raise DeadlineExceeded(f"body of {body.size} bytes, {came} came (http.rate_min)", seconds) from error
    await body.verify(found)
    return Digested(found, body.checksums)
