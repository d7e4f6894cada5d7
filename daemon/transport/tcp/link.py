"""The asking side of a link over TCP: one control connection, and lanes for the bytes (`lanes.py`)."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from mooncask.daemon.transport import messages
from mooncask.daemon.transport.messages import Answer, Ask, Cancel, Ending, Failed, Leased, Ping, Pong, ReadPieces
from mooncask.daemon.transport.pieces import Piece, cut_stripes
from mooncask.daemon.transport.tcp.channel import Channel
from mooncask.daemon.transport.tcp.lane import Destination, Job
from mooncask.daemon.transport.tcp.lanes import Lanes
from mooncask.daemon.transport.tcp.settings import LinkSettings
from mooncask.daemon.transport.transport import LinkLoad, PeerInfo, RemoteBlock
from mooncask.errors import BadRequest, Busy, DeadlineExceeded, OutOfBounds, PeerUnavailable
from mooncask.tiers.block import printable_key

log = logging.getLogger(__name__)

READS_AT_ONCE = 2
"""Reads that share the lanes between them most of the time, as a pull has them: each is cut for its part of the lanes, since every
stripe costs both sides a turn of their loops."""
Reply = TypeVar("Reply", bound=messages.Message)


class TcpLink:
    """See `transport.Link`. Made by `dial.py`, after the handshake."""

    def __init__(self, channel: Channel, to: Destination, settings: LinkSettings) -> None:
        self._channel = channel
        self._peer = to.peer
        self._settings = settings
        self._lanes = Lanes(to, settings.connections)
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[messages.Message]] = {}
        self._leases: set[int] = set()
        self._reads = 0
        self._read_since = 0.0
        self._read_seconds = 0.0
        self._round_trip_seconds = 0.0
        self.problem = ""
        """Why the link ended."""
        self.ended = asyncio.Event()
        self._tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._keep_alive())]

    @property
    def peer(self) -> PeerInfo:
        return self._peer

    @property
    def alive(self) -> bool:
        return not self.problem

    @property
    def load(self) -> LinkLoad:
        busy = time.monotonic() - self._read_since if self._reads else 0.0
        return LinkLoad(
            self._lanes.bytes_received, self._read_seconds + busy, len(self._leases), self._round_trip_seconds
        )

    # --- leases ---

    async def lease(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        asked = list(keys)
        messages.check_keys(ns_id, asked)
        request = messages.Lease(next(self._numbers), ns_id, asked, milliseconds_left(deadline))
        return await self._leased(request, deadline)

    async def lease_writing(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        asked = list(keys)
        messages.check_keys(ns_id, asked)
        request = messages.LeaseWriting(next(self._numbers), ns_id, asked, milliseconds_left(deadline))
        return await self._leased(request, deadline)

    async def _leased(
        self, request: messages.Lease | messages.LeaseWriting, deadline: float
    ) -> list[RemoteBlock | None]:
        reply = await self._call(request, deadline, Leased)
        numbers = [number for number in reply.leases if number]
        if reply.keys != request.keys:
            self._end("it answered for other keys than it was asked for")
        elif len(set(numbers)) < len(numbers) or not self._leases.isdisjoint(numbers):
            self._end("it gave one lease for two blocks")  # whoever holds one by its number would lose the other
        self._raise_if_over()
        self._leases.update(numbers)
        return remote_blocks(reply)

    def release(self, blocks: Sequence[RemoteBlock]) -> None:
        self._release([block.lease for block in blocks])

    def _release(self, numbers: Sequence[int]) -> None:
        self._leases.difference_update(numbers)
        if numbers:
            self._send(messages.Release(0, list(numbers)))

    # --- bytes ---

    async def read(self, blocks: Sequence[RemoteBlock], into: Sequence[memoryview], deadline: float) -> list[bytes]:
        targets = [target.cast("B") for target in into]
        for block, target in zip(blocks, targets, strict=True):
            if len(target) < block.size:
                raise OutOfBounds(printable_key(block.key), 0, block.size, len(target))
            if target.readonly:
                raise BadRequest("memory to read into must be writable")
        stripes = cut_stripes([block.size for block in blocks], -(-self._settings.connections // READS_AT_ONCE))
        jobs = [self._job(stripe, blocks, targets, deadline) for stripe in stripes]
        targets.clear()
        self._raise_if_over()
        self._note_reads(1)
        try:
            await self._lanes.carry(jobs, deadline)
        finally:
            self._note_reads(-1)
        return _digests(len(blocks), stripes, jobs)

    def _job(
        self, stripe: list[Piece], blocks: Sequence[RemoteBlock], targets: Sequence[memoryview], deadline: float
    ) -> Job:
        request = ReadPieces(
            [blocks[piece.index].lease for piece in stripe],
            [blocks[piece.index].start + piece.start for piece in stripe],
            [piece.length for piece in stripe],
        )
        parts = [targets[piece.index][piece.start : piece.start + piece.length] for piece in stripe]
        whole = [piece.length == blocks[piece.index].size for piece in stripe]
        size_bytes = sum(piece.length for piece in stripe)
        done = asyncio.get_running_loop().create_future()
        return Job(messages.frame(request), parts, whole, size_bytes, deadline, done)

    def _note_reads(self, change: int) -> None:
        """Time in which several reads are under way counts once."""
        now = time.monotonic()
        if self._reads:
            self._read_seconds += now - self._read_since
        self._reads += change
        self._read_since = now

    # --- anything else ---

    async def ask(self, kind: str, payload: bytes, deadline: float) -> bytes:
        if len(payload) > messages.ASK_BYTES_MAX:
            raise BadRequest(f"{len(payload)} bytes to ask a peer; at most {messages.ASK_BYTES_MAX} are allowed")
        request = Ask(next(self._numbers), kind, payload, milliseconds_left(deadline))
        return (await self._call(request, deadline, Answer)).payload

    # --- requests and replies ---

    async def _call(self, request: messages.Message, deadline: float, kind: type[Reply]) -> Reply:
        """The reply. A caller who leaves before it came leaves nothing held at the peer."""
        self._raise_if_over()
        if len(self._pending) >= self._settings.requests_max:
            raise Busy(f"{len(self._pending)} requests to {self._peer.name} are under way")
        began = time.monotonic()
        reply = self._pending[request.id] = asyncio.get_running_loop().create_future()
        try:
            self._send(request)
            async with asyncio.timeout_at(deadline):
                return self._checked(await reply, kind)
        except TimeoutError:
            self._leave(request.id, reply)
            raise DeadlineExceeded(f"peer {self._peer.name}", max(0.0, deadline - began)) from None
        except BaseException:
            self._leave(request.id, reply)
            raise
        finally:
            self._pending.pop(request.id, None)

    def _checked(self, reply: messages.Message, kind: type[Reply]) -> Reply:
        if isinstance(reply, Failed):
            raise messages.error_of(reply)
        if not isinstance(reply, kind):
            self._end(f"it answered {type(reply).__name__} in the place of {kind.__name__}")
            raise PeerUnavailable(self._peer.name, self.problem)
        return reply

    def _leave(self, number: int, reply: asyncio.Future[messages.Message]) -> None:
        if not reply.done() or reply.cancelled():
            self._send(Cancel(number))
        elif reply.exception() is None and isinstance(came := reply.result(), Leased):
            self._give_back(came)

    def _give_back(self, reply: Leased) -> None:
        """Nobody waits for these any more."""
        self._release([number for number in reply.leases if number])

    def _send(self, message: msgspec.Struct) -> None:
        """What can't be sent ends the link: the other side would be told half of what happens."""
        if self.problem:
            return
        try:
            self._channel.send(message)
        except PeerUnavailable as error:
            self._end(error.why)

    async def _receive(self) -> None:
        try:
            while True:
                self._take(messages.parse_reply(await self._channel.receive()))
        except PeerUnavailable as error:
            self._end(error.why)
        except BadRequest as error:
            log.warning("peer %s: %s; the link is ended", self._peer.name, error.message)
            self._end(error.message)

    def _take(self, reply: messages.Message) -> None:
        if isinstance(reply, Ending):
            raise PeerUnavailable(self._peer.name, f"ended the link: {reply.reason[:300]}")
        waiting = self._pending.pop(reply.id, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)
        elif isinstance(reply, Leased):
            self._give_back(reply)

    async def _keep_alive(self) -> None:
        settings = self._settings
        while True:
            await asyncio.sleep(settings.keepalive_seconds)
            silent = time.monotonic() - self._channel.heard_seconds
            if silent > settings.silence_seconds:
                self._end(f"nothing was heard of it for {silent:.1f} s")
                return
            self._lanes.retire_idle(settings.idle_seconds)
            began = time.monotonic()
            with contextlib.suppress(DeadlineExceeded, Busy):
                await self._call(Ping(next(self._numbers)), began + settings.keepalive_seconds, Pong)
                self._round_trip_seconds = time.monotonic() - began

    # --- the end ---

    def _raise_if_over(self) -> None:
        if self.problem:
            raise PeerUnavailable(self._peer.name, self.problem)

    def _end(self, why: str) -> None:
        """Calls under way fail now; reads fail when their threads are out of the callers' memory."""
        if self.problem:
            return
        self.problem = why or "the link has ended"
        self.ended.set()
        self._leases.clear()
        self._channel.abort()
        for waiting in self._pending.values():
            if not waiting.done():
                waiting.set_exception(PeerUnavailable(self._peer.name, self.problem))
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._tasks.append(asyncio.create_task(self._lanes.close()))

    async def close(self) -> None:
        self._end("it was closed here")
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.closed()


def remote_blocks(reply: Leased) -> list[RemoteBlock | None]:
    columns = zip(
        reply.leases,
        reply.keys,
        reply.sizes,
        reply.checksums,
        reply.parents,
        reply.depths,
        reply.tokens,
        reply.attributes,
        reply.offsets,
        strict=True,
    )
    return [RemoteBlock(*column) if column[0] else None for column in columns]


def _digests(blocks: int, stripes: Sequence[Sequence[Piece]], jobs: Sequence[Job]) -> list[bytes]:
    """As `Link.read` answers them, of jobs that are done."""
    found = [b""] * blocks
    for stripe, job in zip(stripes, jobs, strict=True):
        for piece, digest in zip(stripe, job.digests, strict=True):
            found[piece.index] = digest
    return found


def milliseconds_left(deadline: float) -> int:
    return max(0, round((deadline - time.monotonic()) * 1000))
