"""Open, Pin, Unpin, SetTtl, Evict, Stat and ListBlocks of one connection."""

from collections.abc import Coroutine
from typing import Any

from mooncask.client import hashing, wire
from mooncask.daemon.namespace_door import tenant_salt
from mooncask.daemon.session import Session
from mooncask.daemon.status import block_stat, daemon_status
from mooncask.errors import BadRequest
from mooncask.tiers.namespace import Namespace

HANDLES_MAX = 1024
LIST_MAX = 4096
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

    def stat(self, request: wire.Stat) -> wire.Message:
        if not request.keys:
            return daemon_status(self._session.plane, request.id, self._session.tenant)
        namespace = self._checked(request)
        infos = (self._service.store.info(namespace, key) for key in request.keys)
        return wire.Blocks(request.id, [block_stat(info) if info else None for info in infos])

    def list_blocks(self, request: wire.ListBlocks) -> wire.Message:
        namespace = self._session.namespace(request.namespace)
        if not 0 < request.limit <= LIST_MAX:
            raise BadRequest(f"limit = {request.limit}: 1 to {LIST_MAX}")
        found = self._service.store.list_blocks(namespace, request.prefix, request.after, request.limit + 1)
        return wire.Blocks(
            request.id, [block_stat(info) for info in found[: request.limit]], len(found) > request.limit
        )

    def _checked(self, request: wire.Pin | wire.Unpin | wire.SetTtl | wire.Evict | wire.Stat) -> Namespace:
        namespace = self._session.namespace(request.namespace)
        self._session.check_keys(request.keys)
        return namespace
