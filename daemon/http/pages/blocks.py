"""Pages of single blocks: what is known of one, evict, pin, unpin, time to live. Only the caller's own namespaces."""

from collections.abc import Awaitable, Callable

import msgspec

from mooncask.client import control
from mooncask.daemon.control import TTL_MS_MAX
from mooncask.daemon.http.pages.page_request import PageRequest
from mooncask.daemon.insight.blocks import block_view, key_of
from mooncask.daemon.session import LocalPlane
from mooncask.errors import BadRequest, NoSuchBlock
from mooncask.tiers.namespace import Namespace

TTL_SECONDS_MAX = TTL_MS_MAX / 1000

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class BlockPages:
    """/-/v1/blocks/NS/KEY and what can be done to it."""

    def __init__(self, plane: LocalPlane) -> None:
        self._service = plane.service
        self._store = plane.service.store
        self._actions: dict[str, Callable[[PageRequest, Namespace, bytes], Awaitable[None]]] = {
            "pin": self._pin,
            "unpin": self._unpin,
            "ttl": self._ttl,
        }

    def pages(self) -> dict[tuple[str, str], Page]:
        return {("GET", "blocks"): self._show, ("DELETE", "blocks"): self._evict, ("POST", "blocks"): self._act}

    async def _show(self, asked: PageRequest) -> control.Answer:
        namespace = self._namespace(asked)
        return self._block(namespace, asked.key)

    async def _evict(self, asked: PageRequest) -> control.Answer:
        """The block as it was, in no tier any more. Durable when it answers."""
        namespace = self._writable(asked)
        block = self._block(namespace, asked.key)
        if not await self._store.evict(namespace, [key_of(namespace, asked.key)]):
            raise NoSuchBlock(namespace.spec.name, asked.key[:80])  # somebody was faster
        return msgspec.structs.replace(block, tiers=[], durable=False)

    async def _act(self, asked: PageRequest) -> control.Answer:
        key, _, action = asked.key.rpartition("/")
        act = self._actions.get(action)
        if act is None or not key:
            raise BadRequest(f"POST /-/v1/blocks/NAMESPACE/KEY/ACTION: ACTION is one of {', '.join(self._actions)}")
        namespace = self._writable(asked)
        await act(asked, namespace, key_of(namespace, key))
        return self._block(namespace, key)

    async def _pin(self, asked: PageRequest, namespace: Namespace, key: bytes) -> None:
        await self._store.pin(namespace, key)

    async def _unpin(self, asked: PageRequest, namespace: Namespace, key: bytes) -> None:
        await self._store.unpin(namespace, key)

    async def _ttl(self, asked: PageRequest, namespace: Namespace, key: bytes) -> None:
        if "seconds" not in asked.query:
            raise BadRequest("ttl needs seconds=S; 0 = none")
        seconds = asked.number("seconds", 0, 0, TTL_SECONDS_MAX)
        await self._store.set_ttl(namespace, key, seconds or None)

    def _block(self, namespace: Namespace, key: str) -> control.Block:
        info = self._store.info(namespace, key_of(namespace, key))
        if info is None:
            raise NoSuchBlock(namespace.spec.name, key[:80])
        return block_view(namespace, info)

    def _writable(self, asked: PageRequest) -> Namespace:
        asked.check_may_write()
        return self._namespace(asked)

    def _namespace(self, asked: PageRequest) -> Namespace:
        return self._service.door.find(asked.caller.tenant, asked.namespace)
