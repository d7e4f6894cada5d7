"""Who may read which extent: leases, the processes they are charged to, and tokens that hand them on.

Pure: no clock, no socket, no store. Whoever calls a method that ends leases gets the extents back and drops them.

    granted --release--> gone
    granted --connection ends--> orphaned --reconnect names it--> granted
                                          --reconnect does not--> gone
    granted --overstays--> parked (its connection is cut); only a release or the process's end frees it

An extent is never given back while the process could still read it: a living process that was cut off keeps its
mapping, so only its own word (a release, or a reconnect that no longer names the lease) or its death ends the right.
"""

import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mooncask.errors import AccessDenied, BadRequest, UnknownLease
from mooncask.tiers.block import Extent

OFFER_SECONDS = 5.0
OFFERS_MAX = 16384
ORPHAN = 0
"""The connection number of a lease whose connection is gone; real ones start at 1."""


@dataclass(slots=True, eq=False)
class Lease:
    """One right to read one extent. `id` is never reused; (id, extent.generation) names it on the wire."""

    id: int
    extent: Extent
    key: bytes
    connection: int
    granted_seconds: float
    overstayed: bool = False


class Ids:
    """64-bit numbers that are never given twice; a guess is unlikely to hit, since the first one is random."""

    def __init__(self, first: int) -> None:
        assert 0 < first < 1 << 63, "starts in the lower half, so that it can't wrap in any life of a daemon"
        self._next = first

    def take(self, count: int) -> range:
        """`count` fresh ids in a row."""
        self._next += count
        return range(self._next - count, self._next)


class Resumed(NamedTuple):
    ids: list[int]
    freed: list[Extent]


@dataclass(frozen=True, slots=True)
class _Offer:
    secret: bytes
    process: bytes
    leases: tuple[int, ...]
    uid: int
    tenant: str
    expires_seconds: float


@dataclass(slots=True)
class LeaseTable:
    """All leases by process token, oldest first. Owned by the event loop's thread."""

    ids: Ids
    _held: dict[bytes, dict[int, Lease]] = field(default_factory=dict)
    _offers: dict[bytes, _Offer] = field(default_factory=dict)

    def grant(
        self, process: bytes, connection: int, keys: Sequence[bytes], extents: Sequence[Extent], now_seconds: float
    ) -> list[int]:
        """Ids of new leases, one an extent. Each takes over one reference on its extent."""
        if not extents:
            return []
        held = self._held.get(process)
        if held is None:
            held = self._held[process] = {}
        ids = self.ids.take(len(extents))
        for number, key, extent in zip(ids, keys, extents, strict=True):
            held[number] = Lease(number, extent, key, connection, now_seconds)
        return list(ids)

    def release(self, process: bytes, ids: Sequence[int], generations: Sequence[int]) -> list[Extent]:
        """Ends all of these leases and returns their extents; with an UnknownLease among them it ends none."""
        known = self._known(process, ids, generations)
        if len(known) < len(ids):
            raise UnknownLease(
                next((number for number in ids if number not in known), ids[0])
            )  # none: one stands twice
        return self._end(process, known)

    def release_known(self, process: bytes, ids: Sequence[int], generations: Sequence[int]) -> list[Extent]:
        """Ends those of these leases that are held: for callers that can't be told of an error."""
        return self._end(process, self._known(process, ids, generations))

    def cut(self, process: bytes, connection: int) -> None:
        """The connection is gone, the process lives: its leases wait for a reconnect."""
        for lease in self._held.get(process, {}).values():
            if lease.connection == connection:
                lease.connection = ORPHAN

    def resume(self, process: bytes, connection: int, named: Iterable[int]) -> Resumed:
        """A process is back: orphans it names are its connection's again, the others are freed. Overstayed ones stay parked."""
        wanted = set(named)
        held = self._held.get(process, {})
        orphans = [lease for lease in held.values() if lease.connection == ORPHAN]
        resumed = [lease for lease in orphans if lease.id in wanted and not lease.overstayed]
        for lease in resumed:
            lease.connection = connection
        return Resumed(
            [lease.id for lease in resumed], self._end(process, [x.id for x in orphans if x.id not in wanted])
        )

    def overstayed(self, now_seconds: float, lease_seconds_max: float) -> set[int]:
        """Marks leases that are too old as parked and returns the connections that must be cut for it."""
        cut: set[int] = set()
        for held in self._held.values():
            for lease in held.values():  # oldest first, so that this looks at one young lease a process
                if now_seconds - lease.granted_seconds <= lease_seconds_max:
                    break
                if not lease.overstayed:
                    lease.overstayed = True
                    cut.add(lease.connection)
        return cut - {ORPHAN}

    def end(self, process: bytes) -> list[Extent]:
        """The process is dead: everything it held."""
        return [lease.extent for lease in self._held.pop(process, {}).values()]

    # --- handing on ---

    def offer(
        self, process: bytes, ids: Iterable[int], uid: int, tenant: str, now_seconds: float, random24: bytes
    ) -> bytes:
        """A token of 24 bytes with which another process of this uid and tenant can take these leases over, once."""
        self._forget_offers(now_seconds)
        name, secret = random24[:8], random24[8:]
        self._offers[name] = _Offer(secret, process, tuple(ids), uid, tenant, now_seconds + OFFER_SECONDS)
        return random24

    def adopt(
        self, token: bytes, process: bytes, connection: int, uid: int, tenant: str, now_seconds: float
    ) -> list[Lease]:
        """Moves the leases behind `token` that still live. Raises AccessDenied (the token stays usable) and BadRequest."""
        self._forget_offers(now_seconds)
        offer = self._offers.get(token[:8])
        if offer is None or not hmac.compare_digest(offer.secret, token[8:]):
            raise BadRequest(f"adoption token is unknown, used, or older than {OFFER_SECONDS:g} s; acquire again")
        if (offer.uid, offer.tenant) != (uid, tenant):
            raise AccessDenied("adoption token was given to another uid or tenant; only the same ones can adopt")
        del self._offers[token[:8]]
        return self._move(offer, process, connection, now_seconds)

    def _move(self, offer: _Offer, process: bytes, connection: int, now_seconds: float) -> list[Lease]:
        source = self._held.get(offer.process, {})
        moved = [source.pop(number) for number in offer.leases if number in source]
        target = self._held.setdefault(process, {})
        for lease in moved:
            lease.connection, lease.granted_seconds, lease.overstayed = connection, now_seconds, False
            target[lease.id] = lease
        return moved

    def _forget_offers(self, now_seconds: float) -> None:
        stale: list[bytes] = []
        for name, offer in self._offers.items():
            if offer.expires_seconds > now_seconds and len(self._offers) - len(stale) < OFFERS_MAX:
                break
            stale.append(name)
        for name in stale:
            del self._offers[name]

    # --- looking ---

    def count(self, process: bytes) -> int:
        return len(self._held.get(process, ()))

    def leased_bytes(self, process: bytes) -> int:
        return sum(lease.extent.length for lease in self._held.get(process, {}).values())

    def parked_bytes(self) -> int:
        """Bytes that only a reconnect or a process's end gives back."""
        leases = (lease for held in self._held.values() for lease in held.values())
        return sum(lease.extent.length for lease in leases if lease.connection == ORPHAN or lease.overstayed)

    def __len__(self) -> int:
        return sum(len(held) for held in self._held.values())

    def _known(self, process: bytes, ids: Sequence[int], generations: Sequence[int]) -> dict[int, None]:
        """Those of `ids` that name a held lease with the right generation, each once, in order."""
        held = self._held.get(process)
        if not held:
            return {}
        return {
            number: None
            for number, generation in zip(ids, generations, strict=True)
            if (lease := held.get(number)) is not None and lease.extent.generation == generation
        }

    def _end(self, process: bytes, ids: Iterable[int]) -> list[Extent]:
        held = self._held.get(process, {})
        extents = [held.pop(number).extent for number in ids]
        if not held:
            self._held.pop(process, None)
        return extents
