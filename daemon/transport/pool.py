"""Links by address: made when somebody needs one, shared, and left alone for a while after a failure."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from mooncask.daemon.config_source import split_listen
from mooncask.daemon.transport.transport import Link, LinkLoad, PeerState
from mooncask.errors import BadRequest, Busy, DeadlineExceeded, MooncaskError, PeerChanged, PeerUnavailable

BACKOFF_SECONDS = 0.1
BACKOFF_SECONDS_MAX = 5.0
ADDRESSES_MAX = 4096
_NOTHING = LinkLoad(0, 0.0, 0, 0.0)

Dial = Callable[[str, int], Awaitable[Link]]


@dataclass(slots=True)
class _Way:
    """The way to one address."""

    address: str
    link: Link | None = None
    attempt: "asyncio.Task[Link] | None" = None
    failures: int = 0
    wait_until: float = 0.0
    error: MooncaskError | None = None
    bytes_received: int = 0
    receive_seconds: float = 0.0
    """Of links that have ended."""
    last: Link | None = None

    def state(self) -> PeerState:
        known = self.link or self.last
        load = known.load if known is not None else _NOTHING
        alive = self.link is not None and self.link.alive
        problem = self.error.message if self.error is not None else known.problem if known is not None else ""
        return PeerState(
            address=self.address,
            name=known.peer.name if known is not None else "",
            incarnation=known.peer.incarnation if known is not None else b"",
            transport=known.peer.transport if known is not None else "",
            connected=alive,
            problem="" if alive else problem,
            load=LinkLoad(
                self.bytes_received + load.bytes_received,
                self.receive_seconds + load.receive_seconds,
                load.leases if alive else 0,
                load.round_trip_seconds if alive else 0.0,
            ),
        )


class Links:
    """See `transport.LinkPool`. `dial(host, port)` makes a link within its own time."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._ways: dict[str, _Way] = {}
        self._closed = False

    async def link(self, address: str, deadline: float, incarnation: bytes = b"") -> Link:
        if self._closed:
            raise PeerUnavailable(address, "this node stops")
        way = self._way(address)
        link = way.link
        if link is None or not link.alive:
            link = await self._made(way, deadline)
        found = link.peer.incarnation
        if incarnation and found != incarnation:
            raise PeerChanged(link.peer.name, incarnation.hex(), found.hex())
        return link

    def links(self) -> list[Link]:
        return [way.link for way in self._ways.values() if way.link is not None and way.link.alive]

    def states(self) -> list[PeerState]:
        return [way.state() for way in self._ways.values()]

    async def close(self) -> None:
        self._closed = True
        attempts = [way.attempt for way in self._ways.values() if way.attempt is not None]
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        await asyncio.gather(*(way.last.close() for way in self._ways.values() if way.last is not None))

    # --- making one ---

    def _way(self, address: str) -> _Way:
        way = self._ways.get(address)
        if way is None:
            if len(self._ways) >= ADDRESSES_MAX:
                self._forget_one()
            way = self._ways[address] = _Way(address)
        return way

    def _forget_one(self) -> None:
        """Raises Busy when all addresses are in use."""
        for address, way in self._ways.items():
            if way.attempt is None and (way.link is None or not way.link.alive):
                del self._ways[address]
                return
        raise Busy(f"this node has links to {ADDRESSES_MAX} others")

    async def _made(self, way: _Way, deadline: float) -> Link:
        """Everybody who waits shares one attempt, and each leaves it at his own deadline."""
        if way.attempt is None:
            if time.monotonic() < way.wait_until and way.error is not None:
                raise PeerUnavailable(way.address, f"was tried a moment ago: {way.error.message[:300]}")
            way.attempt = asyncio.create_task(self._attempt(way))
            way.attempt.add_done_callback(_seen)
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline):
                return await asyncio.shield(way.attempt)
        except TimeoutError:
            raise DeadlineExceeded(f"link to {way.address}", max(0.0, deadline - began)) from None

    async def _attempt(self, way: _Way) -> Link:
        try:
            if way.last is not None:
                await self._bury(way, way.last)
            try:
                host, port = split_listen(way.address)
            except MooncaskError:
                raise BadRequest(f'"{way.address[:80]}" is no host:port of a peer') from None
            link = await self._dial(host, port)
        except MooncaskError as error:
            way.failures += 1
            way.error = error.with_traceback(None)
            way.wait_until = time.monotonic() + backoff_seconds(way.failures)
            raise
        finally:
            way.attempt = None
        way.link = way.last = link
        way.failures, way.error = 0, None
        return link

    async def _bury(self, way: _Way, old: Link) -> None:
        """Its numbers are kept, its threads and tasks end before there is another."""
        way.link = None
        await old.close()
        way.bytes_received += old.load.bytes_received
        way.receive_seconds += old.load.receive_seconds
        way.last = None


def backoff_seconds(failures: int) -> float:
    """After so many failures in a row."""
    return float(min(BACKOFF_SECONDS_MAX, BACKOFF_SECONDS * 2 ** min(failures - 1, 16)))


def _seen(attempt: "asyncio.Task[Link]") -> None:
    """Those who waited may all have left; what went wrong stands in the way's state."""
    if not attempt.cancelled():
        attempt.exception()
