"""Who leaves DRAM and NVMe when room is needed: rules on top of the policies' order. Decides; carries nothing out.

The rules (docs/ARCHITECTURE.md, "Life of a block"): nothing that is in use leaves; a block is written below before it is
forgotten above; what would be forgotten from its last tier must be a leaf, unpinned and of an evictable namespace. Of blocks that
other nodes have too, those that are known to stay there go before all others, and the rest not before it was asked (`replicas.py`).
"""

import time
from enum import Enum

from mooncask.tiers.block import WriteMode
from mooncask.tiers.catalogue import NOWHERE, Catalogue
from mooncask.tiers.replicas import Replicas

SHORT_LOOK_SECONDS = 0.002


class Pressure(Enum):
    """What one step of eviction achieved."""

    FREED = "room was made at once"
    STARTED = "a block is on its way down; room follows"
    NOTHING = "nothing may leave now"


class ScanPause:
    """Keeps looks at every block that found none to leave to a tenth of the time: with 100 000 blocks that may not leave one
    look takes 50 ms, and each end of a lease would cause the next."""

    def __init__(self) -> None:
        self._until = 0.0

    def left_seconds(self) -> float:
        """How long not to look again; 0 = look now."""
        return max(0.0, self._until - time.monotonic())

    def found_nothing(self, began: float) -> None:
        """A look that began then (`time.monotonic()`) has just ended."""
        now = time.monotonic()
        if (took := now - began) > SHORT_LOOK_SECONDS:
            self._until = now + 9 * took


class LeaveRules:
    """Answers `may_leave` for the policies of both tiers."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self.replicas = Replicas(catalogue)
        self.nvme_takes_writes = False
        """Kept up to date by the store: there is an NVMe tier and it is not degraded."""
        self.nvme_is_full = False
        """Kept up to date by the store: nothing may leave NVMe, a write just failed, so that writing is no way to leave."""

    def may_leave_dram(self, slot: int) -> bool:
        extent = self._catalogue.dram.get(slot)
        if extent is None or extent.references != 1:
            return False
        if self._catalogue.nvme_offset[slot] != NOWHERE or self.needs_writing(slot):
            return True
        return self.may_be_forgotten(slot)

    def needs_writing(self, slot: int) -> bool:
        """Whether leaving DRAM means being written to NVMe first.

        Also where blocks are written at once: the write of one that was just published may not have begun.
        """
        if not self.nvme_takes_writes or self.nvme_is_full or self._catalogue.nvme_offset[slot] != NOWHERE:
            return False
        return self._catalogue.owner(slot).spec.mode is not WriteMode.MEMORY

    def wants_nvme(self, slot: int) -> bool:
        return self._catalogue.owner(slot).spec.mode is not WriteMode.MEMORY

    def may_leave_nvme(self, slot: int) -> bool:
        """With a copy in DRAM the one below is only the spare; without, the block is forgotten."""
        catalogue = self._catalogue
        if catalogue.nvme_offset[slot] == NOWHERE or catalogue.pins[slot] or not catalogue.owner(slot).spec.evictable:
            return False
        return slot in catalogue.dram or (catalogue.is_leaf(slot) and not self.replicas.holds_back(slot))

    def spare_may_leave_dram(self, slot: int) -> bool:
        """Of a block that is in DRAM only, and that another node keeps."""
        extent = self._catalogue.dram.get(slot)
        if extent is None or extent.references != 1 or self._catalogue.nvme_offset[slot] != NOWHERE:
            return False
        return self._may_go(slot)

    def spare_may_leave_nvme(self, slot: int) -> bool:
        """Of a block that is on NVMe, and that another node keeps: it leaves DRAM as well."""
        extent = self._catalogue.dram.get(slot)
        if self._catalogue.nvme_offset[slot] == NOWHERE or (extent is not None and extent.references != 1):
            return False
        return self._may_go(slot)

    def may_be_forgotten(self, slot: int) -> bool:
        """Whether the block's last copy on this node may go."""
        return self._may_go(slot) and not self.replicas.holds_back(slot)

    def _may_go(self, slot: int) -> bool:
        catalogue = self._catalogue
        return not catalogue.pins[slot] and catalogue.is_leaf(slot) and catalogue.owner(slot).spec.evictable
