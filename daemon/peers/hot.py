"""Which blocks other nodes read so often that more of them should have them: counted here, copied by `replicate.py`.

Every holder counts what it serves itself. A block that was read more than `cluster.replicate_after` times within the window is
offered to nodes that have it not, until `cluster.replicas_max` have it; copies that were pulled after a miss count as well. Two
holders that find the same block hot at once may overshoot: who gets an offer looks the holders up once more.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Sequence

from mooncask.daemon.config import ClusterSection
from mooncask.daemon.peers.plan import choose_takers
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.replicate import Replication
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.errors import MooncaskError
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

COUNTED_MAX = 1 << 16
WAITING_MAX = 1 << 14
COALESCE_SECONDS = 0.1
LOOKUP_SECONDS = 0.5
COPY_SECONDS = 30.0


class ReadCounts:
    """How often blocks were read within a window each; those not read for longest are forgotten first. Pure."""

    def __init__(self, window_seconds: float, most: int = COUNTED_MAX) -> None:
        self._window_seconds = window_seconds
        self._most = most
        self._counts: OrderedDict[tuple[int, bytes], tuple[int, float]] = OrderedDict()

    def add(self, namespace: int, key: bytes, now_seconds: float) -> int:
        """Reads in this block's window, this one included."""
        name = (namespace, key)
        count, began = self._counts.pop(name, (0, now_seconds))
        if now_seconds - began > self._window_seconds:
            count, began = 0, now_seconds
        self._counts[name] = (count + 1, began)
        if len(self._counts) > self._most:
            self._counts.popitem(last=False)
        return count + 1

    def begin_anew(self, namespace: int, key: bytes) -> None:
        self._counts.pop((namespace, key), None)

    def __len__(self) -> int:
        return len(self._counts)


class HotSpots:
    """Of one daemon. One round of copying at a time; what gets hot meanwhile waits, up to WAITING_MAX blocks."""

    def __init__(
        self, ways: Ways, shared: SharedNamespaces, replication: Replication, settings: ClusterSection
    ) -> None:
        self._ways = ways
        self._shared = shared
        self._replication = replication
        self._after = settings.replicate_after
        self._replicas_max = settings.replicas_max
        self._reads = ReadCounts(settings.replicate_window)
        self._hot: dict[Namespace, dict[bytes, None]] = {}
        self._waiting = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    def served(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """Another node reads these from here."""
        if not self._after or self._replicas_max < 2:
            return
        now = time.monotonic()
        for key in keys:
            if self._reads.add(namespace.id, key, now) > self._after and self._waiting < WAITING_MAX:
                self._reads.begin_anew(namespace.id, key)
                hot = self._hot.setdefault(namespace, {})
                self._waiting += key not in hot
                hot[key] = None
        if self._hot:
            self._wake.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        """For ever."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(COALESCE_SECONDS)
            self._wake.clear()
            hot, self._hot, self._waiting = self._hot, {}, 0
            for namespace, keys in hot.items():
                try:
                    await self._copy(namespace, list(keys))
                except MooncaskError as error:
                    log.info("hot blocks were not copied: %s", error.message)
                except Exception:
                    log.exception("copying hot blocks failed by a fault of this daemon")

    async def _copy(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        """To as many nodes as they lack, those with equal holders together."""
        self._ways.service.counters["hot_blocks"] += len(keys)
        deadline = time.monotonic() + LOOKUP_SECONDS
        located = await self._ways.directory.lookup(self._shared.id_of(namespace), keys, deadline)
        nodes = await self._ways.directory.nodes(deadline)
        alike: dict[frozenset[bytes], list[bytes]] = {}
        for key, known in zip(keys, located, strict=True):
            alike.setdefault(frozenset(known), []).append(key)
        for holders, some in alike.items():
            now = time.monotonic()
            trusted = [node for node in nodes if not self._ways.suspects.avoids(node.incarnation, now)]
            for node in choose_takers(trusted, holders, self._replicas_max - 1 - len(holders)):
                await self._replication.push(namespace, some, node.name, now + COPY_SECONDS, self._replicas_max)
