"""Every block of the node in memory: which, how big, where, how used. Hit lookups touch nothing else.

A block is a slot: an index into columns of plain machine integers, about 100 bytes a block; with its key, its namespace's
dictionary entry and the slot number itself about 250. Objects of 20 attributes a block would take four times that.
Slots are reused; (slot, sequence) is not: after an `await`, compare `sequence[slot]` with the one seen before.
"""

import heapq
from array import array
from collections.abc import Callable, Iterator

from mooncask.tiers.block import BlockRecord, Extent, TierName, aligned
from mooncask.tiers.namespace import Namespace, NamespaceRegistry

NOWHERE = -1
NO_PARENT = -1
CHECKSUM_BYTES = 16
ANCESTORS_MAX = 1 << 16
ENDS_SPARE = 1024
"""Ends of times to live that were changed; more of them than this beside the live ones are thrown out."""


class Catalogue:
    """The columns and what keeps them consistent. Owned by the event loop's thread."""

    def __init__(self, registry: NamespaceRegistry) -> None:
        self.registry = registry
        self.keys: list[bytes] = []
        self.parents: list[bytes] = []
        """Key of the block before it in its chain; the very object that is the parent's key where that is here."""
        self.namespace = array("I")
        self.size = array("I")
        self.sequence = array("Q")
        """0 = the slot is free."""
        self.parent_slot = array("i")
        self.children = array("I")
        self.depth = array("I")
        self.tokens = array("I")
        self.hits = array("I")
        self.pins = array("I")
        self.holds = array("I")
        """Of the pins, those that end with this run of the daemon: they never reach the disk."""
        self.ttl = array("d")
        """Wall clock second at which the block vanishes, 0 = never."""
        self.created = array("I")
        self.checksums = bytearray()
        self.nvme_offset = array("q")
        self.nvme_generation = array("I")
        self.nvme_length = array("I")
        self.where = bytearray()
        """The fastest TierName that has the block, 0 = none yet."""
        self.dram: dict[int, Extent] = {}
        self.hbm: dict[int, Extent] = {}
        self.attributes: dict[int, bytes] = {}
        """Only of blocks that have some: KV blocks have none and pay nothing."""
        self.on_attributes_gone: Callable[[Namespace, bytes, bytes], None] = lambda namespace, key, attributes: None
        """Called with the attributes of a block that has just left, in whatever way: deleted, replaced, expired, wrong."""
        self.highest_sequence = 0
        self.pinned_bytes = 0
        self.pinned_dram_bytes = 0
        """Of `pinned_bytes`, those whose block is in DRAM and not on NVMe: what is also below may leave DRAM, pinned or not.
        Both count whole extents."""
        self._free: list[int] = []
        self._ttl_blocks = 0
        self._ends: list[tuple[float, int]] = []
        """A heap of times to live; one that is not the slot's time any more means nothing."""
        self._awaited: dict[tuple[int, bytes], set[int]] = {}
        """Blocks whose parent is not here (yet), by the parent's namespace and key: commits and restarts come in any order."""

    def __len__(self) -> int:
        return len(self.keys) - len(self._free)

    def slots(self) -> Iterator[int]:
        """Slots in use."""
        return (slot for slot, sequence in enumerate(self.sequence) if sequence)

    # --- entering and leaving ---

    def insert(self, namespace: Namespace, record: BlockRecord) -> int:
        """A new block, in no tier yet. The key must not be there."""
        assert record.key not in namespace.index
        slot = self._free.pop() if self._free else self._grow()
        self.keys[slot] = record.key
        self.parents[slot] = record.parent
        self.namespace[slot] = namespace.id
        self.size[slot] = record.size
        self.sequence[slot] = record.sequence
        self.depth[slot] = record.depth
        self.tokens[slot] = record.tokens
        self.created[slot] = record.created
        if record.attributes:
            self.attributes[slot] = record.attributes
        self.checksums[slot * CHECKSUM_BYTES : (slot + 1) * CHECKSUM_BYTES] = record.checksum
        namespace.add_key(record.key, slot)
        self._link(slot, namespace)
        namespace.stored_bytes += record.size
        self.highest_sequence = max(self.highest_sequence, record.sequence)
        return slot

    def remove(self, slot: int) -> None:
        """The block is gone from all tiers (the caller has taken its extents)."""
        assert self.sequence[slot] and slot not in self.dram and slot not in self.hbm
        namespace, key = self.owner(slot), self.keys[slot]
        attributes = self.attributes.pop(slot, b"")
        self.set_ttl(slot, 0.0)
        self.add_pins(slot, -self.pins[slot])
        self.holds[slot] = 0
        namespace.remove_key(key)
        namespace.stored_bytes -= self.size[slot]
        self._unlink(slot)
        for column in (self.sequence, self.children, self.hits):
            column[slot] = 0
        self.nvme_offset[slot] = NOWHERE
        self.where[slot] = 0
        self.keys[slot] = self.parents[slot] = b""
        self._free.append(slot)
        if attributes:
            self.on_attributes_gone(namespace, key, attributes)

    def _link(self, slot: int, namespace: Namespace) -> None:
        """To its parent if that is here, and those that wait for this block to it."""
        parent = self.parents[slot]
        parent_slot = namespace.index.get(parent, NO_PARENT) if parent else NO_PARENT
        if parent and parent_slot == NO_PARENT:
            self._awaited.setdefault((namespace.id, parent), set()).add(slot)
        self.parent_slot[slot] = NO_PARENT
        if parent_slot != NO_PARENT:
            self._adopt(slot, parent_slot)
        for child in self._awaited.pop((namespace.id, self.keys[slot]), ()):
            if not self._descends(slot, child):
                self._adopt(child, slot)

    def _descends(self, slot: int, ancestor: int) -> bool:
        """Whether the chain above `slot` comes to `ancestor`: a ring of parents would have no leaf, and nothing of it would
        ever leave. A chain of more blocks than are looked at counts as one."""
        for _ in range(ANCESTORS_MAX):
            parent = self.parent_slot[slot]
            if parent == NO_PARENT or self.keys[parent] != self.parents[slot]:
                return False
            if parent == ancestor:
                return True
            slot = parent
        return True

    def _adopt(self, child: int, parent_slot: int) -> None:
        self.parent_slot[child] = parent_slot
        self.parents[child] = self.keys[parent_slot]
        self.children[parent_slot] += 1

    def _unlink(self, slot: int) -> None:
        if self.parent_slot[slot] == NO_PARENT and self.parents[slot]:
            name = (self.namespace[slot], self.parents[slot])
            waiting = self._awaited.get(name, set())
            waiting.discard(slot)
            if not waiting:
                self._awaited.pop(name, None)
        # The parent's slot may have been reused since; a wrong count only makes leaf-first a little less exact.
        self.child_came(self.parent_slot[slot], self.parents[slot])

    def _grow(self) -> int:
        self.keys.append(b"")
        self.parents.append(b"")
        for column in (self.namespace, self.size, self.sequence, self.children, self.depth, self.tokens):
            column.append(0)
        for column in (self.hits, self.pins, self.holds, self.created, self.nvme_generation, self.nvme_length):
            column.append(0)
        self.parent_slot.append(NO_PARENT)
        self.ttl.append(0.0)
        self.nvme_offset.append(NOWHERE)
        self.checksums.extend(bytes(CHECKSUM_BYTES))
        self.where.append(0)
        return len(self.keys) - 1

    # --- reading ---

    def owner(self, slot: int) -> Namespace:
        namespace = self.registry.by_id(self.namespace[slot])
        assert namespace is not None
        return namespace

    def checksum(self, slot: int) -> bytes:
        return bytes(self.checksums[slot * CHECKSUM_BYTES : (slot + 1) * CHECKSUM_BYTES])

    def record(self, slot: int) -> BlockRecord:
        return BlockRecord(
            namespace=self.namespace[slot],
            key=self.keys[slot],
            size=self.size[slot],
            checksum=self.checksum(slot),
            sequence=self.sequence[slot],
            parent=self.parents[slot],
            depth=self.depth[slot],
            tokens=self.tokens[slot],
            created=self.created[slot],
            attributes=self.attributes.get(slot, b""),
        )

    def find(self, record: BlockRecord) -> int | None:
        """The slot of exactly this copy (same sequence), or None."""
        namespace = self.registry.by_id(record.namespace)
        slot = namespace.index.get(record.key) if namespace else None
        return slot if slot is not None and self.sequence[slot] == record.sequence else None

    def expect_child(self, namespace: Namespace, parent: bytes) -> int:
        """A block that continues `parent` is being written: the parent is no leaf from now on. Returns its slot, or NO_PARENT.

        Without this the only leaf of a chain, the parent of the very block that needs room, would be the one to leave.
        """
        slot = namespace.index.get(parent, NO_PARENT) if parent else NO_PARENT
        if slot != NO_PARENT:
            self.children[slot] += 1
        return slot

    def child_came(self, parent_slot: int, parent: bytes) -> None:
        """The end of `expect_child`, whether the child came or not."""
        if parent_slot != NO_PARENT and self.keys[parent_slot] == parent and self.children[parent_slot]:
            self.children[parent_slot] -= 1

    def is_leaf(self, slot: int) -> bool:
        return self.children[slot] == 0

    def nvme_extent(self, slot: int) -> Extent | None:
        if self.nvme_offset[slot] == NOWHERE:
            return None
        return Extent(
            TierName.NVME,
            self.nvme_offset[slot],
            self.nvme_length[slot],
            self.nvme_generation[slot],
            size=self.size[slot],
        )

    # --- where it is ---

    def place_dram(self, slot: int, extent: Extent) -> None:
        self.dram[slot] = extent
        self.pinned_dram_bytes += self._stuck_bytes(slot)
        self._note_where(slot)

    def take_dram(self, slot: int) -> Extent:
        self.pinned_dram_bytes -= self._stuck_bytes(slot)
        extent = self.dram.pop(slot)
        self._note_where(slot)
        return extent

    def place_hbm(self, slot: int, extent: Extent) -> None:
        self.hbm[slot] = extent
        self._note_where(slot)

    def take_hbm(self, slot: int) -> Extent:
        extent = self.hbm.pop(slot)
        self._note_where(slot)
        return extent

    def place_nvme(self, slot: int, extent: Extent) -> None:
        self.pinned_dram_bytes -= self._stuck_bytes(slot)
        self.nvme_offset[slot] = extent.offset
        self.nvme_length[slot] = extent.length
        self.nvme_generation[slot] = extent.generation
        self._note_where(slot)

    def take_nvme(self, slot: int) -> Extent:
        extent = self.nvme_extent(slot)
        assert extent is not None
        self.nvme_offset[slot] = NOWHERE
        self.pinned_dram_bytes += self._stuck_bytes(slot)
        self._note_where(slot)
        return extent

    def _stuck_bytes(self, slot: int) -> int:
        """What of a pinned block can't leave DRAM."""
        if not self.pins[slot] or slot not in self.dram or self.nvme_offset[slot] != NOWHERE:
            return 0
        return aligned(self.size[slot])

    def _note_where(self, slot: int) -> None:
        if slot in self.hbm:
            self.where[slot] = TierName.HBM
        elif slot in self.dram:
            self.where[slot] = TierName.DRAM
        else:
            self.where[slot] = 0 if self.nvme_offset[slot] == NOWHERE else TierName.NVME

    # --- pins and time to live ---

    def add_pins(self, slot: int, pins: int) -> None:
        """Pins count; the first and the last of a block change the pinned bytes."""
        before, stuck_before = bool(self.pins[slot]), self._stuck_bytes(slot)
        self.pins[slot] += pins
        self.pinned_bytes += (bool(self.pins[slot]) - before) * aligned(self.size[slot])
        self.pinned_dram_bytes += self._stuck_bytes(slot) - stuck_before

    def add_holds(self, slot: int, holds: int) -> None:
        """Pins of this run of the daemon."""
        self.holds[slot] += holds
        self.add_pins(slot, holds)

    def lasting_pins(self, slot: int) -> int:
        """What the disk is told."""
        return self.pins[slot] - self.holds[slot]

    def set_ttl(self, slot: int, deadline_seconds: float) -> None:
        """`deadline_seconds` on the wall clock; 0 = none."""
        change = bool(deadline_seconds) - bool(self.ttl[slot])
        self.owner(slot).ttl_blocks += change
        self._ttl_blocks += change
        self.ttl[slot] = deadline_seconds
        if deadline_seconds:
            heapq.heappush(self._ends, (deadline_seconds, slot))
            if len(self._ends) > 2 * self._ttl_blocks + ENDS_SPARE:
                self._ends = [(ttl, slot) for slot, ttl in enumerate(self.ttl) if ttl]
                heapq.heapify(self._ends)

    def take_expired(self, now_seconds: float, most: int) -> list[int]:
        """Up to `most` blocks whose time is over, each once: the caller lets go of them before anything else happens."""
        expired: list[int] = []
        while self._ends and self._ends[0][0] <= now_seconds and len(expired) < most:
            deadline, slot = heapq.heappop(self._ends)
            if self.ttl[slot] == deadline:
                expired.append(slot)
        return list(dict.fromkeys(expired))

    def expired(self, slot: int, now_seconds: float) -> bool:
        return 0.0 < self.ttl[slot] <= now_seconds
