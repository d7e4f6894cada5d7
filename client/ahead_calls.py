"""Calls that move blocks ahead of need, of the sync and the async client: what they answer, and their methods."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mooncask.client import wire
from mooncask.client.calls import Plan
from mooncask.client.flows import Deadline, Flow
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import GRACE_SECONDS, Keys, Operation, only_reply
from mooncask.client.session import Limits, milliseconds

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Replicated:
    """What became of blocks that were to go to another node, by number. `reason`: why the last of the `refused` were."""

    node: str
    missing: int
    there: int
    copied: int
    copied_bytes: int
    refused: int
    reason: str


@dataclass(frozen=True, slots=True)
class Warming:
    """Blocks that are to come into DRAM, by number: there already, on their way, left out since too many are, nowhere."""

    in_memory: int
    coming: int
    left_out: int
    missing: int


def replicate(namespace: NamespaceHandle, keys: Keys, to: str, seconds: float, limits: Limits) -> Flow[Replicated]:
    deadline, replies = Deadline(seconds), list[wire.Replicated]()
    for some in _parts(keys, limits):
        reply: wire.Replicated = yield _replicate(namespace, some, to, deadline.left())
        replies.append(reply)
    return Replicated(
        replies[0].node if replies else to,
        sum(reply.missing for reply in replies),
        sum(reply.there for reply in replies),
        sum(reply.copied for reply in replies),
        sum(reply.copied_bytes for reply in replies),
        sum(reply.refused for reply in replies),
        next((reply.reason for reply in reversed(replies) if reply.reason), ""),
    )


def warm(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[Warming]:
    deadline, replies = Deadline(seconds), list[wire.Warming]()
    for some in _parts(keys, limits):
        reply: wire.Warming = yield _warm(namespace, some, deadline.left())
        replies.append(reply)
    return Warming(
        sum(reply.in_memory for reply in replies),
        sum(reply.coming for reply in replies),
        sum(reply.left_out for reply in replies),
        sum(reply.missing for reply in replies),
    )


class _Sync(Protocol):
    def _seconds(self, deadline_seconds: float | None) -> float: ...

    def _limits(self) -> Limits: ...

    def _do(self, plan: Plan[T]) -> T: ...


class _Async(Protocol):
    def _seconds(self, deadline_seconds: float | None) -> float: ...

    async def _limits(self) -> Limits: ...

    async def _do(self, plan: Plan[T]) -> T: ...


class AheadCalls:
    """Of the sync client."""

    def replicate(
        self: _Sync, namespace: NamespaceHandle, keys: Keys, to: str, deadline_seconds: float | None = None
    ) -> Replicated:
        """Copies blocks of this node to the node called `to`, or at that host:port, which need not know the namespace. Returns when it
        has them or has refused them. Raises BadRequest for a node that is not known."""
        return self._do(replicate(namespace, keys, to, self._seconds(deadline_seconds), self._limits()))

    def warm(self: _Sync, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> Warming:
        """Begins to bring blocks into DRAM, from NVMe or from other nodes, and does not wait for them. Raises Busy."""
        return self._do(warm(namespace, keys, self._seconds(deadline_seconds), self._limits()))


class AsyncAheadCalls:
    """Of the async client."""

    async def replicate(
        self: _Async, namespace: NamespaceHandle, keys: Keys, to: str, deadline_seconds: float | None = None
    ) -> Replicated:
        """As `LocalClient.replicate`."""
        return await self._do(replicate(namespace, keys, to, self._seconds(deadline_seconds), await self._limits()))

    async def warm(
        self: _Async, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None
    ) -> Warming:
        """As `LocalClient.warm`."""
        return await self._do(warm(namespace, keys, self._seconds(deadline_seconds), await self._limits()))


def _replicate(namespace: NamespaceHandle, keys: Keys, to: str, seconds: float) -> Operation[wire.Replicated]:
    return Operation(
        "replicate",
        lambda id, ns: wire.Replicate(id, ns, list(keys), to, milliseconds(seconds)),
        lambda _, replies: only_reply(replies, wire.Replicated),
        seconds + GRACE_SECONDS,
        namespace,
    )


def _warm(namespace: NamespaceHandle, keys: Keys, seconds: float) -> Operation[wire.Warming]:
    return Operation(
        "warm",
        lambda id, ns: wire.Warm(id, ns, list(keys)),
        lambda _, replies: only_reply(replies, wire.Warming),
        seconds,
        namespace,
    )


def _parts(keys: Keys, limits: Limits) -> Iterator[Keys]:
    return (keys[first : first + limits.batch] for first in range(0, len(keys), limits.batch))
