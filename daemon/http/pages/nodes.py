"""Pages about blocks and nodes: which node has which, and moving them ahead of need, to another node or into memory."""

import time
from collections.abc import Awaitable, Callable

from mooncask.client import control
from mooncask.client.hold import Holding, HoldRequest
from mooncask.daemon.http.pages.page_request import PageRequest
from mooncask.daemon.insight.blocks import key_of
from mooncask.daemon.insight.prompts import asked_chain
from mooncask.daemon.insight.where import where
from mooncask.daemon.peers.by_name import ByName
from mooncask.daemon.session import LocalPlane
from mooncask.errors import BadRequest

DEADLINE_SECONDS_MAX = 600.0
FIND_SECONDS = 2.0
WHERE_SECONDS = 2.0

Page = Callable[[PageRequest], Awaitable[control.Answer]]


class NodePages:
    """POST /-/v1/where, /-/v1/replicate, /-/v1/warm and /-/v1/hold. Only the caller's own namespaces."""

    def __init__(self, plane: LocalPlane) -> None:
        self._plane = plane
        self._service = plane.service
        self._by_name = ByName(plane.service, FIND_SECONDS)

    def pages(self) -> dict[tuple[str, str], Page]:
        return {
            ("POST", "where"): self._where,
            ("POST", "replicate"): self._replicate,
            ("POST", "warm"): self._warm,
            ("POST", "hold"): self._hold,
        }

    async def _where(self, asked: PageRequest) -> control.Answer:
        request = await asked.form(control.WhyRequest, self._service.config.http)
        namespace = self._service.door.find(asked.caller.tenant, request.namespace)
        chain = await asked_chain(namespace, request)
        return await where(self._service, namespace, chain.keys, time.monotonic() + WHERE_SECONDS)

    async def _replicate(self, asked: PageRequest) -> control.Answer:
        asked.check_may_write()
        request = await asked.form(control.ReplicateRequest, self._service.config.http)
        cluster = self._service.cluster
        if cluster is None:
            raise BadRequest("this node is alone: cluster.listen is empty")
        if not 0 < request.deadline_seconds <= DEADLINE_SECONDS_MAX:
            raise BadRequest(
                f"deadline_seconds = {request.deadline_seconds:g}: above 0, up to {DEADLINE_SECONDS_MAX:g}"
            )
        namespace = self._service.door.find(asked.caller.tenant, request.namespace)
        prompt = control.WhyRequest(
            namespace=request.namespace, tokens=request.tokens, keys=request.keys, cache_salt=request.cache_salt
        )
        chain = await asked_chain(namespace, prompt)
        deadline = time.monotonic() + request.deadline_seconds
        return await cluster.replication.push(namespace, chain.keys, request.to, deadline)

    async def _warm(self, asked: PageRequest) -> control.Answer:
        asked.check_may_write()
        request = await asked.form(control.WhyRequest, self._service.config.http)
        namespace = await self._by_name.find(asked.caller.tenant, request.namespace)
        chain = await asked_chain(namespace, request)
        return await self._plane.warming.warm(namespace, chain.keys)

    async def _hold(self, asked: PageRequest) -> control.Answer:
        asked.check_may_write()
        request = await asked.form(HoldRequest, self._service.config.http)
        namespace = self._service.door.find(asked.caller.tenant, request.namespace)
        keys = [key_of(namespace, key) for key in request.keys]
        missing = await self._service.holds.put(
            namespace, request.name, keys, request.seconds, request.share, request.renew
        )
        return Holding(held_blocks=len(keys) - len(missing), missing=tuple(missing))
