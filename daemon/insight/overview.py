"""The one screen that says how the daemon is doing, for a caller of one tenant."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mooncask.client import control
from mooncask.daemon.insight.blocks import tier_text
from mooncask.daemon.namespace_door import block_tokens
from mooncask.daemon.status import all_counters, version
from mooncask.tiers.flows import Flows, Way
from mooncask.tiers.namespace import Namespace

if TYPE_CHECKING:
    from mooncask.daemon.insight.insight import Insight
    from mooncask.daemon.processes import Process
    from mooncask.daemon.session import LocalPlane

HOT_CHAINS = 20
SLICE = 256
UNKNOWN = -1.0


async def overview(plane: "LocalPlane", insight: "Insight", tenant: str) -> control.Overview:
    """Tiers, flows and counters of the whole daemon; namespaces, chains and clients of the tenant who asks."""
    service, now = plane.service, time.monotonic()
    mine = service.door.owned(tenant)
    status = service.store.status()
    namespaces = await _namespaces(insight, mine, now)
    return control.Overview(
        node=service.config.node.name,
        version=version(),
        ready=service.ready,
        time_seconds=time.time(),
        uptime_seconds=now - service.started_seconds,
        window_seconds=min(insight.flow_rates.window_seconds, now - service.started_seconds),
        tiers=_tiers(plane),
        flows=_flows(insight, now),
        namespaces=namespaces,
        hot_chains=await insight.hot_chains.hottest(mine, HOT_CHAINS),
        clients=await _clients(plane, tenant),
        what_if=insight.what_if(),
        counters=all_counters(plane),
        hit_rate=_hit_rate(insight, mine, now),
        requests_rate=insight.requests_rate(now),
        waiting_for_room=status.waiting_for_room,
        dirty_bytes=status.dirty_bytes,
    )


def _tiers(plane: "LocalPlane") -> list[control.TierView]:
    return [
        control.TierView(
            tier=tier_text(tier.name),
            capacity_bytes=tier.capacity_bytes,
            used_bytes=tier.used_bytes,
            blocks=tier.blocks,
            pinned_bytes=tier.pinned_bytes,
            leased_bytes=tier.leased_bytes,
            reserved_bytes=tier.reserved_bytes,
            policy=tier.policy,
            state=tier.state,
        )
        for tier in plane.service.store.status().tiers
    ]


def _flows(insight: "Insight", now: float) -> list[control.Flow]:
    sums = insight.flow_sums()
    rates = insight.flow_rates.of(sums, now)
    ways = sorted({way for _, way in sums})
    return [
        control.Flow(
            kind=way.kind,
            tier=way.tier,
            total_bytes=sums[("bytes", way)],
            rate_bytes=rates[("bytes", way)],
            total=sums[("blocks", way)],
            rate=rates[("blocks", way)],
        )
        for way in ways
    ]


async def _namespaces(insight: "Insight", mine: Sequence[Namespace], now: float) -> list[control.NamespaceView]:
    views: list[control.NamespaceView] = []
    for first in range(0, len(mine), SLICE):
        views += [_namespace(insight, namespace, now) for namespace in mine[first : first + SLICE]]
        await asyncio.sleep(0)
    return views


def _namespace(insight: "Insight", namespace: Namespace, now: float) -> control.NamespaceView:
    service, spec = insight.service, namespace.spec
    recent = insight.traffic.prefixes.of(namespace.id, now)
    return control.NamespaceView(
        name=spec.name,
        kind=spec.kind,
        tenant=spec.tenant,
        shard=spec.shard,
        mode=spec.mode.value,
        blocks=namespace.blocks,
        size_bytes=service.door.size_bytes(namespace),
        block_tokens=block_tokens(spec.family),
        requested_tokens=service.tokens[(spec.name, "requested")],
        hit_tokens=service.tokens[(spec.name, "hit")],
        hit_rate=recent.hit / recent.requested if recent.requested else UNKNOWN,
    )


def _hit_rate(insight: "Insight", mine: Sequence[Namespace], now: float) -> float:
    recent = [insight.traffic.prefixes.of(namespace.id, now) for namespace in mine]
    requested = sum(prefixes.requested for prefixes in recent)
    return sum(prefixes.hit for prefixes in recent) / requested if requested else UNKNOWN


async def _clients(plane: "LocalPlane", tenant: str) -> list[control.ClientView]:
    views = []
    for process in [process for process in plane.processes if process.tenant == tenant]:
        views.append(_client(plane, process))
        await asyncio.sleep(0)  # a process may hold a hundred thousand leases
    return views


def _client(plane: "LocalPlane", process: "Process") -> control.ClientView:
    names = sorted({session.client for session in process.sessions if session.client})
    return control.ClientView(
        pid=process.peer.pid,
        uid=process.peer.uid,
        name=", ".join(names)[:200],
        tenant=process.tenant,
        connections=len(process.sessions),
        leases=plane.leases.count(process.token),
        leased_bytes=plane.leases.leased_bytes(process.token),
        reservations=len(process.parked) + sum(len(session.writings) for session in process.sessions),
    )


def sums_of(flows: Flows) -> Iterator[tuple[tuple[str, Way], int]]:
    """What `Rates` keeps: blocks and bytes of each way under names of their own."""
    for unit, sums in (("blocks", flows.blocks), ("bytes", flows.bytes)):
        for way, count in sums.items():
            yield (unit, way), count
