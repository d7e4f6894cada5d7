"""Open, Pin, Unpin, SetTtl, Evict, Stat and ListBlocks of one connection."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from mooncask.client import hashing, wire
from mooncask.daemon.namespace_door import tenant_salt
from mooncask.daemon.session import Session
from mooncask.daemon.status import block_stat, daemon_status
from mooncask.errors import BadRequest
from mooncask.tiers.namespace import Namespace

HANDLES_MAX = 1024
LIST_MAX = 1000
"""Blocks of one answer, whatever was asked: describing one takes about 8 µs of the loop's time."""
STATS_MAX = 256
"""Blocks that are described before others get their turn."""
TTL_MS_MAX = 10 * 365 * 86_400_000

Later = Coroutine[Any, Any, wire.Message | None]


class Control:
    """The requests of one session that move no payload."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service

    async def open(self, request: wire.Open) -> wire.Message:
        session = self._session
        namespace = await self._service.door.open(session.tenant, request)
        if len(session.namespaces) >= HANDLES_MAX and namespace.id not in session.namespaces:
            raise BadRequest(f"this connection has {HANDLES_MAX} namespaces open already")
        session.namespaces[namespace.id] = namespace
        spec, salt = namespace.spec, tenant_salt(session.tenant)
        return wire.Opened(
            request.id,
            namespace.id,
            spec.name,
            wire.NamespaceKind(spec.kind),
            spec.fingerprint,
            salt,
            hashing.root(spec.fingerprint, salt, request.hash) if spec.fingerprint else b"",
            spec.mode.value,
            spec.tenant,
        )

    async def pin(self, request: wire.Pin) -> wire.Message:
        return wire.Done(request.id, await self._service.pin_all(self._checked(request), request.keys))

    async def unpin(self, request: wire.Unpin) -> wire.Message:
        return wire.Done(request.id, await self._service.unpin_all(self._checked(request), request.keys))

    async def set_ttl(self, request: wire.SetTtl) -> wire.Message:
        if not 0 <= request.ttl_ms <= TTL_MS_MAX:
            raise BadRequest(f"ttl of {request.ttl_ms} ms: 0 (none) to {TTL_MS_MAX}")
        seconds = request.ttl_ms / 1000 if request.ttl_ms else None
        return wire.Done(request.id, await self._service.set_ttl_all(self._checked(request), request.keys, seconds))

    async def evict(self, request: wire.Evict) -> wire.Message:
        return wire.Done(request.id, await self._service.store.evict(self._checked(request), request.keys))

    def stat(self, request: wire.Stat) -> wire.Message | Later:
        if not request.keys:
            return daemon_status(self._session.plane, request.id, self._session.tenant)
        return self._stat_blocks(request, self._checked(request))

    async def _stat_blocks(self, request: wire.Stat, namespace: Namespace) -> wire.Message:
        found: list[wire.BlockStat | None] = []
        for first in range(0, len(request.keys), STATS_MAX):
            infos = (self._service.store.info(namespace, key) for key in request.keys[first : first + STATS_MAX])
            found += [block_stat(info) if info else None for info in infos]
            await asyncio.sleep(0)
        return wire.Blocks(request.id, found)

    def list_blocks(self, request: wire.ListBlocks) -> wire.Message:
        namespace = self._session.namespace(request.namespace)
        if request.limit < 1:
            raise BadRequest(f"limit = {request.limit}: at least 1")
        limit = min(request.limit, LIST_MAX)
        found = self._service.store.list_blocks(namespace, request.prefix, request.after, limit + 1)
        return wire.Blocks(request.id, [block_stat(info) for info in found[:limit]], len(found) > limit)

    def _checked(self, request: wire.Pin | wire.Unpin | wire.SetTtl | wire.Evict | wire.Stat) -> Namespace:
        namespace = self._session.namespace(request.namespace)
        self._session.check_keys(request.keys)
        return namespace
