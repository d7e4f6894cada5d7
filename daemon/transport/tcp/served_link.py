"""The answering side of a link over TCP: what one peer asks, and what it holds here until the link ends."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from mooncask.daemon.transport import messages
from mooncask.daemon.transport.messages import (
    Answer,
    Ask,
    Cancel,
    Ending,
    Lease,
    Leased,
    LeaseWriting,
    Ping,
    Pong,
    Release,
)
from mooncask.daemon.transport.served_leases import ServedLeases
from mooncask.daemon.transport.tcp.channel import Channel
from mooncask.daemon.transport.tcp.sender import Sender
from mooncask.daemon.transport.tcp.settings import ServeSettings
from mooncask.daemon.transport.transport import BlockProvider, Handler, HeldBlock, PeerInfo
from mooncask.errors import BadRequest, Busy, DeadlineExceeded, MooncaskError, PeerUnavailable

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 1.0
"""How long a peer may take to read why its link has ended."""


class Numbers(Protocol):
    """Where lease ids come from."""

    def take(self, count: int) -> Sequence[int]: ...


LinkHandler = Callable[["ServedLink", bytes], Awaitable[bytes]]
"""As `transport.Handler`, for what belongs to one link and not only to its peer."""


class ServedLink:
    """One peer's link. `run` serves it until it ends, and ends what it holds."""

    def __init__(
        self,
        peer: PeerInfo,
        channel: Channel,
        provider: BlockProvider,
        handlers: Mapping[str, Handler],
        link_handlers: "Mapping[str, LinkHandler]",
        numbers: Numbers,
        settings: ServeSettings,
    ) -> None:
        self.peer = peer
        self._channel = channel
        self._provider = provider
        self._handlers = handlers
        self._link_handlers = link_handlers
        self._numbers = numbers
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.leases = ServedLeases(settings.leases, provider.drop, self._drop_soon)
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._lock = threading.Lock()
        self._senders: set[Sender] = set()
        self._over = False
        self.bytes_sent = 0
        self.problem = ""
        self._farewell: asyncio.TimerHandle | None = None
        self._revoke: Callable[[], Awaitable[None]] | None = None
        self._revocation: asyncio.Task[None] | None = None

    def held(self, lease: int) -> HeldBlock | None:
        """See `Guest`."""
        return self.leases.held(lease)

    # --- threads that send ---

    def attach(self, sender: Sender) -> None:
        with self._lock:
            if self._over:
                raise PeerUnavailable(self.peer.name, "its link has ended")
            if len(self._senders) >= self._settings.connections_of_a_link_max:
                raise Busy(f"this link has {len(self._senders)} data connections already")
            self._senders.add(sender)

    def detach(self, sender: Sender) -> None:
        with self._lock:
            self._senders.discard(sender)

    def sent(self, size_bytes: int) -> None:
        with self._lock:
            self.bytes_sent += size_bytes

    def _drop_soon(self, held: HeldBlock) -> None:
        self._loop.call_soon_threadsafe(self._provider.drop, held)

    # --- life ---

    async def run(self) -> None:
        """Serves until the peer leaves, says nonsense, or `end` is called."""
        try:
            while True:
                self._take(messages.parse_request(await self._channel.receive()))
        except PeerUnavailable as error:
            self.end(error.why)
        except BadRequest as error:
            log.warning("peer %s: %s; its link is ended", self.peer.name, error.message)
            self.end(error.message)
        finally:
            self.end("this node stops")
            await self._requests_over()
            if self._revocation is not None:
                await asyncio.wait([self._revocation])  # cancelled here, it goes on: leases end when it is over
            await self._channel.closed()
            if self._farewell is not None:
                self._farewell.cancel()

    def end(self, reason: str) -> None:
        """From here on nothing is served; leases end, but for what is being sent right now. Idempotent."""
        with self._lock:
            if self._over:
                return
            self._over = True
            senders = list(self._senders)
        self.problem = reason
        try:
            self._channel.send(Ending(0, reason))
        except MooncaskError:
            self._channel.abort()
        else:
            self._channel.finish()
            self._farewell = self._loop.call_later(FAREWELL_SECONDS, self._channel.abort)
        for sender in senders:
            sender.interrupt()
        for task in self._requests.values():
            task.cancel()
        if self._revoke is None:
            self.leases.end()
        else:
            self._revocation = self._loop.create_task(self._revoked(self._revoke))

    def revoke_with(self, revoke: Callable[[], Awaitable[None]]) -> None:
        """The peer reads leased memory without asking: at the link's end `revoke` stops that before the leases end. Raises PeerUnavailable."""
        if self._over:
            raise PeerUnavailable(self.peer.name, "its link has ended")
        self._revoke = revoke

    async def _revoked(self, revoke: Callable[[], Awaitable[None]]) -> None:
        try:
            await revoke()
        finally:
            self.leases.end()

    def abort(self) -> None:
        """As `end`, for a peer that does not take what it is sent."""
        self.end("the peer is silent")
        self._channel.abort()

    async def _requests_over(self) -> None:
        if self._requests:
            await asyncio.gather(*self._requests.values(), return_exceptions=True)

    def check(self, now_seconds: float) -> None:
        """Ends the link if the peer is silent, or keeps a lease for too long."""
        if now_seconds - self._channel.heard_seconds > self._settings.silence_seconds:
            log.warning("peer %s: nothing was heard of it for %.0f s", self.peer.name, self._settings.silence_seconds)
            self.abort()
            return
        oldest = self.leases.oldest_seconds()
        if oldest is not None and now_seconds - oldest > self._settings.lease_seconds_max:
            log.warning("peer %s keeps a lease too long; its link is ended", self.peer.name)
            self.end("a lease was kept longer than limits.lease_max")

    # --- requests ---

    def _take(self, request: messages.Request) -> None:
        match request:
            case Ping():
                self._send(Pong(request.id))
            case Release():
                self.leases.release(request.leases)
            case Cancel():
                if (task := self._requests.get(request.id)) is not None:
                    task.cancel()
            case Lease() | LeaseWriting() | Ask():
                self._start(request)

    def _start(self, request: Lease | LeaseWriting | Ask) -> None:
        number = request.id
        if len(self._requests) >= self._settings.requests_max or number in self._requests:
            busy = Busy(f"{len(self._requests)} requests of this link are under way")
            self._send(messages.failed(number, busy))
            return
        task = self._requests[number] = self._loop.create_task(self._answer(request))
        task.add_done_callback(lambda _: self._requests.pop(number, None))

    async def _answer(self, request: Lease | LeaseWriting | Ask) -> None:
        """The top of a request's task: whatever happens in it ends here."""
        answer: msgspec.Struct
        try:
            answer = await (self._ask(request) if isinstance(request, Ask) else self._lease(request))
        except MooncaskError as error:
            answer = messages.failed(request.id, error)
        except Exception:
            log.exception("a request of peer %s failed by a fault of this daemon", self.peer.name)
            fault = PeerUnavailable(self.peer.name, "a fault of its own; its log says where")
            answer = messages.failed(request.id, fault)
        self._send(answer)

    def _send(self, message: msgspec.Struct) -> None:
        if self._over:
            return
        try:
            self._channel.send(message)
        except BadRequest as error:
            if isinstance(message, Leased):
                self.leases.release(message.leases)
            self._channel.send(messages.failed(getattr(message, "id", 0), error))
        except PeerUnavailable as error:
            self.end(error.why)
            self._channel.abort()

    async def _lease(self, request: Lease | LeaseWriting) -> Leased:
        messages.check_keys(request.namespace, request.keys)
        self.leases.check_room(len(request.keys))
        deadline = time.monotonic() + request.deadline_ms / 1000
        if isinstance(request, Lease):
            held = await self._provider.hold(request.namespace, request.keys, deadline)
        else:
            held = self._provider.hold_writing(request.namespace, request.keys)
        # No await from here to the grant: whoever holds these is either this task or the table.
        here = [block for block in held if block is not None]
        numbers = self._numbers.take(len(here))
        try:
            self.leases.grant(numbers, here, time.monotonic())
        except MooncaskError:
            for block in here:
                self._provider.drop(block)
            raise
        return leased(request, held, numbers)

    async def _ask(self, request: Ask) -> Answer:
        handler, of_link = self._handlers.get(request.kind), self._link_handlers.get(request.kind)
        if handler is not None:
            answer = handler(self.peer, request.payload)
        elif of_link is not None:
            answer = of_link(self, request.payload)
        else:
            raise BadRequest(f'nobody here answers "{request.kind[:64]}"')
        seconds = request.deadline_ms / 1000
        try:
            async with asyncio.timeout(seconds):
                payload = await answer
        except TimeoutError:
            raise DeadlineExceeded(f"{request.kind} at peer", seconds) from None
        if len(payload) > messages.ASK_BYTES_MAX:
            raise BadRequest(f"an answer of {len(payload)} bytes; at most {messages.ASK_BYTES_MAX} are allowed")
        return Answer(request.id, payload)


def leased(request: Lease | LeaseWriting, held: Sequence[HeldBlock | None], numbers: Sequence[int]) -> Leased:
    given = iter(numbers)
    return Leased(
        request.id,
        [0 if block is None else next(given) for block in held],
        request.keys,
        [0 if block is None else len(block.payload) for block in held],
        [b"" if block is None else block.checksum for block in held],
        [b"" if block is None else block.parent for block in held],
        [0 if block is None else block.depth for block in held],
        [0 if block is None else block.tokens for block in held],
        [b"" if block is None else block.attributes for block in held],
        [0 if block is None else block.extent.offset for block in held],
    )
