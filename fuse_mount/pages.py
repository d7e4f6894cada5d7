"""The text of `.info`, `.stats` and the files in `.mooncask/`: JSON. Pure."""

import json
from collections import Counter

import msgspec

from mooncask.client.wire import NamespaceStat, Status, Tier
from mooncask.fuse_mount.chains import Chain


def chain_info(chain: Chain, continued_by: int, now_seconds: float) -> bytes:
    """Of a whole chain: tokens, size and tiers are all its blocks', hits and age are its last one's."""
    tip = chain.blocks[-1]
    tiers = Counter(Tier(min(block.tiers, default=0)).name.lower() for block in chain.blocks)
    return text(
        {
            "digest": tip.key.hex(),
            "blocks": len(chain.blocks),
            "whole": chain.whole,
            "tokens": sum(block.tokens for block in chain.blocks),
            "depth": tip.depth,
            "size_bytes": sum(block.size for block in chain.blocks),
            "tiers": dict(sorted(tiers.items())),
            "hits": tip.hits,
            "age_seconds": max(0, round(now_seconds - tip.created_seconds)),
            "continued_by": continued_by,
        }
    )


def namespace_stats(stat: NamespaceStat) -> bytes:
    return text(msgspec.structs.asdict(stat) | {"kind": stat.kind.value})


def daemon_stats(status: Status) -> bytes:
    plain = msgspec.structs.asdict(status)
    plain["tiers"] = [msgspec.structs.asdict(tier) | {"tier": Tier(tier.tier).name.lower()} for tier in status.tiers]
    plain["namespaces"] = len(status.namespaces)
    del plain["id"]
    return text(plain)


def text(document: object) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
