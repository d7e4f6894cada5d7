"""What a real daemon makes of offers of blocks: namespaces that are not what they say are not opened, and lies are not kept."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from cluster_nodes import FAMILY, SECRET, ClusterNodes, Node
from lying_peer import KEYS, other_bytes, serving
from peer_world import LINK, credentials_of, soon

from mooncask.client.family import Family
from mooncask.daemon.directory.directory import namespace_id
from mooncask.daemon.peers.replicate import OFFER, OFFER_KEYS_MAX, Offer, Taken
from mooncask.daemon.peers.specs import SPEC, Spec, WhatIs
from mooncask.daemon.transport.pool import Links
from mooncask.daemon.transport.tcp.dial import TcpDialler
from mooncask.daemon.transport.transport import Link
from mooncask.errors import BadRequest, FamilyMismatch, MooncaskError, NoSuchNamespace
from mooncask.tiers.namespace import NamespaceSpec

OTHER = {**FAMILY, "dtype": "float16"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with ClusterNodes(tmp_path) as nodes:
        yield nodes.start("n1")[0]


def spec_of(family: dict[str, str], name: str = "kv-offered", **changes: object) -> Spec:
    spec = Spec(name, family, "", "default", Family(family).fingerprint("sha256"))
    return msgspec.structs.replace(spec, **changes)


def offer(spec: Spec, keys: list[bytes] = KEYS, ns_id: bytes = b"") -> bytes:
    true_id = namespace_id(
        NamespaceSpec(spec.name, "kv", spec.family, spec.shard, spec.tenant, fingerprint=spec.fingerprint)
    )
    return msgspec.msgpack.encode(Offer(ns_id or true_id, spec, keys, 10.0))


@asynccontextmanager
async def link_from(address: str, node: Node) -> AsyncIterator[Link]:
    """Of a node called liar that says it is reached at `address`."""
    pool = Links(TcpDialler(credentials_of("liar", address, None, SECRET), LINK).dial)
    try:
        yield await pool.link(node.address, soon())
    finally:
        await pool.close()


async def _ask(node: Node, kind: str, payload: bytes) -> bytes | MooncaskError:
    async with link_from("127.0.0.1:1", node) as link:
        try:
            return await link.ask(kind, payload, soon())
        except MooncaskError as error:
            return error


def ask(node: Node, kind: str, payload: bytes) -> bytes | MooncaskError:
    return asyncio.run(_ask(node, kind, payload))


def names(node: Node) -> list[str]:
    return [namespace.name for namespace in node.client.status().namespaces]


def test_a_namespace_that_is_not_what_it_says_is_not_opened(node: Node) -> None:
    fingerprint = Family(OTHER).fingerprint("sha256")
    refused = [
        ask(node, OFFER, offer(spec_of(FAMILY), ns_id=bytes(16))),
        ask(node, OFFER, offer(spec_of(FAMILY, fingerprint=fingerprint))),
        ask(node, OFFER, offer(spec_of(FAMILY, name="No name/"))),
        ask(node, OFFER, offer(msgspec.structs.replace(spec_of(FAMILY), family={"model": "m" * 20_000}))),
        ask(node, OFFER, offer(spec_of(FAMILY), [bytes(16)] * (OFFER_KEYS_MAX + 1))),
        ask(node, OFFER, b"no offer"),
    ]
    assert [isinstance(answer, BadRequest) for answer in refused] == [True] * len(refused), refused
    assert names(node) == []


def test_a_name_that_another_family_has_here_is_refused_and_one_that_is_called_otherwise_will_do(node: Node) -> None:
    node.client.open_namespace("kv-offered", OTHER)
    assert isinstance(ask(node, OFFER, offer(spec_of(FAMILY))), FamilyMismatch)
    node.client.open_namespace("kv-mine", FAMILY)
    answer = ask(node, OFFER, offer(spec_of(FAMILY)))
    assert isinstance(answer, bytes), answer
    taken = msgspec.msgpack.decode(answer, type=Taken)
    assert (taken.here, taken.pulled, taken.refused) == (0, 0, len(KEYS)) and taken.reason
    assert sorted(names(node)) == ["kv-mine", "kv-offered"]


def test_who_asks_what_a_namespace_is_hears_of_its_own_tenants_kv_only(node: Node) -> None:
    node.client.open_namespace("kv-mine", FAMILY)
    node.client.open_namespace("objects", kind="object")  # type: ignore[arg-type]
    found = ask(node, SPEC, msgspec.msgpack.encode(WhatIs("kv-mine", "default")))
    assert isinstance(found, bytes)
    assert msgspec.msgpack.decode(found, type=Spec) == spec_of(FAMILY, name="kv-mine")
    for name, tenant in (("kv-mine", "other"), ("objects", "default"), ("kv-none", "default")):
        assert isinstance(ask(node, SPEC, msgspec.msgpack.encode(WhatIs(name, tenant))), NoSuchNamespace)


def test_bytes_that_are_offered_and_are_not_those_of_their_checksum_are_not_kept(node: Node) -> None:
    taken = asyncio.run(_offer_lies(node))
    assert (taken.pulled, taken.refused) == (0, len(KEYS)), taken
    node.client.open_namespace("", FAMILY)
    assert node.client.stat(node.namespace(), KEYS) == [None] * len(KEYS)
    assert node.counters()["peer_blocks_wrong"] == len(KEYS)


async def _offer_lies(node: Node) -> Taken:
    async with serving(other_bytes, "liar") as address, link_from(address, node) as link:
        return msgspec.msgpack.decode(await link.ask(OFFER, offer(spec_of(FAMILY)), soon()), type=Taken)
