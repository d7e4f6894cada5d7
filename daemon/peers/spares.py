"""Ahead of need: which blocks of this node may be forgotten first, since another node keeps them. Asks the directory, in the background.

The store's rules are in `tiers/pressure.py` and `tiers/replicas.py`: what this module has found goes first, and a block that others
are known to have goes only after it was asked about. So eviction waits for no network, and of two nodes that evict the same block
one keeps it. A directory that does not answer is not waited for: blocks leave unasked then, until it answers again.

Noted are blocks that were pulled, given, served or that others had announced before. Of two nodes that computed the same block only
the later one knows, and asks.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

from mooncask.daemon.directory.directory import Directory, Release
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.service import Service
from mooncask.errors import MooncaskError
from mooncask.tiers.catalogue import NOWHERE
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

EVERY_SECONDS = 0.5
PAUSE_SECONDS = 0.005
"""Between two looks, however much is wanted; four times as long when nobody waits for it."""
BATCH_BLOCKS = 1024
ROUNDS_MAX = 8
ASK_SECONDS = 0.25
UNASKED_SECONDS = 5.0
"""After a question that failed."""
AGAIN_SECONDS = 2.0
"""Spares are asked about anew: whom we relied on may have forgotten it by its own order since."""
FULL_SHARE = 0.7
"""Of a tier: from here on spares are wanted."""
SPARE_SHARE = 1 / 8
SPARE_BYTES_MAX = 4 << 30
SPARES_MAX = 1 << 14
SPARES_FEW = 64
"""With fewer than these the next look does not wait for its time."""


class Spares:
    """Of one daemon, in the event loop's thread. `start` once the directory is there."""

    def __init__(self, service: Service, directory: Directory, shared: SharedNamespaces) -> None:
        self._service = service
        self._store = service.store
        self._replicas = service.store.replicas
        self._directory = directory
        self._shared = shared
        self._wanted = asyncio.Event()
        self._at_once = False
        self._unasked_until = 0.0
        self._again_at = 0.0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._replicas.on_wanted = self._want
        self._directory.on_shared = self._announced_before
        self._task = asyncio.create_task(self._run())

    def note(self, namespace: Namespace, keys: Iterable[bytes]) -> None:
        """Other nodes have these blocks too."""
        now = time.monotonic()
        for key in keys:
            slot = namespace.index.get(key)
            if slot is not None:
                self._replicas.note(slot, now)

    def _announced_before(self, ns_id: bytes, keys: Sequence[bytes]) -> None:
        namespace = self._shared.find(ns_id)
        if namespace is not None:
            self.note(namespace, keys)

    async def close(self) -> None:
        self._replicas.asked_first = False
        self._replicas.on_wanted = lambda at_once: None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._store.room_changed()

    def _want(self, at_once: bool) -> None:
        self._at_once |= at_once
        if at_once or self._replicas.spares < SPARES_FEW:
            self._wanted.set()

    async def _run(self) -> None:
        """For ever."""
        while True:
            try:
                async with asyncio.timeout(EVERY_SECONDS):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            urgent, before = self._at_once, self._replicas.spares
            self._at_once = False
            self._wanted.clear()
            try:
                await self._look(urgent)
            except MooncaskError as error:
                self._unasked_until = time.monotonic() + UNASKED_SECONDS
                self._stop_asking()
                log.info("blocks leave unasked for a while: %s", error.message)
            except Exception:
                self._stop_asking()
                log.exception("looking for spare blocks failed by a fault of this daemon")
            if urgent or self._replicas.spares > before:
                self._store.room_changed()
            await asyncio.sleep(PAUSE_SECONDS if urgent else 4 * PAUSE_SECONDS)

    async def _look(self, urgent: bool) -> None:
        self._replicas.asked_first = self._directory.state == "ok" and time.monotonic() >= self._unasked_until
        if not self._replicas.asked_first:
            self._stop_asking()
            return
        self._tell(self._replicas.used_spares())
        if time.monotonic() >= self._again_at:
            self._again_at = time.monotonic() + AGAIN_SECONDS
            await self._ask(self._replicas.spares_longest_unasked(BATCH_BLOCKS))
        for on_nvme in (False, True):
            await self._fill(on_nvme, urgent)

    async def _fill(self, on_nvme: bool, urgent: bool) -> None:
        wanted_bytes, nvme_offset = self._wanted_bytes(on_nvme, urgent), self._store.catalogue.nvme_offset

        def fits(slot: int) -> bool:
            return (nvme_offset[slot] != NOWHERE) == on_nvme

        for _ in range(ROUNDS_MAX):
            missing_bytes = wanted_bytes - self._replicas.spare_bytes(on_nvme)
            if missing_bytes <= 0 or self._replicas.spares >= SPARES_MAX:
                return
            slots = self._replicas.coldest(BATCH_BLOCKS, missing_bytes, fits, time.monotonic(), at_once=urgent)
            if not slots:
                return
            await self._ask(slots)
            self._store.room_changed()

    def _wanted_bytes(self, on_nvme: bool, urgent: bool) -> int:
        """0 while there is room."""
        store = self._store
        if on_nvme and store.nvme is None:
            return 0
        used, usable = store.dram.used_bytes, store.dram.capacity_bytes
        if on_nvme and store.nvme is not None:
            used, usable = store.nvme.used_bytes, store.nvme.usable_bytes
        return 0 if used < FULL_SHARE * usable and not urgent else min(SPARE_BYTES_MAX, int(usable * SPARE_SHARE))

    async def _ask(self, slots: Sequence[int]) -> None:
        """Whether others keep these. Raises PeerUnavailable and DeadlineExceeded."""
        sequence = self._store.catalogue.sequence
        for ns_id, some in self._by_namespace(slots).items():
            versions = [sequence[slot] for slot in some]
            keys = [self._store.catalogue.keys[slot] for slot in some]
            try:
                answers = await self._directory.release(ns_id, keys, time.monotonic() + ASK_SECONDS)
            except BaseException:
                self._directory.announce(ns_id, [key for key, slot in zip(keys, some, strict=True) if sequence[slot]])
                raise
            for slot, version, answer in zip(some, versions, answers, strict=True):
                self._take_answer(slot, version, answer)

    def _take_answer(self, slot: int, version: int, answer: Release) -> None:
        counters = self._service.counters
        if self._store.catalogue.sequence[slot] != version:
            return
        if answer is Release.ELSEWHERE:
            self._replicas.released(slot, version)
        elif answer is not Release.NOT_NOW:
            was_spare = self._replicas.is_spare(slot)
            self._replicas.is_last(slot, version)
            counters["last_copies_kept"] += answer is Release.LAST
            if was_spare:
                self._tell([slot])

    def _stop_asking(self) -> None:
        """Those that were released are nobody's yet: told again when the directory is back, or now if it is only slow."""
        self._replicas.asked_first = False
        self._tell(self._replicas.take_all_back())

    def _tell(self, slots: Sequence[int]) -> None:
        """This node has these after all."""
        for ns_id, some in self._by_namespace(slots).items():
            self._directory.announce(ns_id, [self._store.catalogue.keys[slot] for slot in some])

    def _by_namespace(self, slots: Sequence[int]) -> dict[bytes, list[int]]:
        found: dict[bytes, list[int]] = {}
        for slot in slots:
            ns_id = self._shared.id_of(self._store.catalogue.owner(slot))
            if ns_id:
                found.setdefault(ns_id, []).append(slot)
        return found
