"""A link whose blocks come by RDMA: everything but the bytes goes over the TCP link beneath it.

    by RDMA ──(the queue pair is lost, and a new one too, or none can be made)──> over TCP
       ^                                                                            │
       └──(a new queue pair, tried beside the reads, at intervals that grow)────────┘

Where RDMA is demanded there is no way over TCP: the read fails.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Sequence

from mooncask.daemon.transport.rdma.device import OpenDevice
from mooncask.daemon.transport.rdma.engine import PairLost
from mooncask.daemon.transport.rdma.regions import Span
from mooncask.daemon.transport.rdma.session import Session
from mooncask.daemon.transport.tcp.link import TcpLink
from mooncask.daemon.transport.transport import LinkLoad, PeerInfo, RemoteBlock
from mooncask.errors import BadRequest, DeadlineExceeded, MooncaskError, OutOfBounds, PeerUnavailable
from mooncask.tiers.block import printable_key

log = logging.getLogger(__name__)

ATTEMPTS = 2
"""Of a read whose queue pair was lost: a new one, once."""
AGAIN_SECONDS, AGAIN_SECONDS_MAX = 30.0, 600.0
"""After RDMA broke, until it is tried again; doubled each time that it breaks before anything came."""
CONNECT_SECONDS = 5.0


class RdmaLink:
    """See `transport.Link`. Owns `inner`. Memory that is not the arena's is read over TCP: nothing else is registered."""

    def __init__(
        self,
        inner: TcpLink,
        device: OpenDevice,
        session: Session | None,
        *,
        demanded: bool = True,
        again_seconds: float = AGAIN_SECONDS,
    ) -> None:
        """Without a `session` it begins over TCP."""
        self._inner = inner
        self._device = device
        self._session = session
        self._demanded = demanded
        self._again_seconds = self._wait_seconds = again_seconds
        self._over_tcp = session is None
        self._again_at = time.monotonic() + again_seconds
        self._retry: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._reads = 0
        self._read_since = 0.0
        self._read_seconds = 0.0
        self._bytes_received = 0
        self.sessions = int(session is not None)
        """Queue pairs that this link has had."""
        self._watch = asyncio.create_task(self._close_with_inner())

    @property
    def peer(self) -> PeerInfo:
        return self._inner.peer if self._over_tcp else dataclasses.replace(self._inner.peer, transport="rdma")

    @property
    def alive(self) -> bool:
        return self._inner.alive

    @property
    def problem(self) -> str:
        return self._inner.problem

    @property
    def load(self) -> LinkLoad:
        busy = time.monotonic() - self._read_since if self._reads else 0.0
        beneath = self._inner.load
        return dataclasses.replace(
            beneath,
            bytes_received=beneath.bytes_received + self._bytes_received,
            receive_seconds=beneath.receive_seconds + self._read_seconds + busy,
        )

    async def lease(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        return await self._inner.lease(ns_id, keys, deadline)

    async def lease_writing(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        return await self._inner.lease_writing(ns_id, keys, deadline)

    def release(self, blocks: Sequence[RemoteBlock]) -> None:
        self._inner.release(blocks)

    async def ask(self, kind: str, payload: bytes, deadline: float) -> bytes:
        return await self._inner.ask(kind, payload, deadline)

    # --- bytes ---

    async def read(self, blocks: Sequence[RemoteBlock], into: Sequence[memoryview], deadline: float) -> list[bytes]:
        spans: list[Span] = []
        for block, target in zip(blocks, into, strict=True):
            if target.nbytes < block.size:
                raise OutOfBounds(printable_key(block.key), 0, block.size, target.nbytes)
            if target.readonly:
                raise BadRequest("memory to read into must be writable")
            offset = self._device.offset_of(target.cast("B")[: block.size])
            if offset is None:
                return await self._inner.read(blocks, into, deadline)
            spans.append(Span(block.offset + block.start, offset, block.size))
        if self._over_tcp:
            self._try_again_in_time()
            return await self._inner.read(blocks, into, deadline)
        self._note_reads(1)
        try:
            await self._read(spans, deadline)
        except (PeerUnavailable, BadRequest) as error:
            if self._demanded or not self.alive:
                raise
            self._fall_back(error)
        else:
            self._wait_seconds = self._again_seconds
            return [b""] * len(blocks)
        finally:
            self._note_reads(-1)
        return await self._inner.read(blocks, into, deadline)

    async def _read(self, spans: Sequence[Span], deadline: float) -> None:
        began = time.monotonic()
        failures = 0
        while True:
            session = await self._connected(deadline)
            try:
                await session.read(spans, deadline)
            except PairLost as lost:
                await self._forget(session)
                failures += not lost.blameless
                if failures >= ATTEMPTS or not self.alive:
                    raise PeerUnavailable(self.peer.name, self.problem or f"RDMA: {lost.why}") from lost
                log.info("peer %s: RDMA: %s; a new queue pair is made", self.peer.name, lost.why)
            except TimeoutError:
                await self._forget(session)
                raise DeadlineExceeded(f"read from peer {self.peer.name}", max(0.0, deadline - began)) from None
            else:
                self._bytes_received += sum(span.length for span in spans)
                return

    async def _connected(self, deadline: float) -> Session:
        """The one that is there, or a new one; tasks that want one at the same time share it."""
        began = time.monotonic()
        try:
            async with asyncio.timeout_at(deadline), self._connecting:
                if not self.alive:
                    raise PeerUnavailable(self.peer.name, self.problem)
                if self._session is None:
                    self._session = await Session.connect(self._device, self._inner, deadline)
                    self.sessions += 1
                return self._session
        except TimeoutError:
            raise DeadlineExceeded(f"RDMA to peer {self.peer.name}", max(0.0, deadline - began)) from None

    # --- over TCP for a while ---

    def _fall_back(self, error: MooncaskError) -> None:
        """The queue pair is gone: nothing writes into the caller's memory any more. Of reads that fail together the first counts."""
        if self._over_tcp:
            return
        self._over_tcp = True
        self._again_at = time.monotonic() + self._wait_seconds
        log.warning(
            "%s; its blocks come over TCP, and RDMA is tried again in %.0f s", error.message, self._wait_seconds
        )
        self._wait_longer()

    def _try_again_in_time(self) -> None:
        if self._retry is None and self.alive and time.monotonic() >= self._again_at:
            self._retry = asyncio.create_task(self._try_again())

    async def _try_again(self) -> None:
        """Beside the reads, which go on over TCP meanwhile."""
        name = self._inner.peer.name
        try:
            async with self._connecting:
                session = await Session.connect(self._device, self._inner, time.monotonic() + CONNECT_SECONDS)
                if not self.alive:
                    await session.close()
                    return
                self._session = session
                self.sessions += 1
            self._over_tcp = False
            log.info("peer %s: blocks come by RDMA again", name)
        except MooncaskError as error:
            log.debug("peer %s: still no RDMA: %s", name, error.message)
            self._again_at = time.monotonic() + self._wait_seconds
            self._wait_longer()
        finally:
            self._retry = None

    def _wait_longer(self) -> None:
        self._wait_seconds = min(AGAIN_SECONDS_MAX, 2 * self._wait_seconds)

    async def _forget(self, session: Session) -> None:
        if self._session is session:
            self._session = None
        await session.close()

    def _note_reads(self, change: int) -> None:
        """Time in which several reads are under way counts once."""
        now = time.monotonic()
        if self._reads:
            self._read_seconds += now - self._read_since
        self._reads += change
        self._read_since = now

    # --- the end ---

    async def _close_with_inner(self) -> None:
        """Reads under way fail when the link does, and not when the device finds that nobody answers."""
        await self._inner.ended.wait()
        async with self._connecting:
            if self._session is not None:
                await self._forget(self._session)

    async def close(self) -> None:
        await self._inner.close()
        await asyncio.wait([task for task in (self._watch, self._retry) if task is not None])
