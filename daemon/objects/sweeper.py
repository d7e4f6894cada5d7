"""Takes out parts that belong to no object any more: of objects that left, of uploads that broke off, of a daemon that crashed.

A part may go when nobody reads or writes it, no upload has it, and no version of its object is left that names it, not even one
on the disk that a crash would bring back.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mooncask.daemon.objects.attributes import decode_attributes
from mooncask.daemon.objects.manifest import DATA_BYTES
from mooncask.errors import MooncaskError, NamespaceNotEmpty
from mooncask.tiers.crash_points import crash_point
from mooncask.tiers.namespace import Namespace, parts_name

if TYPE_CHECKING:
    from mooncask.daemon.objects.store import Objects

log = logging.getLogger(__name__)

SWEEP_SECONDS = 300.0
AGAIN_SECONDS = 1.0
"""For what still could not go: a reader has it, or the disk has an older version that names it."""
LOOKS_A_TURN = 250
"""Blocks: less than a millisecond."""
DELETES_A_TURN = 128


class Sweeper:
    """One task at a time, when there is something to do. `close` ends it."""

    def __init__(self, objects: "Objects") -> None:
        self._objects = objects
        self._gone: dict[bytes, tuple[Namespace, bytes]] = {}
        """Data of objects that left, with where they were."""
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_after = 0.0
        self._closed = False

    def start(self) -> None:
        """Also looks at once for what a crash may have left."""
        objects = self._objects
        objects.holds.released = self.kick
        objects.store.watch_attributes(self.left)
        self.kick()

    def left(self, namespace: Namespace, key: bytes, attributes: bytes) -> None:
        """A block with attributes has left the store, in whatever way."""
        if namespace.spec.kind != "object":
            return
        found = decode_attributes(attributes)
        if found is not None and found.data:
            self._gone[found.data] = namespace, key
            self.kick()

    def kick(self) -> None:
        """There may be something to do."""
        if self._closed:
            return
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        """Nothing new is begun; what `tasks` names ends soon."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def tasks(self) -> "set[asyncio.Task[None]]":
        return {self._task} if self._task is not None and not self._task.done() else set()

    async def sweep(self) -> int:
        """Looks at everything; how many blocks it took out."""
        removed = 0
        for parts in [n for n in self._objects.store.namespaces() if n.spec.hidden]:
            removed += await self._sweep_namespace(parts)
        return removed

    # --- the task ---

    async def _run(self) -> None:
        try:
            while self._again and not self._closed:
                self._again = False
                await self._remove_gone()
                await self._sweep_if_due()
        except MooncaskError as error:
            log.warning("parts that nobody needs could not be taken out: %s", error.message)
            self._objects.service.counters["sweeps_failed"] += 1
        except Exception:
            log.exception("sweeping parts failed by a fault of this daemon")
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed:
            seconds = AGAIN_SECONDS if self._gone else SWEEP_SECONDS
            self._timer = asyncio.get_running_loop().call_later(seconds, self.kick)

    async def _remove_gone(self) -> None:
        store, holds = self._objects.store, self._objects.holds
        for data, (namespace, key) in list(self._gone.items()):
            if holds.held(data) or store.unsettled_below(namespace, key):
                continue
            self._gone.pop(data, None)
            parts = store.namespace(parts_name(namespace.spec.name))
            if parts is not None:
                await self.remove(parts, list(parts.keys_after(data, b"")))

    async def _sweep_if_due(self) -> None:
        if time.monotonic() < self._sweep_after:
            return
        self._sweep_after = time.monotonic() + SWEEP_SECONDS
        await self._objects.uploads.expire(time.time())
        removed = await self.sweep()
        if removed:
            log.info("%d blocks of parts that belonged to no object were taken out", removed)

    async def _sweep_namespace(self, parts: Namespace) -> int:
        owner = self._objects.store.namespace(parts.spec.name.partition("/")[0])
        if owner is None:
            return await self.drop(parts)
        suspects = await self._suspects(parts)
        if suspects:
            await self._acquit(owner, suspects)
        keys = [key for data, keys in suspects.items() if data not in self._gone for key in keys]
        return await self.remove(parts, keys)

    async def _suspects(self, parts: Namespace) -> dict[bytes, list[bytes]]:
        """Blocks that no upload has and nobody uses, by data. What is none now never becomes one that counts: only who uses data
        can make an object of it."""
        found: dict[bytes, list[bytes]] = {}
        for number, key in enumerate(list(parts.index)):
            if number % LOOKS_A_TURN == LOOKS_A_TURN - 1:
                await asyncio.sleep(0)
            if not self._objects.holds.covers(key) and not self._objects.uploads.has_block(key):
                found.setdefault(key[:DATA_BYTES], []).append(key)
        return found

    async def _acquit(self, owner: Namespace, suspects: dict[bytes, list[bytes]]) -> None:
        """Takes those out that an object has."""
        store = self._objects.store
        for number, key in enumerate(list(owner.index)):
            if number % LOOKS_A_TURN == LOOKS_A_TURN - 1:
                await asyncio.sleep(0)
            found = decode_attributes(store.attributes(owner, key))
            if found is not None and found.data:
                suspects.pop(found.data, None)

    async def drop(self, parts: Namespace) -> int:
        """A hidden namespace whose bucket is gone; how many blocks it had. One that is being written into stays for later."""
        removed = await self.remove(parts, list(parts.index))
        with contextlib.suppress(NamespaceNotEmpty):
            await self._objects.store.drop_namespace(parts)
        return removed

    async def remove(self, parts: Namespace, keys: Iterable[bytes]) -> int:
        """Deletes those of `keys` that nobody has begun to use; durable when it returns."""
        holds = self._objects.holds
        return await self.remove_all(parts, [key for key in keys if not holds.covers(key)])

    async def remove_all(self, parts: Namespace, keys: Sequence[bytes]) -> int:
        """Some at a time: each takes a task and a tombstone."""
        removed = 0
        for first in range(0, len(keys), DELETES_A_TURN):
            removed += await self._objects.store.evict(parts, keys[first : first + DELETES_A_TURN])
            crash_point("objects.parts.removed")
        return removed
