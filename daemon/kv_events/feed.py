"""From what happens in the store to what routers are told: which namespaces, which blocks, and when.

BlockStored needs token ids, which only writers know: blocks that came without are not told of, and the log says so once a
namespace. A removal is told of namespaces that something was told of. A block that leaves memory and stays on NVMe stays.
"""

import asyncio
import logging
import time
from collections import Counter

from mooncask.daemon.config import Config
from mooncask.daemon.kv_events.messages import BlockRemoved, BlockStored, Event, block_hash, encode
from mooncask.daemon.kv_events.news import News, Stored
from mooncask.daemon.kv_events.publisher import Publisher
from mooncask.daemon.service import Service
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest

log = logging.getLogger(__name__)

DELAY_SECONDS = 0.01
"""Blocks of one commit, and of several, share a batch."""
BATCH_BLOCKS = 512
TOLD_MAX = 4096
"""Namespaces whose blocks without token ids the log has mentioned."""


class KvEvents:
    """Of one daemon: opened before its doors, closed after them."""

    def __init__(self, service: Service, publisher: Publisher) -> None:
        self.publisher = publisher
        self._service = service
        self._only = frozenset(service.config.kv_events.namespaces)
        self._news = News()
        self._arrays = service.config.kv_events.encoding == "arrays"
        self._timer: asyncio.Handle | None = None
        self._published: set[int] = set()
        """Namespaces, by number, that something was told of."""
        self._without_tokens: set[int] = set()

    @staticmethod
    async def open(service: Service, config: Config) -> "KvEvents":
        """Blocks that come and go are published from now on. Raises AddressInUse and ConfigError."""
        topic = config.kv_events.topic.replace("{node}", config.node.name)
        publisher = await Publisher.open(config.kv_events, topic.encode(), service.counters)
        events = KvEvents(service, publisher)
        if not any(namespace.blocks for namespace in service.store.namespaces()):
            events._news.clear()  # what an earlier run told of is gone
            events._schedule()
        service.kv_events = events  # pyright: ignore[reportAttributeAccessIssue]  # as in objects/store.py
        service.store.departures.observers.append(events._left)
        log.info("KV events at %s, replay at %s", publisher.endpoint, publisher.replay_endpoint or "no address")
        return events

    async def close(self) -> None:
        self._service.kv_events = None
        self._service.store.departures.observers.remove(self._left)
        while self._news:
            self._tell()
        if self._timer is not None:
            self._timer.cancel()
        await self.publisher.close()

    def stored(self, namespace: Namespace, request: PutRequest, token_ids: bytes) -> None:
        """A block became readable: takes note."""
        if namespace.spec.kind != "kv" or (self._only and namespace.spec.name not in self._only):
            return
        if not token_ids:
            self._say_without_tokens(namespace)
            return
        self._published.add(namespace.id)
        parent = block_hash(request.parent) if request.parent else None
        self._news.stored(Stored(block_hash(request.key), parent, token_ids))
        self._schedule()

    def _left(self, namespace: int, key: bytes) -> None:
        if namespace in self._published:
            self._news.removed(block_hash(key))
            self._schedule()

    def _say_without_tokens(self, namespace: Namespace) -> None:
        if namespace.id not in self._without_tokens and len(self._without_tokens) < TOLD_MAX:
            self._without_tokens.add(namespace.id)
            log.info(
                "namespace %s: blocks come without token ids, so no BlockStored is published for them; "
                "its writers' publish_tokens attaches them",
                namespace.spec.name,
            )

    # --- telling ---

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY_SECONDS, self._tell)

    def _tell(self) -> None:
        """One batch; what is left has its turn after others."""
        self._timer = None
        events = self._news.take(BATCH_BLOCKS)
        if events:
            self.publisher.publish(encode(time.time(), events, self._arrays))
            self._count(events)
        if self._news:
            self._timer = asyncio.get_running_loop().call_soon(self._tell)

    def _count(self, events: list[Event]) -> None:
        counters: Counter[str] = self._service.counters
        for event in events:
            if isinstance(event, BlockStored):
                counters["kv_events_stored"] += len(event.block_hashes)
            elif isinstance(event, BlockRemoved):
                counters["kv_events_removed"] += len(event.block_hashes)
        counters["kv_events_dropped"] = self._news.dropped
