"""Writes what was used to the state's log, each thing once: calls in the background, caches when they are created and kept.

A call's line waits in memory for a moment: a Conductor that is killed then bills less, never more. Not here: prices.
"""

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from mooncask.conductor.serving.billing.lines import CallLine, CreationLine, StorageLine, decode_line, encode_line
from mooncask.conductor.serving.caching.records import Cache
from mooncask.conductor.serving.caching.shelf import Shelf
from mooncask.conductor.serving.door.gate import CallUsage, Gate, Identity
from mooncask.conductor.serving.state.state import Entry, State
from mooncask.errors import StateUnavailable

log = logging.getLogger(__name__)

WAITING_MAX = 100_000
"""Lines that wait for a state that does not answer; then the oldest are lost, and counted."""
BATCH = 256
GATHER_SECONDS = 0.1
RETRY_SECONDS = 1.0
DAY_SECONDS = 86_400.0


@dataclass(slots=True)
class Meter:
    """Of one Conductor. `keep_days`: older lines are forgotten. Belongs to the event loop's thread."""

    state: State
    shelf: Shelf
    keep_days: float
    lost: int = 0
    _waiting: deque[Entry] = field(default_factory=deque)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def call(self, usage: CallUsage) -> None:
        """Never blocks, never fails."""
        line = CallLine(
            model=usage.model,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            outcome=usage.outcome,
            seconds=round(usage.seconds, 4),
            cache_id=usage.cache_id,
            cache_tokens=usage.cache_tokens,
        )
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.lost += 1
        self._waiting.append(Entry(f"call:{usage.request}", usage.tenant, usage.at, encode_line(line)))
        self._more.set()

    async def creation(self, cache: Cache, tokens: int, now: float) -> None:
        line = CreationLine(model=cache.model, cache_id=cache.id, tokens=tokens)
        await self.state.append([Entry(f"creation:{cache.id}", cache.tenant, now, encode_line(line))])

    async def storage(self, cache: Cache, now: float) -> int:
        """Minutes that are not in the log yet, in one line named by the first of them: whoever writes it second reads the
        first one's, and goes on behind it. Raises StateUnavailable."""
        while (due := cache.minutes(now)) > (begin := cache.billed_minutes):
            line = StorageLine(model=cache.model, cache_id=cache.id, tokens=cache.tokens, minutes=due - begin)
            entry = Entry(f"storage:{cache.id}:{begin}", cache.tenant, now, encode_line(line))
            stands = decode_line((await self.state.append([entry]))[0].value)
            assert isinstance(stands, StorageLine)
            end = begin + stands.minutes
            found = await self.shelf.change(cache.key, lambda c, end=end: _billed(c, end))  # type: ignore[misc]
            cache = _billed(found if found is not None else cache, end)
        return cache.billed_minutes

    async def all_storage(self, tenant: str, now: float) -> None:
        """Before a bill is made."""
        for cache in await self.shelf.all(tenant):
            await self.storage(cache, now)

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Writes while it is open, and what is left at its end."""
        task = asyncio.create_task(self._write_for_ever())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            with contextlib.suppress(StateUnavailable):
                await self.flush()
            if self._waiting:
                log.error("%d calls are not in the log: the state does not answer", len(self._waiting))

    async def flush(self) -> None:
        """Raises StateUnavailable; what was not written waits."""
        while self._waiting:
            batch = [self._waiting[i] for i in range(min(BATCH, len(self._waiting)))]
            await self.state.append(batch)
            written = {entry.id for entry in batch}
            while self._waiting and self._waiting[0].id in written:
                self._waiting.popleft()

    async def _write_for_ever(self) -> None:
        loop = asyncio.get_running_loop()
        forgotten = -DAY_SECONDS
        while True:
            await self._more.wait()
            self._more.clear()
            await asyncio.sleep(GATHER_SECONDS)
            try:
                await self.flush()
                if loop.time() - forgotten > DAY_SECONDS / 24:
                    forgotten = loop.time()
                    await self._forget()
            except StateUnavailable as exc:
                log.warning("%d calls wait for their place in the log: %s", len(self._waiting), exc.message)
                await asyncio.sleep(RETRY_SECONDS)
                self._more.set()

    async def _forget(self) -> None:
        await self.state.forget(time.time() - self.keep_days * DAY_SECONDS)


def _billed(cache: Cache, minutes: int) -> Cache:
    return replace(cache, billed_minutes=max(cache.billed_minutes, minutes))


@dataclass(slots=True)
class MeteredGate:
    """A `door.gate.Gate` in front of another: what ends is also metered."""

    gate: Gate
    meter: Meter

    def identify(self, headers: Mapping[str, str]) -> Identity:
        return self.gate.identify(headers)

    def public_tokens(self, identity: Identity, model: str, tokens: list[int]) -> int:
        return self.gate.public_tokens(identity, model, tokens)

    async def admit(self, identity: Identity, tokens: int) -> None:
        await self.gate.admit(identity, tokens)

    def record(self, identity: Identity, usage: CallUsage) -> None:
        self.meter.call(usage)
        self.gate.record(identity, usage)
