"""What is about to leave the node's last tier, and its bytes, for whoever wants to keep them elsewhere. Looks only: nothing here counts
as a use, moves a block or waits for room in the arena."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mooncask.errors import CorruptBlock
from mooncask.tiers.block import BlockRecord, WriteMode, aligned
from mooncask.tiers.catalogue import NOWHERE
from mooncask.tiers.checksum import payload_checksum
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.parts import Parts
from mooncask.tiers.policies.policy import EvictionPolicy, Ordered

READS_OF_A_MOVING_BLOCK = 3


class Candidate(NamedTuple):
    """A block of the last tier that may be evicted from there. `created` is a wall clock second."""

    namespace: Namespace
    key: bytes
    sequence: int
    size: int
    hits: int
    pins: int
    created: int


class Payload(NamedTuple):
    """A block's bytes, checked, in memory of their own."""

    record: BlockRecord
    view: memoryview


class Leaving:
    """Of one store. Belongs to the event loop's thread."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._catalogue = parts.catalogue
        self._hand = 0

    def fill(self) -> float:
        """How full the fullest last tier is, from 0 to 1. Of DRAM, only where blocks have nothing below it."""
        parts, shares = self._parts, [0.0]
        if parts.nvme is not None:
            shares.append(parts.nvme.used_bytes / max(1, parts.nvme.usable_bytes))
        if self._dram_is_last():
            shares.append(parts.dram.used_bytes / max(1, parts.dram.capacity_bytes))
        return max(shares)

    def _dram_is_last(self) -> bool:
        """Whether for some blocks."""
        parts = self._parts
        return parts.nvme is None or any(one.spec.mode is WriteMode.MEMORY and one.blocks for one in parts.registry)

    def soonest(self, most: int) -> Iterator[Candidate | None]:
        """Up to `most` blocks of each last tier, the first to leave first as far as its policy can tell, else some that were not looked
        at for the longest time; None for one that is no candidate. Made while it is taken: to be taken in slices."""
        parts, policies = self._parts, self._parts.policies
        if parts.nvme is not None:
            yield from self._candidates(self._order(policies.nvme, most), below=True)
        if self._dram_is_last():
            yield from self._candidates(self._order(policies.dram, most), below=False)

    def _order(self, policy: EvictionPolicy, most: int) -> Sequence[int]:
        if isinstance(policy, Ordered):
            return policy.soonest(most)
        slots = len(self._catalogue.keys)
        first, self._hand = self._hand % max(1, slots), self._hand + most
        return [slot % slots for slot in range(first, first + min(most, slots))]

    def _candidates(self, slots: Sequence[int], *, below: bool) -> Iterator[Candidate | None]:
        catalogue = self._catalogue
        for slot in slots:
            if slot >= len(catalogue.sequence) or not catalogue.sequence[slot] or catalogue.ttl[slot]:
                yield None  # what vanishes by its time must not stay elsewhere
                continue
            owner = catalogue.owner(slot)
            on_nvme = catalogue.nvme_offset[slot] != NOWHERE
            last_is_dram = self._parts.nvme is None or owner.spec.mode is WriteMode.MEMORY
            if owner.spec.kind != "kv" or (not on_nvme if below else not (last_is_dram and slot in catalogue.dram)):
                yield None
                continue
            yield Candidate(
                owner,
                catalogue.keys[slot],
                catalogue.sequence[slot],
                catalogue.size[slot],
                catalogue.hits[slot],
                catalogue.pins[slot],
                catalogue.created[slot],
            )

    async def payload(self, candidate: Candidate) -> Payload | None:
        """None when the block has left meanwhile, or its bytes are wrong, which scrub and readers see to."""
        slot = candidate.namespace.index.get(candidate.key)
        if slot is None or self._catalogue.sequence[slot] != candidate.sequence:
            return None
        record = self._catalogue.record(slot)
        [extent] = self._parts.copies.hold([slot])
        if extent is None:
            return await self._from_nvme(slot, record)
        view = memoryview(bytearray(record.size))
        try:
            source = self._parts.dram.view(extent)[: record.size]
            right = await asyncio.to_thread(_copied, source, view, record.checksum)
        finally:
            self._parts.copies.drop(extent)
        return Payload(record, view) if right else None

    async def _from_nvme(self, slot: int, record: BlockRecord) -> Payload | None:
        """As often as the reclaimer may move it meanwhile."""
        buffer = memoryview(bytearray(aligned(max(1, record.size))))
        for _ in range(READS_OF_A_MOVING_BLOCK):
            place = self._catalogue.nvme_extent(slot) if self._catalogue.sequence[slot] == record.sequence else None
            if self._parts.nvme is None or place is None:
                return None
            try:
                await self._parts.nvme.read(place, record, buffer)
            except CorruptBlock:
                continue
            return Payload(record, buffer[: record.size])
        return None


def _copied(source: memoryview, into: memoryview, checksum: bytes) -> bool:
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(source, np.uint8))
    return payload_checksum(into) == checksum
