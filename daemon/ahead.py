"""Replicate and Warm of one connection: blocks to another node, or into this node's memory, before they are asked for."""

from mooncask.client import wire
from mooncask.daemon.session import Session
from mooncask.errors import BadRequest

NAME_BYTES_MAX = 1024


class Ahead:
    """The requests of one session that are about other nodes, or about later."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service

    async def replicate(self, request: wire.Replicate) -> wire.Message:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        if self._service.cluster is None:
            raise BadRequest("this node is alone: cluster.listen is empty")
        if not 0 < len(request.to) <= NAME_BYTES_MAX:
            raise BadRequest("a node is named by its name or by host:port")
        deadline = session.deadline(request.deadline_ms, self._service.config.limits.acquire_deadline_max)
        done = await self._service.cluster.replication.push(namespace, request.keys, request.to, deadline)
        return wire.Replicated(
            request.id, done.node, done.missing, done.there, done.copied, done.copied_bytes, done.refused, done.reason
        )

    async def warm(self, request: wire.Warm) -> wire.Message:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        begun = await session.plane.warming.warm(namespace, request.keys)
        return wire.Warming(request.id, begun.in_memory, begun.coming, begun.left_out, begun.missing)
