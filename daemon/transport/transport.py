"""How bytes move between two nodes, as the rest of the daemon sees it: links to peers, and what this node serves to them.

Everything here belongs to the event loop's thread. Who has which block is the directory's knowledge; what to do with both
is the business of `daemon/peers/`. Implementations: `tcp/`, and `rdma/` over it. The messages between peers: `messages.py` and docs/PEERS.md.
"""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mooncask.tiers.block import Extent

INCARNATION_BYTES = 16


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is to others: its name, this run's incarnation, and host:port where others reach it."""

    name: str
    incarnation: bytes
    address: str


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """The node at the other end. `address` is where it was reached, or what it says of itself where it came to us."""

    name: str
    incarnation: bytes
    address: str
    transport: str
    """"tcp", "tcp+tls" or "rdma"."""


@dataclass(frozen=True, slots=True)
class RemoteBlock:
    """A block that is held at a peer for this link, from `lease` until `release` or the link's end.

    `checksum` is the xxh3_128 digest that the peer has for this copy: the reader compares, not the transport.
    """

    lease: int
    key: bytes
    size: int
    checksum: bytes
    parent: bytes = b""
    depth: int = 0
    tokens: int = 0
    attributes: bytes = b""
    offset: int = 0
    """Where it is in the peer's arena; only RDMA looks at it."""
    start: int = 0
    """What is read is [start, start + size) of the leased block: see `part`."""

    def part(self, start: int, end: int) -> "RemoteBlock":
        """Bytes [start, end) of it, to be read; the lease is the same."""
        return dataclasses.replace(self, start=self.start + start, size=end - start)


@dataclass(slots=True, eq=False)
class Growing:
    """A block that is still being written: bytes [0, written) may be read. Changed in the loop's thread."""

    written: int = 0


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """A block as a `BlockProvider` gives it out: one reference on `extent`, which `drop` gives back.

    `payload` is exactly the block's bytes, valid until then.
    """

    key: bytes
    extent: Extent
    payload: memoryview
    checksum: bytes
    parent: bytes = b""
    depth: int = 0
    tokens: int = 0
    attributes: bytes = b""
    growing: Growing | None = None
    """None: all of it is there."""

    @property
    def readable(self) -> int:
        """Bytes from its start on that may be sent now."""
        return len(self.payload) if self.growing is None else self.growing.written


class BlockProvider(Protocol):
    """What the serving side asks of its own daemon."""

    async def hold(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[HeldBlock | None]:
        """Each block brought into DRAM and held, None for what is not here by `deadline`; an unknown namespace has none. When it raises or is cancelled it holds nothing."""
        ...

    def hold_writing(self, ns_id: bytes, keys: Sequence[bytes]) -> list[HeldBlock | None]:
        """As `hold`, for blocks that somebody is writing: the places that they are written to, with `growing` and no checksum."""
        ...

    def drop(self, held: HeldBlock) -> None:
        """Gives the reference back. Never fails."""
        ...


@dataclass(frozen=True, slots=True)
class LinkLoad:
    """What went over a link so far, and what it holds now."""

    bytes_received: int
    receive_seconds: float
    """Time in which at least one read was under way: bandwidth as measured is bytes_received / receive_seconds."""
    leases: int
    round_trip_seconds: float
    """Of the last keepalive; 0 = none yet."""


class Link(Protocol):
    """An authenticated link to one incarnation of a peer. Any number of tasks may use it at a time.

    Deadlines are times of `time.monotonic()`, which is the loop's clock as well. Every method raises DeadlineExceeded
    at its deadline (never more than some milliseconds later), PeerUnavailable when the link is or becomes dead, and what the
    peer refuses (a BadRequest, UnknownLease, Busy, ...) as the same error here. A call that was cancelled or timed out leaves
    nothing held at the peer.
    """

    @property
    def peer(self) -> PeerInfo: ...

    @property
    def alive(self) -> bool:
        """False for good once the link has ended: all its leases are gone then. `LinkPool.link` gives another."""
        ...

    @property
    def problem(self) -> str:
        """Why it ended; empty while it is alive."""
        ...

    @property
    def load(self) -> LinkLoad: ...

    async def lease(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        """Item by item the block, held at the peer, or None: it is not there. At most KEYS_MAX keys."""
        ...

    async def lease_writing(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[RemoteBlock | None]:
        """As `lease`, for blocks that somebody there is still writing; None: nobody is. Without a checksum. How far each is, and
        what becomes of it, has to be asked for; bytes that are not written yet are OutOfBounds (over RDMA: anything)."""
        ...

    async def read(self, blocks: Sequence[RemoteBlock], into: Sequence[memoryview], deadline: float) -> list[bytes]:
        """The blocks' bytes, block i into the first `size` bytes of `into[i]`, which must be writable and not shorter.

        Answers, block by block, the xxh3_128 of the bytes as they lie in that memory now, or b"" where nobody has read them.

        When this returns, raises or is cancelled, no byte will be written into any of `into` any more: a connection that may
        still write into one is closed, and whoever receives from it has ended, before. So the memory can be reused at once.
        After an error the memory's contents are undefined. The leases stay. Raises OutOfBounds for a buffer that is too short.
        The bytes are as they came: the caller compares `RemoteBlock.checksum`, with the digest that is answered or its own.
        """
        ...

    def release(self, blocks: Sequence[RemoteBlock]) -> None:
        """Ends leases; sent without waiting for an answer. Ones that ended already are ignored. Never fails."""
        ...

    async def ask(self, kind: str, payload: bytes, deadline: float) -> bytes:
        """The answer of the peer's handler for `kind`. Both at most ASK_BYTES_MAX. Raises what that handler raised, and
        BadRequest where the peer has no such handler."""
        ...

    async def close(self) -> None:
        """Ends the link and all its leases; calls under way raise PeerUnavailable. Idempotent."""
        ...


Handler = Callable[[PeerInfo, bytes], Awaitable[bytes]]
"""Answers one kind of `ask`: who asks, and the payload. A MooncaskError that it raises reaches the asker. It is cancelled when
the asker's deadline is over or its link ends."""


class LinkPool(Protocol):
    """Links by address, made when they are needed and kept."""

    async def link(self, address: str, deadline: float, incarnation: bytes = b"") -> Link:
        """The live link to the node at host:port, made if need be; callers at the same time share the attempt.

        With `incarnation` only that one will do: another one there raises PeerChanged (and its link stays for those who want
        it). After a failure the address is left alone for a while that grows (BACKOFF_SECONDS to BACKOFF_SECONDS_MAX): until
        then PeerUnavailable is raised at once. Raises DeadlineExceeded, ProtocolMismatch, AccessDenied (another secret or
        certificate).
        """
        ...

    def links(self) -> list[Link]:
        """Those that live."""
        ...

    def states(self) -> list["PeerState"]:
        """Every address that was tried, for people to see."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PeerState:
    """What this node knows of its way to another one."""

    address: str
    name: str
    """Empty: never reached."""
    incarnation: bytes
    transport: str
    connected: bool
    problem: str
    """Why the last attempt failed, or the last link ended; empty when all is well."""
    load: LinkLoad
    """Over all links to it together; leases and the round trip are the live one's."""


class Guest(Protocol):
    """A link that another node has to this one, as those see it who answer what it asks."""

    peer: PeerInfo

    def held(self, lease: int) -> HeldBlock | None:
        """What one of its leases holds; None for one that has ended."""
        ...


GuestHandler = Callable[[Guest, bytes], Awaitable[bytes]]
"""As `Handler`, for what belongs to one link and not only to its peer."""


class PeerServer(Protocol):
    """Serves this node's blocks to its peers."""

    @property
    def address(self) -> str:
        """host:port that it listens on, with the port that was really taken."""
        ...

    def handle(self, kind: str, handler: Handler) -> None:
        """From now on asks of this kind are answered by `handler`. Each kind has one."""
        ...

    def handle_link(self, kind: str, handler: GuestHandler) -> None:
        """As `handle`, with the link that asks."""
        ...

    async def close(self) -> None:
        """No new links; those there are end, and with them their leases."""
        ...
