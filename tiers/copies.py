"""References on extents, and the one place where a block's copies are let go.

An extent goes back to its allocator when its last reference drops: readers keep their bytes through delete, eviction
and quarantine. Nothing here waits.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence

from mooncask.tiers.block import Extent
from mooncask.tiers.catalogue import NOWHERE, Catalogue
from mooncask.tiers.departures import Departures
from mooncask.tiers.dram import DramTier
from mooncask.tiers.flows import Flows, Way
from mooncask.tiers.hbm import HbmTier
from mooncask.tiers.histogram import Timings
from mooncask.tiers.nvme import NvmeTier
from mooncask.tiers.policies.by_priority import ByPriority


class Copies:
    """What holds the tiers, the catalogue and the policies in step."""

    def __init__(
        self,
        catalogue: Catalogue,
        dram: DramTier,
        nvme: NvmeTier | None,
        hbm: HbmTier | None,
        policies: "TierPolicies",
        counters: Counter[str],
    ) -> None:
        self.catalogue = catalogue
        self.dram = dram
        self.nvme = nvme
        self.hbm = hbm
        self.policies = policies
        self.counters = counters
        self.flows = Flows()
        self.departures = Departures()
        self.timings = Timings()
        self.leased_bytes = 0
        """Bytes of extents that somebody beside the catalogue refers to."""
        self.room_changed: Callable[[], None] = lambda: None
        self._orphans: set[int] = set()
        self._transient: dict[int, int] = {}

    # --- references ---

    def hold(self, slots: Sequence[int | None]) -> list[Extent | None]:
        """One reference more on each block that is in DRAM. The hot path: no call per block."""
        dram = self.catalogue.dram
        held: list[Extent | None] = []
        for slot in slots:
            extent = dram.get(slot) if slot is not None else None
            if extent is not None:
                if extent.references == 1:
                    self.leased_bytes += extent.length
                extent.references += 1
            held.append(extent)
        return held

    def hold_extent(self, extent: Extent, references: int = 1) -> None:
        """References on an extent that the catalogue owns."""
        if extent.references == 1:
            self.leased_bytes += extent.length
        extent.references += references

    def drop(self, extent: Extent) -> None:
        """Give back one reference that `hold` or `hold_extent` gave."""
        extent.references -= 1
        if extent.references > 1:
            return
        if extent.offset in self._orphans:
            if extent.references == 0:
                self._orphans.discard(extent.offset)
                self.leased_bytes -= extent.length
                self.dram.free(extent)
                self.room_changed()
            return
        self.leased_bytes -= extent.length
        slot = self._transient.get(extent.offset)
        if slot is not None:
            self.drop_dram(slot)
        self.room_changed()

    def free(self, extent: Extent) -> None:
        """Give back an extent that nobody but the caller refers to."""
        self.dram.free(extent)
        self.room_changed()

    def abort(self, extent: Extent) -> None:
        """A reservation ends without a block; who reads what was written of it keeps the place until `drop`."""
        self._disown(extent)

    def _disown(self, extent: Extent) -> None:
        """The catalogue, or a writer, lets go of a DRAM extent; readers keep it."""
        extent.references -= 1
        if extent.references:
            self._orphans.add(extent.offset)
        else:
            self.free(extent)

    # --- a loaded block that has not earned its place ---

    def mark_transient(self, slot: int) -> None:
        """The DRAM copy goes as soon as its readers are done."""
        self._transient[self.catalogue.dram[slot].offset] = slot

    def keep_transient(self, extent: Extent) -> bool:
        """It stays after all; whether it was to go. The caller tells the policy."""
        return self._transient.pop(extent.offset, None) is not None

    # --- letting go ---

    def drop_dram(self, slot: int) -> None:
        extent = self.catalogue.take_dram(slot)
        self._transient.pop(extent.offset, None)
        self.policies.dram.remove(slot)
        self._disown(extent)

    def drop_hbm(self, slot: int) -> None:
        assert self.hbm is not None
        self.policies.hbm.remove(slot)
        self.hbm.free(self.catalogue.take_hbm(slot))

    def drop_nvme(self, slot: int) -> None:
        """Evict from NVMe: no tombstone, a rebuild may bring the block back, which is no harm."""
        assert self.nvme is not None
        record = self.catalogue.record(slot)
        self.policies.nvme.remove(slot)
        self.nvme.forget(self.catalogue.take_nvme(slot), record)

    def release_nvme(self, slot: int) -> None:
        """The place is dead, since a tombstone or a newer copy takes the block out of the index."""
        assert self.nvme is not None
        self.policies.nvme.remove(slot)
        self.nvme.free(self.catalogue.take_nvme(slot))

    def forget(self, slot: int, reason: str, why: str = "evicted") -> None:
        """The block leaves the node under pressure or by its time to live. `why` is what the log of departures says."""
        self._note_departure(slot, why)
        if self.catalogue.nvme_offset[slot] != NOWHERE:
            self.drop_nvme(slot)
        self._forget_memory(slot)
        self.counters[f"forgotten_{reason}"] += 1

    def forget_replica(self, slot: int, reason: str, flow: Way) -> None:
        """The same for a block that another node keeps."""
        self.flows.add(flow, self.catalogue.size[slot])
        self.forget(slot, reason)
        self.counters["replicas_dropped"] += 1

    def supersede(self, slot: int) -> Extent | None:
        """The block gives way to a newer one of the same key, but stays on disk until that is there: its place, if any."""
        self._note_departure(slot, "replaced")
        on_nvme = self.catalogue.nvme_offset[slot] != NOWHERE
        if on_nvme:
            self.policies.nvme.remove(slot)
        place = self.catalogue.take_nvme(slot) if on_nvme else None
        self._forget_memory(slot)
        return place

    def remove(self, slot: int, why: str) -> None:
        """The block leaves the node for good; the caller sees to the tombstone."""
        self._note_departure(slot, why)
        if self.catalogue.nvme_offset[slot] != NOWHERE:
            self.release_nvme(slot)
        self._forget_memory(slot)

    def _note_departure(self, slot: int, why: str) -> None:
        catalogue = self.catalogue
        self.departures.note(
            time.time(),
            catalogue.namespace[slot],
            catalogue.keys[slot],
            catalogue.where[slot],
            why,
            catalogue.size[slot],
        )

    def _forget_memory(self, slot: int) -> None:
        if slot in self.catalogue.hbm:
            self.drop_hbm(slot)
        if slot in self.catalogue.dram:
            self.drop_dram(slot)
        self.catalogue.remove(slot)
        self.room_changed()


class TierPolicies:
    """One eviction policy a tier."""

    def __init__(self, hbm: ByPriority, dram: ByPriority, nvme: ByPriority) -> None:
        self.hbm = hbm
        self.dram = dram
        self.nvme = nvme
