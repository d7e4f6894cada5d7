"""The storage engine's one door: puts, gets and housekeeping over the tiers that a node has.

Built from parts that each do one thing: `catalogue` (what is where), `copies` (references), `room` (who gets DRAM),
`pressure` (who leaves), `write_down` and `bring_up` (between DRAM and NVMe), `puts` (reserve and commit),
`housekeeping` (time to live, scrub). All methods belong to the event loop's thread; see docs/ARCHITECTURE.md.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence

from mooncask.errors import (
    BadRequest,
    CorruptBlock,
    DeadlineExceeded,
    MooncaskError,
    NamespaceNotEmpty,
    NoSuchBlock,
    TierDegraded,
)
from mooncask.tiers.block import NO_HINT, Extent, Hint, WriteMode, printable_key
from mooncask.tiers.catalogue import NOWHERE, Catalogue
from mooncask.tiers.housekeeping import Housekeeping
from mooncask.tiers.leaving import Leaving
from mooncask.tiers.lookup import Lookup
from mooncask.tiers.namespace import Namespace, NamespaceRegistry, NamespaceSpec
from mooncask.tiers.parts import Parts, build_parts
from mooncask.tiers.puts import Puts
from mooncask.tiers.requests import (
    BlockInfo,
    Commit,
    Condition,
    Match,
    PutRequest,
    Reservation,
    StoreConfig,
    StoreStatus,
)

NEARLY_FULL = 0.75
"""Of DRAM: from here on a long object that passes through leaves it at once."""


class Store:
    """Blocks in HBM, DRAM and NVMe under one catalogue. Open it with `Store.open`."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._catalogue: Catalogue = parts.catalogue
        self._registry: NamespaceRegistry = parts.registry
        self._lookup = Lookup(parts)
        self._puts = Puts(parts)
        self._housekeeping = Housekeeping(parts, self.quarantine)
        self._naming = asyncio.Lock()
        self.catalogue: Catalogue = parts.catalogue
        """For those who look: blocks are entered, moved and forgotten by this store only."""
        self.counters: Counter[str] = parts.counters
        self.flows = parts.copies.flows
        self.departures = parts.copies.departures
        self.replicas = parts.rules.replicas
        """Blocks that other nodes have too, as far as somebody notes them."""
        self.room_changed: Callable[[], None] = parts.room.changed
        """More may leave DRAM than a moment ago: whoever waits for room looks again."""
        self.timings = parts.copies.timings
        self.config: StoreConfig = parts.config
        self.dram = parts.dram
        self.hbm = parts.hbm
        self.nvme = parts.nvme
        self.leaving = Leaving(parts)
        """What is about to leave the last tier."""
        self.on_deleted: Callable[[Namespace, Sequence[bytes]], None] = lambda namespace, keys: None
        """Called when somebody deletes blocks by name, whether they are here or not: it must only take note."""
        self.view: Callable[[Extent], memoryview] = parts.dram.view
        """An extent's bytes in the arena, valid while the caller has a reference."""
        self.drop: Callable[[Extent], None] = parts.copies.drop
        """Gives one reference back."""

    @classmethod
    async def open(cls, config: StoreConfig) -> "Store":
        """Tiers built, the index of an earlier run loaded, the arena being populated in the background.

        Raises ConfigError and the other start errors of mooncask.errors.
        """
        parts = await build_parts(config)
        store = cls(parts)
        parts.on_corrupt = store.quarantine
        store._housekeeping.start()
        return store

    def tune(self, promote_after: int, dirty_bytes_max: int, scrub_bytes_per_second: float) -> None:
        """What of `config` may change while the store runs; in force from now on."""
        self._parts.promote_after(promote_after)
        if self._parts.write_down is not None:
            self._parts.write_down.limit_dirty(dirty_bytes_max)
        self._housekeeping.scrub_at(scrub_bytes_per_second)

    async def close(self, flush_seconds: float = 0.0) -> None:
        """Write what is not on NVMe yet, as far as `flush_seconds` go, and release everything."""
        await self._housekeeping.stop()
        if self._parts.write_down is not None:
            deadline = time.monotonic() + flush_seconds
            for slot in self._unwritten():
                self._parts.write_down.start(slot)
            try:
                await self._parts.write_down.drained(deadline)
            except DeadlineExceeded:
                self.counters["unflushed_at_close"] += 1
        await self._parts.close()

    def _unwritten(self) -> list[int]:
        catalogue = self._catalogue
        return [
            slot
            for slot in catalogue.dram
            if catalogue.nvme_offset[slot] == NOWHERE and catalogue.owner(slot).spec.mode is not WriteMode.MEMORY
        ]

    # --- namespaces ---

    async def open_namespace(self, spec: NamespaceSpec) -> Namespace:
        """The namespace of that name, made if need be. FamilyMismatch names the first field that differs.

        It is on disk before anybody gets it: blocks of a namespace that a restart does not know would be dropped.
        """
        async with self._naming:
            namespace = self._registry.get(spec.name)
            if namespace is None:
                return await self._add_namespace(spec)
            self._registry.check(namespace, spec)
            if namespace.spec.mode is not spec.mode:
                self._registry.change_mode(namespace, spec.mode)
                await self._save(namespace)
            return namespace

    async def _add_namespace(self, spec: NamespaceSpec) -> Namespace:
        namespace = self._registry.new(spec)
        await self._save(namespace)
        self._registry.enter(namespace)
        return namespace

    def namespace(self, name: str) -> Namespace | None:
        return self._registry.get(name)

    def namespaces(self) -> list[Namespace]:
        return list(self._registry)

    async def drop_namespace(self, namespace: Namespace) -> None:
        """NamespaceNotEmpty while it has blocks."""
        if namespace.blocks:
            raise NamespaceNotEmpty(namespace.spec.name, namespace.blocks)
        self._registry.remove(namespace)
        if self.nvme is not None:
            await self.nvme.drop_namespace(namespace.id)

    async def _save(self, namespace: Namespace) -> None:
        if self.nvme is not None:
            await self.nvme.save_namespace(namespace.id, self._registry.blob(namespace))
            await self.nvme.save_namespace(0, self._registry.own_blob())

    # --- gets ---

    def match(self, namespace: Namespace, keys: Sequence[bytes]) -> Match:
        """The longest prefix of a chain that is here. Changes nothing, counts as no access."""
        return self._lookup.match(namespace, keys)

    def hold(self, namespace: Namespace, keys: Sequence[bytes], hint: Hint = NO_HINT) -> list[Extent | None]:
        """One reference on each block that is in DRAM now, None for the others. Counts as an access."""
        return self._lookup.hold(namespace, keys, hint)

    async def fetch(self, namespace: Namespace, key: bytes, deadline: float, hint: Hint = NO_HINT) -> Extent | None:
        """One reference on the block, brought into DRAM if need be; None is a miss, also one by the deadline."""
        return await self._lookup.fetch(namespace, key, deadline, hint)

    async def warm(self, namespace: Namespace, key: bytes, deadline: float) -> bool:
        """Whether the block is in DRAM now, to stay there as one that is read often; counts as no access."""
        return await self._lookup.warm(namespace, key, deadline)

    def checksum(self, namespace: Namespace, key: bytes) -> bytes | None:
        """xxh3_128 of the stored payload."""
        slot = self._lookup.find(namespace, key)
        return None if slot is None else self._catalogue.checksum(slot)

    def has(self, namespace: Namespace, key: bytes) -> bool:
        """Whether the block is here, in whatever tier, and not expired."""
        return self._lookup.find(namespace, key) is not None

    async def verify(self, namespace: Namespace, key: bytes) -> bool:
        """Read and check every copy. A wrong one is quarantined and the answer is False; NoSuchBlock when it is not here."""
        return await self._housekeeping.verify(self._slot(namespace, key))

    # --- puts ---

    async def reserve(
        self, namespace: Namespace, requests: Sequence[PutRequest], deadline: float
    ) -> list[Reservation | None]:
        """Places for all of `requests` or for none; None where the store has the block already. See `Puts.reserve`."""
        return await self._puts.reserve(namespace, requests, deadline)

    async def commit(
        self,
        reservation: Reservation,
        digest: bytes = b"",
        source: memoryview | None = None,
        attributes: bytes = b"",
        condition: Condition | None = None,
    ) -> bool:
        """Check and publish; True = published, False = somebody was first: these bytes are dropped. See `Puts.commit`."""
        [outcome] = await self.commit_many([Commit(reservation, digest, source, attributes, condition)])
        if isinstance(outcome, MooncaskError):
            raise outcome
        return outcome

    async def commit_many(self, commits: Sequence[Commit]) -> list[bool | MooncaskError]:
        """A batch at the price of one: each is published or has its own error. See `Puts.commit`."""
        return await self._puts.commit(commits)

    def hold_reserved(self, reservation: Reservation) -> Extent:
        """One reference on an open reservation's place: it stays where it is until `drop`, whatever becomes of the block."""
        assert reservation.open
        self._parts.copies.hold_extent(reservation.extent)
        return reservation.extent

    def abort(self, reservation: Reservation) -> None:
        """Nothing happened. Aborting what has ended does nothing."""
        self._puts.abort(reservation)

    async def durable(self, namespace: Namespace, key: bytes, deadline: float) -> None:
        """Waits until the block survives a crash.

        Raises BadRequest for a `memory` namespace, TierDegraded when the disk fails, NoSuchBlock when the block is gone,
        NotEvictable when NVMe is full, DeadlineExceeded.
        """
        if namespace.spec.mode is WriteMode.MEMORY:
            raise BadRequest(f"namespace {namespace.spec.name} is kept in memory only: nothing in it can be durable")
        if self._parts.write_down is None:
            raise TierDegraded("nvme", "this node has none (nvme.path is empty)")
        await self._puts.durable(namespace, key, deadline)

    # --- one block ---

    async def pin(self, namespace: Namespace, key: bytes) -> None:
        """NoSuchBlock, PinLimitExceeded. Pins count."""
        await self._housekeeping.pin(self._slot(namespace, key))

    async def unpin(self, namespace: Namespace, key: bytes) -> None:
        """NoSuchBlock. Unpinning what is not pinned does nothing."""
        await self._housekeeping.unpin(self._slot(namespace, key))

    def keep(self, namespace: Namespace, key: bytes) -> int:
        """A pin that ends with this run of the daemon. Returns what `let_go` takes. NoSuchBlock, PinLimitExceeded."""
        return self._housekeeping.hold(self._slot(namespace, key))

    def let_go(self, namespace: Namespace, key: bytes, sequence: int) -> None:
        """Without effect when the block that was held is gone."""
        slot = namespace.index.get(key)
        if slot is not None:
            self._housekeeping.unhold(slot, sequence)

    def pinned_bytes(self) -> int:
        return self._catalogue.pinned_bytes

    def pinnable_bytes(self) -> int:
        """What shares of pins are of: NVMe where there is one, else DRAM."""
        return self._parts.nvme.usable_bytes if self._parts.nvme is not None else self.config.dram_bytes

    async def set_ttl(self, namespace: Namespace, key: bytes, seconds: float | None) -> None:
        """The block vanishes `seconds` from now; None = never. NoSuchBlock."""
        await self._housekeeping.set_ttl(self._slot(namespace, key), seconds)

    async def evict(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        """Delete from all tiers; durable when it returns. Readers keep what they hold. Unknown keys don't count."""
        self.on_deleted(namespace, keys)
        return await self._lookup.delete(namespace, keys)

    def withdraw(self, namespace: Namespace, key: bytes) -> bool:
        """Take back a block that could not be made durable, so that it does not fill DRAM; whether that was done.

        What the disk has or is about to get, in this version or an older one, stays as it is.
        """
        slot = namespace.index.get(key)
        write_down = self._parts.write_down
        below = slot is not None and self._catalogue.nvme_offset[slot] != NOWHERE
        if slot is None or below or (write_down is not None and write_down.may_be_below((namespace.id, key))):
            return False
        self._parts.copies.remove(slot, "withdrawn")
        self.counters["withdrawn"] += 1
        return True

    def info(self, namespace: Namespace, key: bytes) -> BlockInfo | None:
        slot = self._lookup.find(namespace, key)
        return None if slot is None else self._lookup.info(slot)

    def list_blocks(
        self, namespace: Namespace, prefix: bytes = b"", after: bytes = b"", limit: int = 1000
    ) -> list[BlockInfo]:
        """Blocks in key order whose key starts with `prefix` and comes after `after`, at most `limit`."""
        return self._lookup.list_blocks(namespace, prefix, after, limit)

    def attributes(self, namespace: Namespace, key: bytes) -> bytes:
        """Of a block that is here; empty when it has none or is not here."""
        slot = self._lookup.find(namespace, key)
        return b"" if slot is None else self._catalogue.attributes.get(slot, b"")

    def watch_attributes(self, gone: Callable[[Namespace, bytes, bytes], None]) -> None:
        """From now on `gone(namespace, key, attributes)` is called when a block that has attributes has left, in whatever
        way. It must only take note: the step that removed the block is not over."""
        self._catalogue.on_attributes_gone = gone

    def room_left(self, mode: WriteMode) -> int:
        """About how many bytes of blocks that may not be forgotten still fit: what such blocks have already is gone from the
        last tier of their mode; all else could be made to leave it."""
        kept = [n for n in self._registry if not n.spec.evictable]
        if mode is WriteMode.MEMORY or self.nvme is None:
            return self.config.dram_bytes - sum(n.stored_bytes for n in kept if n.spec.mode is WriteMode.MEMORY)
        return self.nvme.usable_bytes - sum(n.stored_bytes for n in kept if n.spec.mode is not WriteMode.MEMORY)

    def leave_memory(self, namespace: Namespace, key: bytes) -> None:
        """Where DRAM is nearly full, what is on NVMe as well gives its place back now: for what need not be kept at hand, so that
        it drives nothing out that is read often."""
        slot, dram = self._lookup.find(namespace, key), self.dram
        if slot is None or dram.used_bytes < NEARLY_FULL * dram.capacity_bytes:
            return
        extent = self._catalogue.dram.get(slot)
        if extent is not None and extent.references == 1 and self._catalogue.nvme_offset[slot] != NOWHERE:
            self._parts.copies.drop_dram(slot)

    def unsettled_below(self, namespace: Namespace, key: bytes) -> bool:
        """Whether NVMe has, or is about to get, a version of this key that the catalogue does not name: after a crash that
        one may be there again."""
        return self._parts.write_down is not None and self._parts.write_down.may_be_below((namespace.id, key))

    def quarantine(self, slot: int, error: CorruptBlock) -> None:
        """A wrong copy was met: the block leaves the catalogue at once, its extent when its readers are done."""
        self._lookup.quarantine_slot(slot, error)

    def quarantine_block(self, namespace: Namespace, key: bytes, error: CorruptBlock) -> None:
        """For who knows better than the checksum that a block is no good: as `quarantine`; nothing when it is not here."""
        slot = self._lookup.find(namespace, key)
        if slot is not None:
            self.quarantine(slot, error)

    def status(self) -> StoreStatus:
        return self._parts.status()

    def _slot(self, namespace: Namespace, key: bytes) -> int:
        slot = self._lookup.find(namespace, key)
        if slot is None:
            raise NoSuchBlock(namespace.spec.name, printable_key(key))
        return slot
