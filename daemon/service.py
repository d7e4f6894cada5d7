"""What the daemon does for its callers on top of the store: one layer for the socket and for HTTP.

Here: quotas, who is producing what, and gets that wait. Not here: leases (`leases.py`, the socket's; HTTP ties its
own to the buffer it sends), how messages look, and who is allowed into which namespace (`namespace_door.py`).
"""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mooncask.client.wire import CommitState
from mooncask.daemon.arrivals import Arrivals, Key
from mooncask.daemon.config import Config
from mooncask.daemon.holds import Holds
from mooncask.daemon.insight.lookups import LookupFeed, LookupKind
from mooncask.daemon.key_watches import KeyWatches
from mooncask.daemon.leases import Ids
from mooncask.daemon.namespace_door import NamespaceDoor, block_tokens
from mooncask.daemon.objects.store import Objects
from mooncask.daemon.waiter import Waiter
from mooncask.daemon.what_if import WhatIfs
from mooncask.daemon.windowed import windowed
from mooncask.errors import BadRequest, BlockTooLarge, Busy, MooncaskError, NotEvictable, QuotaExceeded
from mooncask.tiers.block import NO_HINT, Extent, Hint, TierName, WriteMode
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import Commit, Condition, Match, PutRequest, Reservation
from mooncask.tiers.store import Store

if TYPE_CHECKING:
    from mooncask.daemon.cold.cold import Cold
    from mooncask.daemon.kv_events.feed import KvEvents
    from mooncask.daemon.peers.cluster import Cluster
    from mooncask.daemon.peers.remote import Remote

log = logging.getLogger(__name__)

LOADS_SECONDS = 5.0
_MEMORY_TIERS = bytes([TierName.HBM, TierName.DRAM])
PROMISES_MAX = 1 << 18
"""Keys that may be announced at a time by all clients together."""


@dataclass(slots=True, eq=False)
class Writing:
    """One open reservation of the store with what the daemon knows of it. It is itself the producer in `Arrivals`."""

    id: int
    reservation: Reservation
    layers: int = 0
    staging_offset: int = -1
    """Where an untrusted writer puts the bytes, in its staging area; -1 = in the arena itself."""
    committing: bool = False
    from_afar: bool = False
    """Its bytes come from another node: no third one need follow it."""

    @property
    def generation(self) -> int:
        return self.reservation.extent.generation

    @property
    def extent(self) -> Extent:
        return self.reservation.extent

    @property
    def key(self) -> Key:
        return Key(self.reservation.namespace.id, self.reservation.request.key)


@dataclass(frozen=True, slots=True)
class Committing:
    """One writing to publish; `source` is where an untrusted writer has put its bytes."""

    writing: Writing
    digest: bytes = b""
    source: memoryview | None = None
    attributes: bytes = b""
    condition: Condition | None = None
    token_ids: bytes = b""
    """Of a KV block, u32 little endian; told to routers, and kept nowhere."""
    found: bytes = b""
    """As in `requests.Commit`."""


class Service:
    """The store as its callers see it. Everything belongs to the event loop's thread."""

    def __init__(self, store: Store, config: Config) -> None:
        self.store = store
        self.config = config
        self.door = NamespaceDoor(store, config)
        self.block_bytes_max = _block_bytes_max(store)
        self.arrivals: Arrivals[Waiter] = Arrivals()
        self.watches = KeyWatches(self.arrivals)
        self.ids = Ids(secrets.randbits(62) + 1)
        self.counters: Counter[str] = Counter()
        self.tokens: Counter[tuple[str, str]] = Counter()
        """(namespace, "requested" | "hit") -> tokens of prefixes looked up; hits count the usable prefix only."""
        self.lookups = LookupFeed()
        """Who asked for what. Whoever wants to know (insight, ghost caches, a recorder): `service.lookups.add(observer)`."""
        self.what_ifs = WhatIfs(config) if config.ghosts.enabled else None
        if self.what_ifs is not None:
            self.lookups.add(self.what_ifs.looked)
        self.quota_refusals: Counter[str] = Counter()
        self._reserved_bytes: Counter[str] = Counter()
        self.started_seconds = time.monotonic()
        self.ready = False
        """Whether requests are served: set when the listeners are up, reset when the daemon begins to stop."""
        self.loads: set[asyncio.Task[Any]] = set()
        """Loads under way, also those that nobody waits for any more: what they bring is dropped."""
        self._expiry: asyncio.TimerHandle | None = None
        self.remote: Remote | None = None
        """Blocks that other nodes have, where there are any."""
        self.cluster: Cluster | None = None
        self.cold: Cold | None = None
        """The bucket below NVMe, where there is one."""
        self.kv_events: KvEvents | None = None
        self.on_published: Callable[[Namespace, bytes], None] | None = None
        """Called in the step in which a block becomes readable: it must only take note."""
        self.on_matched_far: Callable[[Namespace, int, str], None] | None = None
        """Called with how many blocks a matched prefix went on over with other nodes' help, or the bucket's: "peer" or "cold"."""
        self.holds = Holds(store)
        self.objects = Objects(self)  # pyright: ignore[reportArgumentType]  # as in objects/store.py
        self.objects.start()

    # --- looking ---

    def match(self, namespace: Namespace, keys: Sequence[bytes], hint: Hint = NO_HINT, client: bytes = b"") -> Match:
        found = self.store.match(namespace, keys)
        in_memory = len(found) - len(found.tiers.lstrip(_MEMORY_TIERS))
        self.lookups.note(LookupKind.MATCH, namespace, keys, len(found), hint, client, in_memory)
        tokens = block_tokens(namespace.spec.family)
        if tokens:
            self.tokens[(namespace.spec.name, "requested")] += tokens * len(keys)
            self.tokens[(namespace.spec.name, "hit")] += tokens * len(found)
        return found

    def matched_far(self, namespace: Namespace, blocks: int, tier: str = "peer") -> None:
        """A match's prefix goes on over so many blocks, since other nodes or the bucket have what is missing here: they are hits
        too."""
        self.tokens[(namespace.spec.name, "hit")] += block_tokens(namespace.spec.family) * blocks
        if blocks and self.on_matched_far is not None:
            self.on_matched_far(namespace, blocks, tier)

    def note_get(self, namespace: Namespace, key: bytes) -> None:
        """Somebody asks for one block over HTTP: observers hear of it, and of where it was."""
        slot = namespace.index.get(key)
        in_memory = slot is not None and slot in self.store.catalogue.dram
        self.lookups.note(LookupKind.HTTP_GET, namespace, [key], int(slot is not None), NO_HINT, b"", int(in_memory))

    async def drop_namespace(self, namespace: Namespace) -> None:
        """Raises NamespaceNotEmpty. What was counted under its name goes too: names are the users', and have no end."""
        await self.store.drop_namespace(namespace)
        await self.objects.drop_parts(namespace)
        for which in ("requested", "hit"):
            self.tokens.pop((namespace.spec.name, which), None)

    async def bring(self, namespace: Namespace, key: bytes, deadline: float) -> None:
        """From another node, if it is not here and one has it."""
        if self.remote is not None and not self.store.has(namespace, key):
            await self.remote.bring(namespace, key, deadline)
        if self.cold is not None and not self.store.has(namespace, key):
            await self.cold.bring(namespace, key, deadline)

    def may_be_cold(self, namespace: Namespace, key: bytes) -> bool:
        """Whether the bucket has the block and answers."""
        return self.cold is not None and self.cold.has(namespace, key)

    def match_cold(self, namespace: Namespace, keys: Sequence[bytes], found: Match) -> Match:
        """`found`, a prefix of `keys`, gone on with over what is in the bucket."""
        if self.cold is None or len(found) == len(keys):
            return found
        more = self.cold.locate(namespace, keys[len(found) :], found.seconds[-1] if found.seconds else 0.0)
        self.matched_far(namespace, len(more), "cold")
        return Match(found.tiers + more.tiers, found.seconds + more.seconds)

    # --- writing ---

    async def reserve(
        self, namespace: Namespace, requests: Sequence[PutRequest], deadline: float, layers: int = 0
    ) -> list[Writing | None]:
        """Places for all `requests` or none; None where the store has the block. Raises QuotaExceeded at once, and NotEvictable for
        objects that no eviction could make room for."""
        for request in requests:
            if request.size > self.block_bytes_max:
                raise BlockTooLarge(request.size, self.block_bytes_max)
        tenant = namespace.spec.tenant
        asked = self._asked_bytes(namespace, requests)
        self._check_quota(tenant, asked)
        if namespace.spec.kind == "object":
            self._check_fits(namespace, asked)
        self._reserved_bytes[tenant] += asked
        try:
            found = await self.store.reserve(namespace, requests, deadline)
        finally:
            # What was granted is counted again, one by one, below: no await in between.
            self._reserved_bytes[tenant] -= asked
        return [self._opened(tenant, reservation, layers) if reservation else None for reservation in found]

    def _opened(self, tenant: str, reservation: Reservation, layers: int) -> Writing:
        (number,) = self.ids.take(1)
        writing = Writing(number, reservation, layers)
        self._reserved_bytes[tenant] += reservation.request.size
        self.arrivals.announce(writing.key, writing, layers)
        return writing

    async def commit(
        self, writing: Writing, digest: bytes = b"", attributes: bytes = b"", condition: Condition | None = None
    ) -> CommitState:
        """PUBLISHED or HAVE_IT; raises what the store or the condition says, and then the writing is over too."""
        [outcome] = await self.commit_many([Committing(writing, digest, None, attributes, condition)])
        if isinstance(outcome, MooncaskError):
            raise outcome
        return outcome

    async def commit_many(self, commits: Sequence[Committing]) -> list[CommitState | MooncaskError]:
        """As `commit`, each with its own outcome. All of these writings are over when it returns or raises."""
        for commit in commits:
            assert not commit.writing.committing, "callers take a writing out of their table before they commit it"
            commit.writing.committing = True
        try:
            outcomes = await self.store.commit_many(
                [Commit(c.writing.reservation, c.digest, c.source, c.attributes, c.condition, c.found) for c in commits]
            )
        except BaseException:
            for commit in commits:
                self.abort(commit.writing)  # no thread touches the place any more, also after a cancellation
            raise
        return [self._concluded(commit, outcome) for commit, outcome in zip(commits, outcomes, strict=True)]

    def _concluded(self, commit: Committing, outcome: bool | MooncaskError) -> CommitState | MooncaskError:
        writing = commit.writing
        if isinstance(outcome, MooncaskError):
            self.abort(writing)
            return outcome
        # The store published before it answered; a waiter that came in between holds the block itself (`waiter.py`).
        self._uncount(writing)
        if outcome and self.on_published is not None:
            self.on_published(writing.reservation.namespace, writing.reservation.request.key)
        if outcome and self.kv_events is not None:
            self.kv_events.stored(writing.reservation.namespace, writing.reservation.request, commit.token_ids)
        if outcome and self.what_ifs is not None:
            reservation = writing.reservation
            self.what_ifs.put(reservation.namespace, reservation.request.key, reservation.request.size)
        for waiter in self.arrivals.published(writing.key):
            waiter.wake(published=True)
        return CommitState.PUBLISHED if outcome else CommitState.HAVE_IT

    async def durable(self, namespace: Namespace, key: bytes, deadline: float) -> None:
        """Waits until the block survives a crash; raises as `Store.durable`."""
        await self.store.durable(namespace, key, deadline)

    def check_can_be_durable(self, namespace: Namespace) -> None:
        """Before anything is written: a promise that can't be kept is refused. Raises BadRequest."""
        if namespace.spec.mode is WriteMode.MEMORY:
            raise BadRequest(f"namespace {namespace.spec.name} is kept in memory only: nothing in it can be durable")

    def abort(self, writing: Writing) -> None:
        """Nothing happened; whoever waited for it learns so."""
        self.store.abort(writing.reservation)
        self._end(writing)

    def disown(self, writing: Writing) -> None:
        """The producer is cut off: nobody need wait, but its place stays reserved, since it may still be written into."""
        for waiter in self.arrivals.gone(writing.key, writing):
            waiter.wake(published=False)

    def advance(self, writing: Writing, layer: int) -> None:
        """Raises BadRequest for a layer beyond those announced."""
        if layer > writing.layers:
            raise BadRequest(f"advance to layer {layer} of {writing.layers}: reserve announces how many there are")
        layers, waiters = self.arrivals.advance(writing.key, writing, layer)
        for waiter in waiters:
            waiter.progress(layers)

    def _end(self, writing: Writing) -> None:
        self._uncount(writing)
        self.disown(writing)

    def _uncount(self, writing: Writing) -> None:
        request = writing.reservation.request
        self._reserved_bytes[writing.reservation.namespace.spec.tenant] -= request.size

    # --- announcements ---

    def expect(self, namespace: Namespace, keys: Sequence[bytes], producer: Hashable, seconds: float) -> int:
        """`producer` will put these; how many of them are not here yet. Raises Busy when too many are announced."""
        coming = [key for key in keys if not self.store.has(namespace, key)]
        if self.arrivals.promised + len(coming) > PROMISES_MAX:
            raise Busy(f"{self.arrivals.promised} keys are announced already; {PROMISES_MAX} are allowed")
        until = time.monotonic() + seconds
        for key in coming:
            self.arrivals.expect(Key(namespace.id, key), producer, until)
        self._schedule_expiry()
        return len(coming)

    def end_promises(self, producer: Hashable) -> None:
        """The producer is dead."""
        for key in self.arrivals.promises(producer):
            for waiter in self.arrivals.gone(key, producer):
                waiter.wake(published=False)

    async def close(self) -> None:
        """Before the store is closed: no load may end after that."""
        if self._expiry is not None:
            self._expiry.cancel()
        self.holds.close()
        if self.what_ifs is not None:
            self.what_ifs.close()
        await self.objects.close()
        if self.loads:
            await asyncio.wait(set(self.loads), timeout=LOADS_SECONDS)

    def _schedule_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        next_seconds = self.arrivals.next_expiry()
        loop = asyncio.get_running_loop()
        self._expiry = None if next_seconds is None else loop.call_at(next_seconds, self._expire)

    def _expire(self) -> None:
        for waiter in self.arrivals.expire(time.monotonic()):
            waiter.wake(published=False)
        self._schedule_expiry()

    # --- quotas ---

    def reserved_bytes(self, tenant: str) -> int:
        return self._reserved_bytes[tenant]

    def _asked_bytes(self, namespace: Namespace, requests: Sequence[PutRequest]) -> int:
        """What the tenant would have more; an object that will be replaced still has its bytes until then."""
        fresh = namespace.index if namespace.spec.kind == "kv" else {}
        return sum(request.size for request in requests if request.key not in fresh)

    def check_room(self, namespace: Namespace, size_bytes: int) -> None:
        """Before a long object is received: can it be stored at all? Raises QuotaExceeded and NotEvictable."""
        self._check_quota(namespace.spec.tenant, size_bytes)
        self._check_fits(namespace, size_bytes)

    def _check_fits(self, namespace: Namespace, size_bytes: int) -> None:
        left = self.store.room_left(namespace.spec.mode)
        if size_bytes > left:
            raise NotEvictable(f"namespace {namespace.spec.name}, where {max(0, left)} are left", size_bytes)

    def _check_quota(self, tenant: str, asked_bytes: int) -> None:
        section = self.config.tenants.get(tenant)
        if section is None or not section.quota:
            return
        if self.door.stored_bytes(tenant) + self._reserved_bytes[tenant] + asked_bytes > section.quota:
            self.quota_refusals[tenant] += 1
            raise QuotaExceeded(tenant, asked_bytes, section.quota)

    # --- several blocks ---

    async def pin_all(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """Pins those that are here: all of them or, when the limit stops it, none."""
        pinned: list[bytes] = []

        async def pin(key: bytes) -> None:
            if self.store.has(namespace, key):
                await self.store.pin(namespace, key)
                pinned.append(key)

        try:
            await windowed(keys, pin)
        except MooncaskError:
            await self.unpin_all(namespace, pinned)
            raise
        return len(pinned)

    async def unpin_all(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        async def unpin(key: bytes) -> bool:
            if here := self.store.has(namespace, key):
                await self.store.unpin(namespace, key)
            return here

        return sum(await windowed(keys, unpin))

    async def set_ttl_all(self, namespace: Namespace, keys: Sequence[bytes], seconds: float | None) -> int:
        async def set_ttl(key: bytes) -> bool:
            if here := self.store.has(namespace, key):
                await self.store.set_ttl(namespace, key, seconds)
            return here

        return sum(await windowed(keys, set_ttl))


def _block_bytes_max(store: Store) -> int:
    """What was configured, or less where an older data folder has smaller segments."""
    configured = store.config.block_bytes_max
    return configured if store.nvme is None else min(configured, store.nvme.block_bytes_max)
