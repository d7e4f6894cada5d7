"""One connection's protocol state: ids, calls under way, namespace handles, mapped memory. Does no I/O.

The sync client guards it with its lock, the async client owns it on its loop. What comes too late is not lost: leases in
an answer that nobody waits for are given back, and reservations are aborted.
"""

import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from mooncask.client import wire
from mooncask.client.arena_map import ArenaMap
from mooncask.client.blocks import Block, Blocks, Slot
from mooncask.client.frames import ReplyReader
from mooncask.client.leases import Bytes, LeaseBook, LeaseRef, Outbox, lease_died
from mooncask.errors import BadRequest, DaemonUnavailable, MooncaskError, UnknownReservation, revive

ProgressCallback = Callable[[int, int, int], None]
"""Called with (index of the key, layers written, layers in all)."""

Builder = Callable[[int, int], wire.Message]
"""Makes a request from its id and the namespace's handle on the connection."""


RESERVE_BYTES = 256 << 20
"""A put reserves at most this much at a time: a reservation is granted as a whole or not at all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a call is cut into requests."""

    batch: int
    """Keys a request."""
    reserve_bytes: int
    """Bytes a put reserves at a time."""


class Call:
    """A request under way and what was answered so far."""

    __slots__ = ("error", "finished", "id", "notify", "progress", "progressed", "replies")

    def __init__(self, id: int, progress: ProgressCallback | None = None) -> None:
        self.id = id
        self.replies: list[wire.Reply] = []
        self.progress = progress
        self.progressed: deque[wire.Progress] = deque()
        self.error: MooncaskError | None = None
        self.finished = False
        self.notify: Callable[[], None] | None = None
        """Called when something changed; for clients that don't poll `finished`."""

    def tell_progress(self) -> None:
        """Runs the caller's callback for what came since the last time."""
        while self.progressed:
            item = self.progressed.popleft()
            if self.progress is not None:
                self.progress(item.index, item.layer, item.layers)

    def results(self) -> list[wire.Reply]:
        """All replies of a finished call; raises what the daemon answered or what ended the connection."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.replies
        finally:
            del error  # or the error and this frame would keep each other, and views, alive until a collection

    def add(self, reply: wire.Reply) -> None:
        kind = type(reply)
        if kind is wire.Progress:
            self.progressed.append(reply)  # type: ignore[arg-type]  # mypy narrows by isinstance only, which costs more
        elif kind is wire.Failed:
            self.fail(revive(reply.error, reply.message, reply.data))  # type: ignore[union-attr]  # as above
            return
        else:
            self.replies.append(reply)
            self.finished = kind is not wire.Acquired or not reply.more  # type: ignore[union-attr]  # as above
        if self.notify is not None:
            self.notify()

    def fail(self, error: MooncaskError) -> None:
        self.error, self.finished = error, True
        if self.notify is not None:
            self.notify()


class Session:
    """The state of one connection to one start of the daemon. Not thread-safe."""

    def __init__(
        self, address: str, welcome: wire.Welcome, reading: ArenaMap, writing: ArenaMap | None, book: LeaseBook
    ):
        self.address = address
        self.welcome = welcome
        self.reading, self.writing = reading, writing
        self.book = book
        self.handles: dict[str, int] = {}
        """By the names of namespaces."""
        self.outbox = Outbox()
        self._encoder = msgspec.msgpack.Encoder()
        self._reader = ReplyReader()
        self._ids = itertools.count(1)
        self._waiting: dict[int, Call] = {}

    # --- out ---

    def begin(self, build: Builder, handle: int, progress: ProgressCallback | None = None) -> tuple[Call, bytes]:
        """A new call and the bytes to send for it, with whatever waited to be sent before them."""
        call = Call(next(self._ids), progress)
        data = wire.frame(self._encoder, build(call.id, handle))
        if len(data) - wire.HEADER.size > wire.FRAME_BYTES_MAX:
            raise BadRequest(
                f"request of {len(data)} bytes; at most {wire.FRAME_BYTES_MAX} fit: send fewer keys at a time"
            )
        self._waiting[call.id] = call
        return call, self.leftovers() + data if self.has_leftovers else data

    @property
    def has_leftovers(self) -> bool:
        return bool(self.book.pending or self.book.offered or self.outbox.aborts or self.book.parked.aborts)

    def leftovers(self) -> bytes:
        """Frames that give back what died since the last time; no answer to them is waited for."""
        frames: list[wire.Message] = []
        while ended := self.book.take_pending(wire.BATCH_MAX):
            frames.append(wire.Release(0, [lease for lease, _ in ended], [generation for _, generation in ended]))
        for lease, generation in self.book.take_unadopted():
            frames.append(wire.Release(next(self._ids), [lease], [generation]))
        for outbox in (self.outbox, self.book.parked):
            while aborted := outbox.take(wire.BATCH_MAX):
                # One by one: an unknown one among them would keep the others.
                frames += [wire.Abort(next(self._ids), [number], [generation]) for number, generation in aborted]
        return b"".join(wire.frame(self._encoder, frame) for frame in frames)

    # --- in ---

    def receive(self, data: bytes | memoryview) -> None:
        """Hands replies to their calls. Raises DaemonUnavailable for what is no reply; the connection is useless then."""
        try:
            replies = self._reader.feed(data)
        except BadRequest as exc:
            raise DaemonUnavailable(self.address, exc.what) from exc
        for reply in replies:
            call = self._waiting.get(reply.id)
            if call is None:
                self._give_back(reply)
                continue
            call.add(reply)
            if call.finished:
                del self._waiting[reply.id]

    def abandon(self, call: Call) -> None:
        """Nobody waits for this call any more; what it was given is given back, now and when more comes."""
        self._waiting.pop(call.id, None)
        for reply in call.replies:
            self._give_back(reply)
        call.replies = []

    def fail_all(self, why: str) -> None:
        """The connection is gone: no call under way gets an answer."""
        self.outbox.open = False
        waiting, self._waiting = self._waiting, {}
        for call in waiting.values():
            self.abandon(call)
            call.fail(DaemonUnavailable(self.address, why))

    def _give_back(self, reply: wire.Reply) -> None:
        if isinstance(reply, wire.Acquired | wire.Adopted):
            self.book.pending.extend(zip(reply.leases, reply.generations, strict=True))
        elif isinstance(reply, wire.Reserved):
            pairs = zip(reply.reservations, reply.generations, strict=True)
            self.outbox.aborts.extend(pair for pair in pairs if pair[0])

    @property
    def limits(self) -> Limits:
        staging = self.welcome.staging_bytes
        return Limits(self.welcome.batch_max, min(RESERVE_BYTES, staging // 2) if staging else RESERVE_BYTES)

    # --- what answers mean ---

    def acquired(self, keys: Sequence[bytes], replies: Sequence[wire.Reply]) -> Blocks:
        """The blocks of an Acquire's answers, over the mapped arena."""
        items: list[Block | None] = [None] * len(keys)
        token = b""
        for reply in replies:
            assert isinstance(reply, wire.Acquired)
            token = reply.token or token
            for index, block in zip(reply.index, self._leased([keys[i] for i in reply.index], reply), strict=True):
                items[index] = block
        return Blocks(items, self.book, token)

    def adopted(self, reply: wire.Adopted) -> Blocks:
        return Blocks(list(self._leased(reply.keys, reply)), self.book)

    def joined(self, reply: wire.Adopted) -> Blocks:
        """Places that another process has reserved, as blocks whose views may be written."""
        assert self.writing is not None
        return Blocks(list(self._leased(reply.keys, reply, self.writing)), self.book)

    def _leased(
        self, keys: Sequence[bytes], reply: wire.Acquired | wire.Adopted, within: ArenaMap | None = None
    ) -> list[Block]:
        arena, book, live, found = (within or self.reading).bytes, self.book, self.book.live, []
        columns = zip(keys, reply.offsets, reply.sizes, reply.tiers, reply.leases, reply.generations, strict=True)
        for key, offset, size, tier, lease, generation in columns:
            piece = arena[offset : offset + size]
            if len(piece) != size:
                raise DaemonUnavailable(
                    self.address, f"it leased [{offset}, {offset + size}), past the end of its arena"
                )
            ref = LeaseRef(piece, lease_died)
            ref.lease, ref.generation, ref.book = lease, generation, book
            live[lease] = ref
            found.append(Block(key, piece, size, tier, ref))
        return found

    def reserved(self, keys: Sequence[bytes], sizes: Sequence[int], reply: wire.Reserved) -> list[Slot | None]:
        """Places to write; None where the daemon has the block."""
        assert self.writing is not None
        memory, found = self.writing.bytes, []
        columns = zip(keys, sizes, reply.reservations, reply.generations, reply.offsets, strict=True)
        for key, size, reservation, generation, offset in columns:
            if offset + size > len(memory):
                raise DaemonUnavailable(
                    self.address, f"it reserved [{offset}, {offset + size}), past the end of its memory"
                )
            found.append(self._slot(key, memory[offset : offset + size], reservation, generation))
        return found

    def _slot(self, key: bytes, array: Bytes, reservation: int, generation: int) -> Slot | None:
        if not reservation:
            return None
        self.book.watch_slot(array, reservation, generation, self.outbox)
        return Slot(key, array, reservation, generation, self.book)

    def check_can_write(self) -> None:
        if self.writing is None:
            raise BadRequest("this client was connected with want_write=False; connect one that writes")

    def check_is(self, session: "Session", reservation: int) -> None:
        """Reservations end with their connection. Raises UnknownReservation when this is another one."""
        if session is not self:
            raise UnknownReservation(reservation)


def milliseconds(seconds: float) -> int:
    """A deadline on the wire; one that is over is 0."""
    return max(0, round(seconds * 1000))
