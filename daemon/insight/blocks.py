"""Blocks and namespaces as the JSON pages name them: keys as text, tiers by name."""

from collections.abc import Iterable

from mooncask.client import control
from mooncask.daemon.objects.attributes import whole_size
from mooncask.errors import NoSuchBlock
from mooncask.tiers.block import TierName
from mooncask.tiers.catalogue import NOWHERE, Catalogue
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import BlockInfo


def key_text(namespace: Namespace, key: bytes) -> str:
    """Hex in a KV namespace, the name itself in an object namespace."""
    return key.hex() if namespace.spec.kind == "kv" else key.decode("utf-8", "surrogateescape")


def key_of(namespace: Namespace, text: str) -> bytes:
    """What `key_text` shows, back as the key. Raises NoSuchBlock for what is no key of this kind of namespace."""
    try:
        return bytes.fromhex(text) if namespace.spec.kind == "kv" else text.encode("utf-8", "surrogateescape")
    except ValueError as error:
        raise NoSuchBlock(namespace.spec.name, text[:80]) from error


def tier_text(tier: int) -> str:
    return TierName(tier).name.lower() if tier else ""


def tier_texts(tiers: Iterable[int]) -> list[str]:
    return [tier_text(tier) for tier in tiers]


def tiers_of(catalogue: Catalogue, slot: int) -> list[str]:
    """Every tier that has the block, fastest first."""
    places = (
        ("hbm", slot in catalogue.hbm),
        ("dram", slot in catalogue.dram),
        ("nvme", catalogue.nvme_offset[slot] != NOWHERE),
    )
    return [tier for tier, there in places if there]


def block_view(namespace: Namespace, info: BlockInfo) -> control.Block:
    return control.Block(
        namespace=namespace.spec.name,
        key=key_text(namespace, info.key),
        size_bytes=whole_size(info),
        tiers=tier_texts(info.tiers),
        checksum=info.checksum.hex(),
        parent=key_text(namespace, info.parent),
        depth=info.depth,
        tokens=info.tokens,
        hits=info.hits,
        pins=info.pins,
        leases=info.leases,
        ttl_seconds=info.ttl_seconds,
        durable=info.durable,
        created_seconds=info.created_seconds,
    )
