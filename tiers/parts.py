"""What a store is built from, and the building of it: tiers, catalogue, policies and the movers between them."""

import asyncio
import ctypes
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

from mooncask.errors import CorruptBlock, MooncaskError
from mooncask.tiers.arena import Arena
from mooncask.tiers.block import BlockRecord, Extent, TierName
from mooncask.tiers.bring_up import BringUp
from mooncask.tiers.catalogue import Catalogue
from mooncask.tiers.copies import Copies, TierPolicies
from mooncask.tiers.dram import DramTier
from mooncask.tiers.flows import DEMOTE, EVICT_DRAM
from mooncask.tiers.hbm import HbmTier
from mooncask.tiers.hbm_promotion import HbmPromotion
from mooncask.tiers.namespace import NamespaceRegistry
from mooncask.tiers.nvme import NvmeTier
from mooncask.tiers.policies import make_policy
from mooncask.tiers.policies.by_priority import by_priority
from mooncask.tiers.pressure import LeaveRules, Pressure
from mooncask.tiers.recency import SLICE, Recency
from mooncask.tiers.requests import StoreConfig, StoreStatus, TierStatus
from mooncask.tiers.room import Room
from mooncask.tiers.sketch import FrequencySketch
from mooncask.tiers.write_down import Tombstone, WriteDown

log = logging.getLogger(__name__)


class Parts:
    """The parts of one store, wired. Holds no rules of its own but the sums that several parts share."""

    def __init__(
        self,
        config: StoreConfig,
        dram: DramTier,
        nvme: NvmeTier | None,
        hbm: HbmTier | None,
        registry: NamespaceRegistry,
        catalogue: Catalogue,
        executor: ThreadPoolExecutor,
    ) -> None:
        self.config, self.dram, self.nvme, self.hbm = config, dram, nvme, hbm
        self.registry, self.catalogue, self._executor = registry, catalogue, executor
        self.counters: Counter[str] = Counter()
        self.policies = TierPolicies(
            hbm=by_priority(lambda: make_policy("lru", config.hbm_bytes or 1)),
            dram=by_priority(lambda: make_policy(config.dram_policy, config.dram_bytes)),
            nvme=by_priority(lambda: make_policy(config.nvme_policy, config.nvme.capacity_bytes if config.nvme else 1)),
        )
        self.copies = Copies(catalogue, dram, nvme, hbm, self.policies, self.counters)
        self.recency = Recency(catalogue, self.policies, asyncio.get_running_loop().call_later)
        self.rules = LeaveRules(catalogue)
        self.room = Room(dram, self._evict_one_from_dram, self._may_reserve, config.queue_max)
        self.copies.room_changed = self.room.changed
        self.sketch = FrequencySketch(config.promote_window)
        self.write_down: WriteDown | None = None
        self.bring_up: BringUp | None = None
        self.hbm_promotion: HbmPromotion | None = None
        self.on_corrupt: Callable[[int, CorruptBlock], None] = lambda slot, error: None
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False
        if nvme is not None:
            self._wire_nvme(nvme)
        if hbm is not None:
            self.hbm_promotion = HbmPromotion(
                hbm, self.copies, self.recency, self.sketch, config.promote_after, self.background
            )
            self.recency.on_use = self.hbm_promotion.used

    def _wire_nvme(self, nvme: NvmeTier) -> None:
        config = self.config
        self.rules.nvme_takes_writes = True
        self.write_down = WriteDown(nvme, self.copies, self.recency, self.rules, self.counters, config.dirty_bytes_max)
        self.bring_up = BringUp(
            nvme,
            self.copies,
            self.room,
            self.recency,
            self.sketch,
            config.promote_after,
            lambda slot, error: self.on_corrupt(slot, error),
            config.load_seconds_max,
            self.counters,
        )

    def promote_after(self, reads: int) -> None:
        """From now on, on the way to DRAM and to HBM."""
        if self.bring_up is not None:
            self.bring_up.promote_after = reads
        if self.hbm_promotion is not None:
            self.hbm_promotion.promote_after = reads

    # --- shared sums ---

    def next_sequence(self) -> int:
        self.catalogue.highest_sequence += 1
        return self.catalogue.highest_sequence

    def held_limit_bytes(self) -> int:
        return int(self.config.held_share * self.config.dram_bytes)

    def held_limit_nvme_bytes(self) -> int:
        return int(self.config.held_share * self.nvme.usable_bytes) if self.nvme is not None else 0

    def held_bytes(self) -> int:
        """DRAM that can't be had by evicting: leased, reserved, pinned. A leased pinned block counts twice, to be safe."""
        return self.copies.leased_bytes + self.room.reserved_bytes + self.catalogue.pinned_dram_bytes

    def _may_reserve(self, size_bytes: int) -> bool:
        return self.held_bytes() + size_bytes <= self.held_limit_bytes()

    def nvme_bytes_per_second(self) -> float:
        return self.bring_up.rate.bytes_per_second if self.bring_up is not None else 1.0

    # --- eviction from DRAM ---

    def _evict_one_from_dram(self) -> Pressure:
        self.recency.flush(SLICE)
        self.rules.nvme_takes_writes = self.nvme is not None and self.nvme.state == "ok"
        self.rules.nvme_is_full = self.write_down is not None and self.write_down.full
        if (spare := self.rules.replicas.take(self.rules.spare_may_leave_dram)) is not None:
            self.copies.forget_replica(spare, "dram", EVICT_DRAM)
            return Pressure.FREED
        slot = self.policies.dram.evict(self.rules.may_leave_dram)
        if slot is None:
            self.rules.replicas.fell_short()
            return Pressure.NOTHING
        if self.rules.needs_writing(slot):
            self._demote(slot)
            return Pressure.STARTED
        self.copies.flows.add(EVICT_DRAM, self.catalogue.size[slot])
        if self.catalogue.nvme_extent(slot) is not None:
            self.copies.drop_dram(slot)
            self.counters["evicted_dram_copies"] += 1
        else:
            self.copies.forget(slot, "dram", "lost_dirty" if self._count_loss(slot) else "evicted")
        return Pressure.FREED

    def _count_loss(self, slot: int) -> bool:
        """Whether it is one: a block that should have been on NVMe and is not, since the disk failed or is full of what may not leave it."""
        unwritable = not self.rules.nvme_takes_writes or self.rules.nvme_is_full
        lost = self.nvme is not None and unwritable and self.rules.wants_nvme(slot)
        self.counters["lost_dirty"] += lost
        return lost

    def _demote(self, slot: int) -> None:
        assert self.write_down is not None
        sequence = self.catalogue.sequence[slot]
        self.write_down.start(slot).add_done_callback(lambda _: self._demoted(slot, sequence))

    def _demoted(self, slot: int, sequence: int) -> None:
        """Written below, now forget above; if either can't be, it stays and queues up again."""
        if self.catalogue.sequence[slot] != sequence or slot not in self.catalogue.dram:
            return
        written = self.catalogue.nvme_extent(slot) is not None
        if written and self.catalogue.dram[slot].references == 1:
            self.copies.flows.add(DEMOTE, self.catalogue.size[slot])
            self.copies.drop_dram(slot)
            self.counters["demoted"] += 1
        else:
            self.recency.entered_dram(slot)
        self.copies.room_changed()

    # --- the life of the whole ---

    def background(self, work: Coroutine[None, None, None]) -> None:
        if self._closed:  # uses that are told of late must not move blocks between tiers that are gone
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    def bury_later(self, tombstone: Tombstone) -> None:
        """A delete that nobody waits for."""
        self.background(self._bury(tombstone))

    async def _bury(self, tombstone: Tombstone) -> None:
        assert self.write_down is not None
        try:
            await self.write_down.delete([tombstone])
        except MooncaskError as error:
            self.counters["tombstones_given_up"] += 1
            log.warning("a block that was taken out may be there again after a restart: %s", error.message)

    async def close(self) -> None:
        while self._background:
            await asyncio.wait(set(self._background))
        self._closed = True
        if self.bring_up is not None:
            await self.bring_up.drained()
        for tier in (self.nvme, self.hbm, self.dram):
            if tier is not None:
                await tier.close()
        self._executor.shutdown()

    def status(self) -> StoreStatus:
        dirty = self.write_down.dirty_bytes if self.write_down is not None else 0
        return StoreStatus(self._tier_statuses(), self.room.waiting, dirty)

    def _tier_statuses(self) -> list[TierStatus]:
        catalogue, dram = self.catalogue, self.dram
        leased, reserved = self.copies.leased_bytes, self.room.reserved_bytes
        statuses = [
            TierStatus(
                TierName.DRAM, dram.capacity_bytes, dram.used_bytes, len(catalogue.dram), catalogue.pinned_dram_bytes,
                leased, reserved, self.config.dram_policy, dram.state,
            )
        ]  # fmt: skip
        if self.hbm is not None:
            hbm = self.hbm
            statuses.insert(
                0,
                TierStatus(TierName.HBM, hbm.capacity_bytes, hbm.used_bytes, len(catalogue.hbm), 0, 0, 0, "lru", "ok"),
            )
        if self.nvme is not None:
            nvme = self.nvme
            statuses.append(
                TierStatus(
                    TierName.NVME, nvme.usable_bytes, nvme.used_bytes, len(self.policies.nvme), catalogue.pinned_bytes,
                    0, 0, self.config.nvme_policy, nvme.state,
                )
            )  # fmt: skip
        return statuses


async def build_parts(config: StoreConfig) -> Parts:
    """Tiers opened, the catalogue filled from the disk index, the arena being populated."""
    executor = ThreadPoolExecutor(config.copy_threads, thread_name_prefix="copy")
    registry = NamespaceRegistry()
    catalogue = Catalogue(registry)
    nvme = None
    if config.nvme is not None:
        nvme = await NvmeTier.open(config.nvme, is_live=_is_live(catalogue), moved=_moved(catalogue))
    arena = Arena(config.dram_bytes, huge_pages=config.huge_pages, trusted_writers=config.trusted_writers)
    dram = DramTier(arena, executor, threads=config.copy_threads)
    hbm = HbmTier.open(config.hbm_device, config.hbm_bytes, executor) if config.hbm_bytes else None
    parts = Parts(config, dram, nvme, hbm, registry, catalogue, executor)
    if nvme is not None:
        _recover(parts, nvme)
    dram.start(parts.room.changed)
    return parts


def _is_live(catalogue: Catalogue) -> Callable[[BlockRecord], Extent | None]:
    def is_live(record: BlockRecord) -> Extent | None:
        slot = catalogue.find(record)
        return None if slot is None else catalogue.nvme_extent(slot)

    return is_live


def _moved(catalogue: Catalogue) -> Callable[[BlockRecord, Extent, Extent], bool]:
    def moved(record: BlockRecord, old: Extent, new: Extent) -> bool:
        slot = catalogue.find(record)
        if slot is None or catalogue.nvme_offset[slot] != old.offset:
            return False
        catalogue.place_nvme(slot, new)
        return True

    return moved


def _recover(parts: Parts, nvme: NvmeTier) -> None:
    """Fill the catalogue with what the disk index holds; recency starts as the order of writing."""
    catalogue, registry = parts.catalogue, parts.registry
    registry.restore(nvme.saved_namespaces())
    registry.next_id = max(registry.next_id, nvme.highest_namespace + 1)
    for block in nvme.recovered:
        namespace = registry.by_id(block.record.namespace)
        if namespace is None:
            nvme.forget(block.extent, block.record)
            continue
        slot = catalogue.insert(namespace, block.record)
        catalogue.place_nvme(slot, block.extent)
        catalogue.add_pins(slot, block.pins)
        catalogue.set_ttl(slot, block.ttl_deadline)
    for namespace in registry:
        if not namespace.spec.evictable:
            namespace.keep_order()
    for slot in sorted(catalogue.slots(), key=catalogue.sequence.__getitem__):
        parts.recency.entered_nvme(slot)
    _return_freed_memory()
    catalogue.highest_sequence = max(catalogue.highest_sequence, nvme.highest_sequence)


def _return_freed_memory() -> None:
    """What reading the index took for a moment goes back to the system: glibc would keep 100 bytes a block of it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
