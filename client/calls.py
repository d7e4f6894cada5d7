"""Each call of the clients as a plan: one request where that does, several (`flows.py`) where it does not."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from mooncask.client import flows, operations, wire
from mooncask.client.blocks import Blocks
from mooncask.client.byte_views import flat_bytes
from mooncask.client.flows import Deadline, Flow
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import Keys, Match, NewBlocks, Operation
from mooncask.client.session import Limits, ProgressCallback
from mooncask.client.wire import BlockStat, CommitState, HintFields, NamespaceKind

T = TypeVar("T")
Plan = Operation[T] | Flow[T]


def open_namespace(
    name: str,
    family: Mapping[str, str] | None,
    shard: str,
    mode: str,
    kind: NamespaceKind,
    hash: str,
    create: bool,
    seconds: float,
) -> Operation[NamespaceHandle]:
    return operations.open_namespace(wire.Open(0, name, kind, dict(family or {}), shard, mode, hash, create), seconds)


def match(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Plan[Match]:
    if 0 < len(keys) <= limits.batch:
        return operations.match(namespace, keys, seconds)
    return flows.match(namespace, keys, Deadline(seconds), limits)


def acquire(
    namespace: NamespaceHandle,
    keys: Keys,
    seconds: float,
    limits: Limits,
    wait: bool,
    verify: bool,
    want_token: bool,
    hint: HintFields | None,
    progress: ProgressCallback | None,
) -> Plan[Blocks]:
    if 0 < len(keys) <= limits.batch or want_token:
        return operations.acquire(namespace, keys, seconds, wait, verify, want_token, hint, progress)
    return flows.acquire(namespace, keys, Deadline(seconds), limits, wait, verify, hint, progress)


def get_into(
    namespace: NamespaceHandle, keys: Keys, buffers: Sequence[Any], seconds: float, hint: HintFields | None
) -> Flow[list[bool]]:
    return flows.get_into(namespace, keys, buffers, Deadline(seconds), hint)


def put(
    namespace: NamespaceHandle,
    keys: Keys,
    payloads: Sequence[Any],
    parents: Sequence[bytes],
    depths: Sequence[int],
    tokens: Sequence[int],
    durable: bool,
    digests: Sequence[bytes],
    hint: HintFields | None,
    seconds: float,
    limits: Limits,
) -> Flow[list[CommitState]]:
    sources = [flat_bytes(payload) for payload in payloads]
    new = NewBlocks(keys, [source.nbytes for source in sources], parents, depths, tokens, 0, hint)
    operations.check_column(keys, "digests", digests)
    return flows.put(namespace, new, sources, Deadline(seconds), limits, durable, digests)


def expect(namespace: NamespaceHandle, keys: Keys, ttl_seconds: float, seconds: float, limits: Limits) -> Flow[int]:
    return flows.counted(
        lambda part, left: operations.expect(namespace, part, ttl_seconds, left), keys, Deadline(seconds), limits
    )


def pin(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[int]:
    return flows.counted(lambda part, left: operations.pin(namespace, part, left), keys, Deadline(seconds), limits)


def unpin(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[int]:
    return flows.counted(lambda part, left: operations.unpin(namespace, part, left), keys, Deadline(seconds), limits)


def set_ttl(
    namespace: NamespaceHandle, keys: Keys, ttl_seconds: float | None, seconds: float, limits: Limits
) -> Flow[int]:
    return flows.counted(
        lambda part, left: operations.set_ttl(namespace, part, ttl_seconds, left), keys, Deadline(seconds), limits
    )


def evict(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[int]:
    return flows.counted(lambda part, left: operations.evict(namespace, part, left), keys, Deadline(seconds), limits)


def stat(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[list[BlockStat | None]]:
    return flows.listed(lambda part, left: operations.stat(namespace, part, left), keys, Deadline(seconds), limits)


def verify(namespace: NamespaceHandle, keys: Keys, seconds: float, limits: Limits) -> Flow[list[bool]]:
    return flows.listed(lambda part, left: operations.verify(namespace, part, left), keys, Deadline(seconds), limits)
