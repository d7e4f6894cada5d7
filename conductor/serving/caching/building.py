"""One pending cache becomes a ready one: its content is claimed, its blocks are brought onto a node and held there.

Of several who try, also in other Conductors, one builds; the others find it done. What is billed for is written to the log
before the cache is ready, under an id of its own, so that no crash and no second Conductor bills twice.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass
from typing import Protocol

from mooncask.client.worker_api import Sampling
from mooncask.conductor.serving.caching.holding import NodeHolds
from mooncask.conductor.serving.caching.records import (
    Blocks,
    Cache,
    Place,
    Status,
    Trouble,
    failed,
    of_tenant,
    ready,
    troubled,
    waiting,
)
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.conductor.serving.dispatch.building import Built
from mooncask.conductor.serving.job import Job
from mooncask.errors import (
    MooncaskError,
    NoSuchCache,
    NoSuchModel,
    NoWorkers,
    PeerUnavailable,
    PinLimitExceeded,
    StateUnavailable,
)

log = logging.getLogger(__name__)

CLAIM_SECONDS = 30.0
"""A Conductor that is gone blocks a build for no longer."""
HOLD_MARGIN_SECONDS = 30.0
"""A hold outlasts its cache by this, if nobody ends it: clocks differ, and a reset is told with the next check."""
WARM_SECONDS = 5.0
WARM_POLL_SECONDS = 0.2
BUILD_SECONDS = 600.0


class Builds(Protocol):
    """`dispatch.building.Builder`."""

    async def build(self, job: Job, without: Collection[str] = ()) -> Built: ...


class CreationMeter(Protocol):
    async def creation(self, cache: Cache, tokens: int, now: float) -> None:
        """Once a cache, whoever calls it how often."""
        ...


@dataclass(slots=True)
class CacheBuilder:
    """`name`: this Conductor's, of this start. Each build claims for its own cache: two here are as apart as two elsewhere."""

    name: str
    shelf: Shelf
    builds: Builds
    holds: NodeHolds
    meter: CreationMeter

    async def build(self, cache: Cache) -> None:
        """Returns when it is ready, was found to be no more pending, or the attempt has failed. Raises StateUnavailable."""
        async with self._claimed(cache) as mine:
            current = await self.shelf.change(cache.key, lambda now: None) if mine else None
            if current is None or current.status is not Status.PENDING:
                return
            try:
                await self._build(current)
            except (NoSuchModel, NoWorkers) as exc:
                log.info("cache %s waits: %s", cache.id, exc.message)
                await self.shelf.change(cache.key, lambda c: waiting(c, time.time()) if _pends(c) else None)
            except StateUnavailable:
                raise
            except MooncaskError as exc:
                log.warning("cache %s could not be built: %s", cache.id, exc.message)
                text = exc.message
                await self.shelf.change(cache.key, lambda c: failed(c, text, time.time()) if _pends(c) else None)

    async def _build(self, cache: Cache) -> None:
        with contextlib.suppress(NoSuchCache):
            content = await self.shelf.content(cache)
            job = Job(
                id=f"{cache.id}-{cache.failures}",
                model=cache.model,
                tokens=content.tokens,
                max_tokens=1,
                sampling=Sampling(),
                tenant=cache.tenant,
                priority=0,
                cache_salt=cache.cache_salt,
                public_tokens=cache.public_tokens,
                deadline_seconds=BUILD_SECONDS,
            )
            await self._place(cache, job)

    async def _place(self, cache: Cache, job: Job) -> None:
        """On the first node that can hold it."""
        full: dict[str, PinLimitExceeded] = {}
        while True:
            try:
                built = await self.builds.build(job, tuple(full))
            except NoWorkers:
                if not full:
                    raise
                return await self._no_room(cache, next(iter(full.values())))
            place, keys = Place(built.node.name, built.node.pages, built.namespace), [key.hex() for key in built.keys]
            try:
                await self._held(cache, place, keys)
            except PinLimitExceeded as exc:
                full[built.node.name] = exc
                continue
            return await self._ready(cache, place, keys)

    async def _no_room(self, cache: Cache, error: PinLimitExceeded) -> None:
        trouble = Trouble("insufficient_quota", f"no node can hold {cache.tokens} tokens more: {error.message}")
        await self.shelf.change(cache.key, lambda c: troubled(c, trouble, time.time()) if _pends(c) else None)

    async def _held(self, cache: Cache, place: Place, keys: list[str]) -> None:
        """What only other nodes have is fetched. Raises PeerUnavailable when blocks are still missing, PinLimitExceeded."""
        until = time.monotonic() + WARM_SECONDS
        seconds = hold_seconds(cache, time.time())
        while missing := await self.holds.hold(place, cache.id, keys, seconds):
            if time.monotonic() > until:
                raise PeerUnavailable(place.node, f"has lost {missing} of {len(keys)} blocks again")
            await self.holds.warm(place, keys)
            await asyncio.sleep(WARM_POLL_SECONDS)

    async def _ready(self, cache: Cache, place: Place, keys: list[str]) -> None:
        await self.shelf.put_blocks(cache, Blocks(tuple(keys)))
        paid = 0 if await self._is_shared(cache) else cache.tokens
        await self.meter.creation(cache, paid, time.time())
        stands = await self.shelf.change(cache.key, lambda c: ready(c, place, time.time(), paid) if _pends(c) else None)
        if stands is None or stands.status is not Status.READY:  # deleted, or over, meanwhile
            await let_go(self.holds, cache, place)
        elif cache.place is not None and cache.place.node != place.node:
            await let_go(self.holds, cache, cache.place)

    async def _is_shared(self, cache: Cache) -> bool:
        """Another cache of this tenant has paid for these blocks, and holds them."""
        others = await self.shelf.all(cache.tenant)
        return any(
            other.digest == cache.digest and other.id != cache.id and other.status is Status.READY for other in others
        )

    @contextlib.asynccontextmanager
    async def _claimed(self, cache: Cache) -> AsyncIterator[bool]:
        """Whether this content is ours to build; renewed until the end."""
        claim, holder = of_tenant(cache.tenant) + cache.digest, f"{self.name}/{cache.id}"
        if not await self.shelf.claim(claim, holder, time.time(), CLAIM_SECONDS):
            yield False
            return
        renewing = asyncio.create_task(self._renew(claim, holder))
        try:
            yield True
        finally:
            renewing.cancel()
            with contextlib.suppress(StateUnavailable):
                await self.shelf.unclaim(claim, holder)

    async def _renew(self, claim: str, holder: str) -> None:
        while True:
            await asyncio.sleep(CLAIM_SECONDS / 3)
            with contextlib.suppress(StateUnavailable):
                await self.shelf.claim(claim, holder, time.time(), CLAIM_SECONDS)


def hold_seconds(cache: Cache, now: float) -> float:
    return max(1.0, cache.expired_at - now + HOLD_MARGIN_SECONDS)


async def let_go(holds: NodeHolds, cache: Cache, place: Place | None) -> None:
    """A node that does not answer lets go by itself when the hold's time is over."""
    if place is not None:
        try:
            await holds.hold(place, cache.id, (), 0.0)
        except MooncaskError as exc:
            log.info("cache %s could not be let go on node %s: %s", cache.id, place.node, exc.message)


def _pends(cache: Cache) -> bool:
    return cache.status is Status.PENDING
