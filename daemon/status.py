"""What the daemon says of itself and of its blocks, in the words of the wire."""

import importlib.metadata
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mooncask.client import wire
from mooncask.daemon.namespace_door import NamespaceDoor
from mooncask.daemon.objects.attributes import whole_size
from mooncask.daemon.service import Service
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import BlockInfo, TierStatus

if TYPE_CHECKING:
    from mooncask.daemon.session import LocalPlane

FAMILIES_BYTES_MAX = 256 << 10
"""Characters of families in one Status; with 4096 namespaces and long shards it still is below a frame's 4 MiB."""


def version() -> str:
    return importlib.metadata.version("mooncask")


def block_stat(info: BlockInfo) -> wire.BlockStat:
    return wire.BlockStat(
        key=info.key,
        size=whole_size(info),
        tiers=[int(tier) for tier in info.tiers],
        checksum=info.checksum,
        parent=info.parent,
        depth=info.depth,
        tokens=info.tokens,
        hits=info.hits,
        pins=info.pins,
        leases=info.leases,
        ttl_seconds=info.ttl_seconds,
        durable=info.durable,
        created_seconds=info.created_seconds,
    )


def tier_stat(tier: TierStatus) -> wire.TierStat:
    return wire.TierStat(
        tier=int(tier.name),
        capacity_bytes=tier.capacity_bytes,
        used_bytes=tier.used_bytes,
        blocks=tier.blocks,
        pinned_bytes=tier.pinned_bytes,
        leased_bytes=tier.leased_bytes,
        reserved_bytes=tier.reserved_bytes,
        policy=tier.policy,
        state=tier.state,
    )


def all_tiers(service: Service) -> list[TierStatus]:
    """Those of the store, then the bucket below them."""
    tiers = service.store.status().tiers
    return tiers if service.cold is None else [*tiers, service.cold.status()]


def daemon_status(plane: "LocalPlane", request_id: int, tenant: str) -> wire.Status:
    """Tiers and counters of the whole daemon, namespaces of the tenant who asks."""
    service = plane.service
    return wire.Status(
        id=request_id,
        node=service.config.node.name,
        version=version(),
        uptime_seconds=time.monotonic() - service.started_seconds,
        ready=service.ready,
        tiers=[tier_stat(tier) for tier in all_tiers(service)],
        namespaces=_namespace_stats(service.door, service.door.owned(tenant)),
        counters=dict(all_counters(plane)),
        clients=sum(len(process.sessions) for process in plane.processes),
    )


def _namespace_stats(door: NamespaceDoor, namespaces: Iterable[Namespace]) -> list[wire.NamespaceStat]:
    """All of them; families as far as they fit into a frame."""
    left = FAMILIES_BYTES_MAX
    stats = []
    for namespace in namespaces:
        spec = namespace.spec
        left -= sum(map(len, spec.family)) + sum(map(len, spec.family.values()))
        stats.append(
            wire.NamespaceStat(
                name=spec.name,
                kind=wire.NamespaceKind(spec.kind),
                tenant=spec.tenant,
                shard=spec.shard,
                mode=spec.mode.value,
                family=spec.family if left >= 0 else {},
                blocks=namespace.blocks,
                bytes=door.size_bytes(namespace),
            )
        )
    return stats


def all_counters(plane: "LocalPlane") -> dict[str, int]:
    """The store's, the service's and the socket's counters together."""
    return dict(plane.service.store.counters + plane.service.counters + plane.counters)
