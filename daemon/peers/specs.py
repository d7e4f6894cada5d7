"""What a namespace is, sent from one node to another, so that a node can hold blocks of one that it has never seen.

What comes from a peer is checked as what comes from a client is, and must give the very id under which it was asked for: the
family, the shard and the tenant can't be mixed up. Objects are a node's own, and are not sent.
"""

import msgspec

from mooncask.client import wire
from mooncask.client.family import Family
from mooncask.daemon.directory.directory import namespace_id
from mooncask.daemon.directory.have import decoded
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.service import Service
from mooncask.daemon.transport.transport import Link, PeerInfo
from mooncask.errors import BadRequest, DeadlineExceeded, NoSuchNamespace, PeerUnavailable
from mooncask.tiers.namespace import Namespace, NamespaceSpec

SPEC = "spec"
_HASHES = ("sha256", "xxh3_128")


class Spec(msgspec.Struct, frozen=True, array_like=True):
    """A KV namespace, without its mode, which is each node's own choice."""

    name: str
    family: dict[str, str]
    shard: str
    tenant: str
    fingerprint: bytes

    @classmethod
    def of(cls, namespace: Namespace) -> "Spec":
        spec = namespace.spec
        return cls(spec.name, spec.family, spec.shard, spec.tenant, spec.fingerprint)


class WhatIs(msgspec.Struct, frozen=True, array_like=True):
    """The question `spec`: what is the tenant's namespace of this name? Answered by a Spec."""

    name: str
    tenant: str


class Specs:
    """Opens namespaces of other nodes on this one."""

    def __init__(self, ways: Ways, shared: SharedNamespaces) -> None:
        self._service = ways.service
        self._directory = ways.directory
        self._pool = ways.pool
        self._shared = shared

    async def tell(self, peer: PeerInfo, payload: bytes) -> bytes:
        """Answers `spec`."""
        question = decoded(payload, WhatIs)
        namespace = self._service.store.namespace(question.name)
        known = namespace is not None and namespace.spec.kind == "kv" and namespace.spec.tenant == question.tenant
        if namespace is None or not known:
            raise NoSuchNamespace(question.name[:80])
        return msgspec.msgpack.encode(Spec.of(namespace))

    async def find(self, name: str, tenant: str, deadline: float) -> Namespace:
        """The tenant's namespace of that name, as the first node has it that knows one. Raises NoSuchNamespace, and what `open` raises."""
        for node in await self._directory.nodes(deadline):
            try:
                link = await self._pool.link(node.address, deadline, node.incarnation)
                return await self._open_from(link, name, tenant, deadline)
            except (NoSuchNamespace, PeerUnavailable, DeadlineExceeded):
                continue
        raise NoSuchNamespace(name)

    async def _open_from(self, link: Link, name: str, tenant: str, deadline: float) -> Namespace:
        answer = await link.ask(SPEC, msgspec.msgpack.encode(WhatIs(name, tenant)), deadline)
        spec = decoded(answer, Spec)
        if (spec.name, spec.tenant) != (name, tenant):
            raise BadRequest("the peer described another namespace than it was asked for")
        return await self.open(spec)

    async def open(self, spec: Spec, ns_id: bytes = b"") -> Namespace:
        """See `open_spec`."""
        return await open_spec(self._service, self._shared, spec, ns_id)


async def open_spec(service: Service, shared: SharedNamespaces, spec: Spec, ns_id: bytes = b"") -> Namespace:
    """This node's namespace for it, made if need be; one of another name will do if it is for the same KV. Raises
    BadRequest for what does not agree with itself or with `ns_id`, FamilyMismatch, AccessDenied."""
    hash_name = _hash_name(spec)
    found_id = namespace_id(
        NamespaceSpec(spec.name, "kv", spec.family, spec.shard, spec.tenant, fingerprint=spec.fingerprint)
    )
    if ns_id and found_id != ns_id:
        raise BadRequest("a peer's namespace has another id than its description gives")
    here = shared.find(found_id)
    if here is not None:
        return here
    request = wire.Open(0, spec.name, wire.NamespaceKind.KV, spec.family, spec.shard, "", hash_name, True)
    return await service.door.open(spec.tenant, request)


def _hash_name(spec: Spec) -> str:
    """By which the fingerprint is that of the family. Raises BadRequest."""
    family = Family(spec.family)
    for name in _HASHES:
        if family.fingerprint(name) == spec.fingerprint:
            return name
    raise BadRequest(f"a peer's namespace {spec.name[:80]} has a fingerprint that is not its family's")
