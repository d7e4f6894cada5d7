"""Putting blocks: a place to write, a check, one atomic publish, and the way down.

In a KV namespace the first commit of a key wins and later ones are dropped (`have_it`): equal tokens may have KV that
differs in its low bits, and either is right. In an object namespace a later commit replaces the block.
"""

import asyncio
import time
from collections.abc import Sequence

from mooncask.errors import (
    BadRequest,
    BlockTooLarge,
    DeadlineExceeded,
    DigestMismatch,
    EmptyBlock,
    LengthMismatch,
    MooncaskError,
    NoSuchBlock,
    NoSuchNamespace,
    PinLimitExceeded,
    TierDegraded,
    UnknownReservation,
)
from mooncask.tiers.block import BlockRecord, Extent, WriteMode, aligned, printable_key
from mooncask.tiers.catalogue import NOWHERE
from mooncask.tiers.dram import Filling
from mooncask.tiers.flows import PUT
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.nvme.record import check_header_room
from mooncask.tiers.parts import Parts
from mooncask.tiers.requests import Commit, PutRequest, Reservation


class Puts:
    """The writing half of the store."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._catalogue = parts.catalogue
        self._copies = parts.copies

    # --- reserve ---

    async def reserve(
        self, namespace: Namespace, requests: Sequence[PutRequest], deadline: float
    ) -> list[Reservation | None]:
        """Places for all of `requests` or for none, first come first served, until `deadline` (`time.monotonic()`).

        None stands for a block that is here already. Raises LengthMismatch, BlockTooLarge, EmptyBlock,
        PinLimitExceeded (more than may ever be held), Busy (no room by the deadline).
        """
        for request in requests:
            self._check(namespace, request)
        missing = [not self._have(namespace, request) for request in requests]
        parents = [self._catalogue.expect_child(namespace, request.parent) for request in requests]
        try:
            return await self._place(namespace, requests, missing, parents, deadline)
        except BaseException:
            for request, slot in zip(requests, parents, strict=True):
                self._catalogue.child_came(slot, request.parent)
            raise

    async def _place(
        self,
        namespace: Namespace,
        requests: Sequence[PutRequest],
        missing: Sequence[bool],
        parents: Sequence[int],
        deadline: float,
    ) -> list[Reservation | None]:
        # An empty object still occupies one unit: every reservation has an extent.
        sizes = [max(1, request.size) for request, wanted in zip(requests, missing, strict=True) if wanted]
        places = iter(await self._take(namespace, sizes, deadline))
        # A block that somebody else published while we waited is reserved all the same; its commit answers have_it.
        reservations: list[Reservation | None] = []
        for request, wanted, parent in zip(requests, missing, parents, strict=True):
            if wanted:
                reservations.append(self._reservation(namespace, request, next(places), parent))
            else:
                self._catalogue.child_came(parent, request.parent)
                reservations.append(None)
        return reservations

    def _check(self, namespace: Namespace, request: PutRequest) -> None:
        size_max = self._parts.config.block_bytes_max
        if request.size > size_max:
            raise BlockTooLarge(request.size, size_max)
        if request.size == 0 and namespace.spec.kind == "kv":
            raise EmptyBlock(printable_key(request.key))
        if not request.key:
            raise BadRequest("a block's key can't be empty")
        if request.key == request.parent:
            raise BadRequest(f"block {printable_key(request.key)} can't be its own parent")

    def _have(self, namespace: Namespace, request: PutRequest) -> bool:
        """Whether this KV block is here with the same length; LengthMismatch if with another."""
        slot = namespace.index.get(request.key)
        if slot is None or namespace.spec.kind != "kv" or self._catalogue.expired(slot, time.time()):
            return False
        self._check_length(slot, request)
        return True

    def _check_length(self, slot: int, request: PutRequest) -> None:
        have = self._catalogue.size[slot]
        if have != request.size:
            raise LengthMismatch(printable_key(request.key), have, request.size)

    async def _take(self, namespace: Namespace, sizes: Sequence[int], deadline: float) -> list[Extent]:
        if not sizes:
            return []
        parts = self._parts
        needed = sum(map(aligned, sizes))
        limit = parts.held_limit_bytes()
        if parts.catalogue.pinned_dram_bytes + needed > limit:
            raise PinLimitExceeded("dram", parts.catalogue.pinned_dram_bytes + needed, limit)
        if parts.write_down is not None and namespace.spec.mode is not WriteMode.MEMORY:
            await parts.write_down.below_dirty_limit(deadline)
        return await parts.room.reserve(sizes, deadline, f"reserve of {len(sizes)} blocks")

    def _reservation(self, namespace: Namespace, request: PutRequest, extent: Extent, parent: int) -> Reservation:
        extent.size = request.size
        return Reservation(namespace, request, extent, parent)

    # --- commit and abort ---

    async def commit(self, commits: Sequence[Commit]) -> list[bool | MooncaskError]:
        """Publish reservations' bytes, each for itself: True = published, False = somebody was first, or why not.

        DigestMismatch aborts the reservation. UnknownReservation when it has ended, also while this ran. NoSuchNamespace
        when the namespace was dropped meanwhile.
        """
        open_ones = [commit for commit in commits if commit.reservation.open and not commit.found]
        fillings = [Filling(c.reservation.extent, c.reservation.request.size, c.source) for c in open_ones]
        checksums = iter(await self._parts.dram.settle(fillings))
        settled = {id(commit): next(checksums) for commit in open_ones}
        return [self._outcome(commit, commit.found or settled.get(id(commit), b"")) for commit in commits]

    def _outcome(self, commit: Commit, checksum: bytes) -> bool | MooncaskError:
        try:
            self._must_be_open(commit.reservation)  # its writer may have died while the checksum ran
            self._check_attributes(commit)
            if commit.digest and commit.digest != checksum:
                self.abort(commit.reservation)
                key = printable_key(commit.reservation.request.key)
                raise DigestMismatch(key, commit.digest.hex(), checksum.hex())
            return self._publish(commit, checksum)
        except MooncaskError as error:
            return error

    def _check_attributes(self, commit: Commit) -> None:
        """What fits into no header on the disk is kept nowhere else either."""
        request = commit.reservation.request
        try:
            check_header_room(len(request.key), len(request.parent), len(commit.attributes))
        except MooncaskError:
            self.abort(commit.reservation)
            raise

    def _must_be_open(self, reservation: Reservation) -> None:
        if not reservation.open:
            raise UnknownReservation(reservation.extent.generation)

    def _publish(self, commit: Commit, checksum: bytes) -> bool:
        """No await in here: the block appears in one step."""
        reservation = commit.reservation
        namespace, request = reservation.namespace, reservation.request
        if self._parts.registry.by_id(namespace.id) is not namespace:
            self.abort(reservation)
            raise NoSuchNamespace(namespace.spec.name)
        slot = namespace.index.get(request.key)
        if slot is not None and self._catalogue.expired(slot, time.time()):
            self._copies.forget(slot, "expired", "expired")
            slot = None
        self._check_condition(commit, slot)
        if slot is not None and namespace.spec.kind == "kv":
            self.abort(reservation)
            self._check_length(slot, request)
            return False
        if slot is not None:
            self._replace(slot)
        self._enter(reservation, checksum, commit.attributes)
        return True

    def _check_condition(self, commit: Commit, slot: int | None) -> None:
        """Decided in the step that publishes: of two that race for an absent key exactly one wins."""
        if commit.condition is None:
            return
        try:
            commit.condition(None if slot is None else self._catalogue.record(slot))
        except MooncaskError:
            self.abort(commit.reservation)
            raise

    def _replace(self, slot: int) -> None:
        """An object's older version leaves memory now, and the disk when the newer one is there."""
        parts = self._parts
        key = (self._catalogue.namespace[slot], self._catalogue.keys[slot])
        goes_below = self._catalogue.owner(slot).spec.mode is not WriteMode.MEMORY
        place = self._copies.supersede(slot)
        parts.counters["replaced"] += 1
        if parts.write_down is None:
            return
        if place is not None:
            parts.write_down.supersede(key, place)
        if not goes_below and parts.write_down.may_be_below(key):
            parts.bury_later((*key, parts.next_sequence()))  # no newer version will ever take its place on the disk

    def _enter(self, reservation: Reservation, checksum: bytes, attributes: bytes) -> None:
        parts, request, namespace = self._parts, reservation.request, reservation.namespace
        record = BlockRecord(
            namespace=namespace.id,
            key=request.key,
            size=request.size,
            checksum=checksum,
            sequence=parts.next_sequence(),
            parent=request.parent,
            depth=self._depth(namespace, request),
            tokens=request.tokens,
            created=int(time.time()),
            attributes=attributes,
        )
        slot = self._catalogue.insert(namespace, record)
        self._end(reservation)
        parts.dram.adopt(reservation.extent, record)
        self._catalogue.place_dram(slot, reservation.extent)
        parts.recency.entered_dram(slot, request.hint)
        parts.counters["published"] += 1
        parts.counters["published_bytes"] += request.size
        self._copies.flows.add(PUT, request.size)
        if namespace.spec.mode is WriteMode.WRITE_THROUGH and parts.rules.nvme_takes_writes:
            assert parts.write_down is not None
            parts.write_down.start(slot)

    def _depth(self, namespace: Namespace, request: PutRequest) -> int:
        """Where the writer does not say: one more than the parent's, so that trees and policies see chains as they are."""
        if request.depth or not request.parent:
            return request.depth
        parent = namespace.index.get(request.parent)
        return 0 if parent is None else self._catalogue.depth[parent] + 1

    def abort(self, reservation: Reservation) -> None:
        if reservation.open:
            self._end(reservation)
            self._copies.abort(reservation.extent)

    def _end(self, reservation: Reservation) -> None:
        reservation.open = False
        self._catalogue.child_came(reservation.parent_slot, reservation.request.parent)
        self._parts.room.release(reservation.extent)

    # --- durable ---

    async def durable(self, namespace: Namespace, key: bytes, deadline: float) -> None:
        """See `Store.durable`. When the block is replaced meanwhile, waits for the newer one, which a crash must leave."""
        while (slot := namespace.index.get(key)) is not None:
            if self._catalogue.nvme_offset[slot] != NOWHERE:
                return
            sequence = self._catalogue.sequence[slot]
            await self._written(slot, key, deadline)
            if self._catalogue.sequence[slot] == sequence and self._catalogue.nvme_offset[slot] == NOWHERE:
                raise TierDegraded("nvme", f"block {printable_key(key)} was evicted as soon as it was written")
        raise NoSuchBlock(namespace.spec.name, printable_key(key))

    async def _written(self, slot: int, key: bytes, deadline: float) -> None:
        assert self._parts.write_down is not None
        # Shielded: the write belongs to the block, not to who waits for it.
        task = asyncio.shield(self._parts.write_down.start(slot))
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await task
        except TimeoutError as exc:
            raise DeadlineExceeded(f"durable write of block {printable_key(key)}", 0.0) from exc
