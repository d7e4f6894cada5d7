"""Finding blocks: match, hold, fetch, info, list, and taking them out again by delete or quarantine."""

import logging
import time
from collections.abc import Sequence
from itertools import islice

from mooncask.errors import CorruptBlock
from mooncask.tiers.block import Extent, Hint, TierName, printable_key
from mooncask.tiers.catalogue import NOWHERE
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.parts import Parts
from mooncask.tiers.requests import BlockInfo, Match

log = logging.getLogger(__name__)

DRAM_BYTES_PER_SECOND = 8e9
"""A reader's copy out of the arena, for predictions: what a core copies from memory of its own node."""

_PLACES = (TierName.HBM, TierName.DRAM, TierName.NVME)
_TIERS = tuple(tuple(tier for bit, tier in enumerate(_PLACES) if places >> bit & 1) for places in range(8))
"""By a bit for each of them."""


class Lookup:
    """The reading half of the store."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._catalogue = parts.catalogue
        self._copies = parts.copies

    def find(self, namespace: Namespace, key: bytes) -> int | None:
        """The slot of a block that is here; what has expired is not, whether it was swept or not."""
        slot = namespace.index.get(key)
        return None if slot is None or self._catalogue.expired(slot, time.time()) else slot

    def match(self, namespace: Namespace, keys: Sequence[bytes]) -> Match:
        catalogue, index = self._catalogue, namespace.index
        where, sizes = catalogue.where, catalogue.size
        now = time.time() if namespace.ttl_blocks else 0.0
        nvme_pace = 1.0 / self._parts.nvme_bytes_per_second()
        tiers, seconds, total = bytearray(), [], 0.0
        for key in keys:
            slot = index.get(key)
            if slot is None or (now and catalogue.expired(slot, now)):
                break
            tier = where[slot]
            total += sizes[slot] * (nvme_pace if tier == TierName.NVME else 1.0 / DRAM_BYTES_PER_SECOND)
            tiers.append(tier)
            seconds.append(total)
        return Match(bytes(tiers), seconds)

    def hold(self, namespace: Namespace, keys: Sequence[bytes], hint: Hint) -> list[Extent | None]:
        index = namespace.index
        slots = [index.get(key) for key in keys]
        if namespace.ttl_blocks:
            now = time.time()
            slots = [None if slot is None or self._catalogue.expired(slot, now) else slot for slot in slots]
        held = self._copies.hold(slots)
        self._parts.recency.used(slots, hint)
        return held

    async def fetch(self, namespace: Namespace, key: bytes, deadline: float, hint: Hint) -> Extent | None:
        [extent] = self.hold(namespace, [key], hint)
        if extent is not None:
            return extent
        slot = self.find(namespace, key)
        if slot is None or self._parts.bring_up is None:
            return None
        return await self._parts.bring_up.fetch(slot, deadline)

    async def warm(self, namespace: Namespace, key: bytes, deadline: float) -> bool:
        slot = self.find(namespace, key)
        if slot is None:
            return False
        [extent] = self._copies.hold([slot])
        if extent is not None:
            if self._copies.keep_transient(extent):
                self._parts.recency.entered_dram(slot)
        elif self._parts.bring_up is not None:
            extent = await self._parts.bring_up.fetch(slot, deadline, stays=True)
        if extent is not None:
            self._copies.drop(extent)
        return extent is not None

    def info(self, slot: int) -> BlockInfo:
        catalogue = self._catalogue
        extent = catalogue.dram.get(slot)
        ttl = catalogue.ttl[slot]
        return BlockInfo(
            key=catalogue.keys[slot],
            size=catalogue.size[slot],
            tiers=self._tiers(slot),
            checksum=catalogue.checksum(slot),
            parent=catalogue.parents[slot],
            depth=catalogue.depth[slot],
            tokens=catalogue.tokens[slot],
            hits=catalogue.hits[slot],
            pins=catalogue.pins[slot],
            leases=0 if extent is None else extent.references - 1,
            ttl_seconds=max(0.001, ttl - time.time()) if ttl else 0.0,
            durable=catalogue.nvme_offset[slot] != NOWHERE,
            created_seconds=float(catalogue.created[slot]),
            attributes=catalogue.attributes.get(slot, b""),
        )

    def _tiers(self, slot: int) -> tuple[TierName, ...]:
        catalogue = self._catalogue
        places = (slot in catalogue.hbm) + 2 * (slot in catalogue.dram) + 4 * (catalogue.nvme_offset[slot] != NOWHERE)
        return _TIERS[places]

    def list_blocks(self, namespace: Namespace, prefix: bytes, after: bytes, limit: int) -> list[BlockInfo]:
        now = time.time()
        slots = (namespace.index[key] for key in namespace.keys_after(prefix, after))
        return [self.info(slot) for slot in islice((s for s in slots if not self._catalogue.expired(s, now)), limit)]

    # --- taking out ---

    async def delete(self, namespace: Namespace, keys: Sequence[bytes]) -> int:
        slots = [slot for key in dict.fromkeys(keys) if (slot := namespace.index.get(key)) is not None]
        tombstones = [self._take_out(slot, "deleted") for slot in slots]
        self._parts.counters["deleted"] += len(slots)
        await self._bury([tombstone for tombstone in tombstones if tombstone is not None])
        return len(slots)

    def quarantine_slot(self, slot: int, error: CorruptBlock) -> None:
        """Called wherever wrong bytes are met. The tombstone follows in the background: readers must not wait for it."""
        # The text and not the error: a log record that is kept would keep the arena mapped through its traceback.
        log.error("%s", error.message)
        self._parts.counters["quarantined"] += 1
        tombstone = self._take_out(slot, "quarantined")
        if tombstone is not None:
            self._parts.bury_later(tombstone)

    def _take_out(self, slot: int, why: str) -> tuple[int, bytes, int] | None:
        """Out of the catalogue now; returns the tombstone that keeps it out, if NVMe may have or get the block."""
        catalogue = self._catalogue
        namespace, key = catalogue.namespace[slot], catalogue.keys[slot]
        write_down = self._parts.write_down
        older_below = write_down is not None and write_down.may_be_below((namespace, key))
        on_nvme = catalogue.nvme_offset[slot] != NOWHERE
        self._copies.remove(slot, why)
        log.debug("block %s of namespace %d was taken out", printable_key(key), namespace)
        return (namespace, key, self._parts.next_sequence()) if older_below or on_nvme else None

    async def _bury(self, tombstones: list[tuple[int, bytes, int]]) -> None:
        if tombstones and self._parts.write_down is not None:
            await self._parts.write_down.delete(tombstones)
