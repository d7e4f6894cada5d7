"""Sees to all caches: builds what is pending, asks nodes whether they still have what is ready, ends what is over.

Every Conductor does that for all caches of its state; what must happen once is claimed or has an id (`building.py`).
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from mooncask.conductor.serving.caching.building import CacheBuilder, hold_seconds, let_go
from mooncask.conductor.serving.caching.holding import NodeHolds
from mooncask.conductor.serving.caching.records import INACTIVE_SECONDS, Cache, Status, ended, pending
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.errors import MooncaskError, PeerUnavailable

log = logging.getLogger(__name__)

WORK_MAX = 32
"""Caches that something is done for at a time."""
BUILDS_MAX = 4
"""Of these, so many are built: the others' nodes are asked meanwhile."""
FLUSH_MINUTES = 10
"""Storage is written to the log this often; and when it ends, and when a bill is asked for."""


class StorageMeter(Protocol):
    async def storage(self, cache: Cache, now: float) -> int:
        """Writes the minutes that are not yet in the log; returns how many are, then."""
        ...


@dataclass(slots=True)
class Keeper:
    """`check_seconds`: how often a ready cache's node is asked; `lost_seconds`: how long it may not answer."""

    shelf: Shelf
    builder: CacheBuilder
    holds: NodeHolds
    meter: StorageMeter
    check_seconds: float
    lost_seconds: float
    seen: list[Cache] = field(default_factory=list)
    """All caches, a moment ago."""
    _builds: int = 0
    _working: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _checked: dict[str, float] = field(default_factory=dict)
    _silent_since: dict[str, float] = field(default_factory=dict)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def kick(self) -> None:
        """Something is new: it is looked at now."""
        self._wanted.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                self._wanted.clear()
                try:
                    await self._look_at_all()
                except MooncaskError as exc:
                    log.warning("caches can't be looked after now: %s", exc.message)
                await self._pause()
        finally:
            for task in list(self._working.values()):
                task.cancel()
            await asyncio.gather(*self._working.values(), return_exceptions=True)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(min(1.0, self.check_seconds)):
                await self._wanted.wait()
        except TimeoutError:
            pass

    async def _look_at_all(self) -> None:
        now, caches = time.time(), await self.shelf.all()
        self.seen, there = caches, {cache.key for cache in caches}
        for known in (self._checked, self._silent_since):
            for key in [key for key in known if key not in there]:
                del known[key]
        for cache in caches:
            if cache.key not in self._working and len(self._working) < WORK_MAX:
                work = self._work_on(cache, now)
                if work is not None:
                    self._begin(cache, work)

    def _work_on(self, cache: Cache, now: float) -> Coroutine[Any, Any, None] | None:
        """What it needs now."""
        if cache.status is Status.INACTIVE:
            return self._forget(cache) if now > cache.expired_at + INACTIVE_SECONDS else None
        if now >= cache.expired_at:
            return self.end(cache)
        if cache.status is Status.PENDING:
            return self._build(cache) if now >= cache.retry_at and self._builds < BUILDS_MAX else None
        if cache.status is Status.READY and now >= self._checked.get(cache.key, 0.0) + self.check_seconds:
            self._checked[cache.key] = now
            return self._check(cache)
        return None

    async def _build(self, cache: Cache) -> None:
        self._builds += 1
        try:
            await self.builder.build(cache)
        finally:
            self._builds -= 1

    def _begin(self, cache: Cache, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except MooncaskError as exc:
                log.warning("cache %s: %s", cache.id, exc.message)
            except Exception:  # the top of a task: the others go on
                log.exception("cache %s could not be looked after", cache.id)
            finally:
                del self._working[cache.key]

        self._working[cache.key] = asyncio.create_task(guarded())

    async def _check(self, cache: Cache) -> None:
        """Tells its node again to hold the blocks, which also says whether they are there."""
        if await self._is_lost(cache):
            await self.shelf.change(cache.key, lambda c: pending(c, time.time()) if c.status is Status.READY else None)
            self._silent_since.pop(cache.key, None)
            self.kick()
        elif cache.minutes(time.time()) >= cache.billed_minutes + FLUSH_MINUTES:
            await self.meter.storage(cache, time.time())

    async def _is_lost(self, cache: Cache) -> bool:
        blocks = await self.shelf.blocks(cache)
        if cache.place is None or blocks is None:
            return True
        try:
            missing = await self.holds.hold(cache.place, cache.id, blocks.keys, hold_seconds(cache, time.time()))
        except PeerUnavailable as exc:
            if cache.key not in self._silent_since:
                self._silent_since[cache.key] = time.monotonic()
                log.info("cache %s: %s", cache.id, exc.message)
            lost = time.monotonic() - self._silent_since[cache.key] >= self.lost_seconds
            if lost:
                log.warning("cache %s is built again: %s", cache.id, exc.message)
            return lost
        except MooncaskError as exc:
            log.warning("cache %s is built again: %s", cache.id, exc.message)
            return True
        self._silent_since.pop(cache.key, None)
        if missing:
            log.warning("cache %s is built again: node %s has lost %d blocks", cache.id, cache.place.node, missing)
        return bool(missing)

    async def end(self, cache: Cache) -> None:
        """Its time is over."""
        stands = await self.shelf.change(
            cache.key, lambda c: ended(c, time.time()) if c.expired_at <= time.time() else None
        )
        if stands is not None and stands.status is Status.INACTIVE:
            await self.meter.storage(stands, time.time())
            await let_go(self.holds, cache, cache.place)

    async def _forget(self, cache: Cache) -> None:
        await self.meter.storage(cache, time.time())
        await self.shelf.remove(cache)
