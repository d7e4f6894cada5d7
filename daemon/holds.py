"""Named holds: blocks that stay for somebody who may vanish. A hold is told again before it ends, or ends by itself.

A hold pins its blocks for this run of the daemon: nothing of it is on the disk, so neither a killed daemon nor a killed
holder leaves pins behind. After a restart of the daemon the holder tells it again, and hears which blocks are still there.
Not here: pins that last (`store.pin`), and who holds what for which reason (the Conductor's caches).
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncask.errors import BadRequest, MooncaskError, PinLimitExceeded
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.store import Store

HOLDS_MAX = 8192
KEYS_MAX = 16_384
SLICE_KEYS = 512
"""Held in one turn of the loop."""
NAME_CHARACTERS_MAX = 256
SECONDS_MAX = 86_400.0


@dataclass(slots=True)
class _Hold:
    namespace: Namespace
    blocks: dict[bytes, int] = field(default_factory=dict)
    """Key to the sequence that is held."""
    end: asyncio.TimerHandle | None = None


class Holds:
    """Of one store; belongs to the event loop's thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._holds: dict[tuple[str, str], _Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    async def put(
        self,
        namespace: Namespace,
        name: str,
        keys: Sequence[bytes],
        seconds: float,
        share: float,
        renew: bool = False,
    ) -> list[int]:
        """Holds these blocks under this name for `seconds`, in place of what it held before; 0 seconds end it.

        Returns the positions of keys that are not here: those are not held. With `renew` a hold that is not there (any more) is
        not made. `share`: of NVMe (of DRAM without one), what may be pinned in all; beyond it PinLimitExceeded is raised, as
        where the store's own limit is, and the hold is as it was. Raises BadRequest.
        """
        _check(name, keys, seconds)
        owner = (namespace.spec.tenant, name)
        before = self._holds.get(owner)
        if seconds <= 0:
            self._end(owner)
            return []
        if before is None and renew:
            return list(range(len(keys)))
        if before is None and len(self._holds) >= HOLDS_MAX:
            raise BadRequest(f"there are {HOLDS_MAX} holds already; end some")
        hold = await self._held(namespace, keys, share)
        if renew and owner not in self._holds:  # ended while this one was put together
            self._release(hold)
            return list(range(len(keys)))
        self._end(owner)
        loop = asyncio.get_running_loop()
        hold.end = loop.call_later(seconds, self._end, owner)
        self._holds[owner] = hold
        return [position for position, key in enumerate(keys) if key not in hold.blocks]

    def close(self) -> None:
        for owner in list(self._holds):
            self._end(owner)

    async def _held(self, namespace: Namespace, keys: Sequence[bytes], share: float) -> _Hold:
        hold, limit = _Hold(namespace), int(share * self._store.pinnable_bytes())
        try:
            for number, key in enumerate(keys, start=1):
                if not number % SLICE_KEYS:
                    await asyncio.sleep(0)
                if key not in hold.blocks and self._store.has(namespace, key):
                    pinned_before = self._store.pinned_bytes()
                    hold.blocks[key] = self._store.keep(namespace, key)
                    if pinned_before < self._store.pinned_bytes() > limit:
                        raise PinLimitExceeded("share of holds in the nvme", self._store.pinned_bytes(), limit)
        except (MooncaskError, asyncio.CancelledError):
            self._release(hold)
            raise
        return hold

    def _end(self, owner: tuple[str, str]) -> None:
        hold = self._holds.pop(owner, None)
        if hold is not None:
            if hold.end is not None:
                hold.end.cancel()
            self._release(hold)

    def _release(self, hold: _Hold) -> None:
        for key, sequence in hold.blocks.items():
            self._store.let_go(hold.namespace, key, sequence)


def _check(name: str, keys: Sequence[bytes], seconds: float) -> None:
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise BadRequest(f"name: 1 to {NAME_CHARACTERS_MAX} characters")
    if len(keys) > KEYS_MAX:
        raise BadRequest(f"keys: {len(keys)}; at most {KEYS_MAX} blocks a hold")
    if not 0 <= seconds <= SECONDS_MAX:
        raise BadRequest(f"seconds = {seconds:g}: 0 (which ends the hold) to {SECONDS_MAX:g}")
