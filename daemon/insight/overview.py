"""The one screen that says how the daemon is doing, for a caller of one tenant."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mooncask.client import control
from mooncask.daemon.insight.blocks import tier_text
from mooncask.daemon.insight.hot_chains import HotChains
from mooncask.daemon.insight.rates import Rates
from mooncask.daemon.insight.traffic import Traffic
from mooncask.daemon.leases import LeaseTable
from mooncask.daemon.namespace_door import block_tokens
from mooncask.daemon.processes import Process, ProcessTable
from mooncask.daemon.service import Service
from mooncask.daemon.status import all_tiers, version
from mooncask.tiers.flows import Flows, Way
from mooncask.tiers.namespace import Namespace

HOT_CHAINS = 20
SLICE = 256
UNKNOWN = -1.0


FlowName = tuple[str, Way]
"""("blocks" or "bytes", way)"""


@dataclass(frozen=True, slots=True)
class Sources:
    """Where an overview gets what it tells. `requests_rate` is asked for a moment of `time.monotonic()`."""

    service: Service
    leases: LeaseTable
    processes: ProcessTable
    local_counters: Counter[str]
    traffic: Traffic
    hot_chains: HotChains
    flow_rates: Rates[FlowName]
    flow_sums: Callable[[], dict[FlowName, int]]
    requests_rate: Callable[[float], float]
    what_if: Callable[[], list[control.WhatIf]]


async def overview(sources: Sources, tenant: str) -> control.Overview:
    """Tiers, flows and counters of the whole daemon; namespaces, chains and clients of the tenant who asks."""
    service, now = sources.service, time.monotonic()
    mine = service.door.owned(tenant)
    status = service.store.status()
    namespaces = await _namespaces(sources, mine, now)
    return control.Overview(
        node=service.config.node.name,
        version=version(),
        ready=service.ready,
        time_seconds=time.time(),
        uptime_seconds=now - service.started_seconds,
        window_seconds=min(sources.flow_rates.window_seconds, now - service.started_seconds),
        tiers=_tiers(service),
        flows=_flows(sources, now),
        namespaces=namespaces,
        hot_chains=await sources.hot_chains.hottest(mine, HOT_CHAINS),
        clients=await _clients(sources, tenant),
        what_if=sources.what_if(),
        peers=(await service.cluster.page()).peers if service.cluster is not None else [],
        counters=dict(service.store.counters + service.counters + sources.local_counters),
        hit_rate=_hit_rate(sources, mine, now),
        requests_rate=sources.requests_rate(now),
        waiting_for_room=status.waiting_for_room,
        dirty_bytes=status.dirty_bytes,
    )


def _tiers(service: Service) -> list[control.TierView]:
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
        for tier in all_tiers(service)
    ]


def _flows(sources: Sources, now: float) -> list[control.Flow]:
    sums = sources.flow_sums()
    rates = sources.flow_rates.of(sums, now)
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


async def _namespaces(sources: Sources, mine: Sequence[Namespace], now: float) -> list[control.NamespaceView]:
    views: list[control.NamespaceView] = []
    for first in range(0, len(mine), SLICE):
        views += [_namespace(sources, namespace, now) for namespace in mine[first : first + SLICE]]
        await asyncio.sleep(0)
    return views


def _namespace(sources: Sources, namespace: Namespace, now: float) -> control.NamespaceView:
    service, spec = sources.service, namespace.spec
    recent = sources.traffic.prefixes.of(namespace.id, now)
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


def _hit_rate(sources: Sources, mine: Sequence[Namespace], now: float) -> float:
    recent = [sources.traffic.prefixes.of(namespace.id, now) for namespace in mine]
    requested = sum(prefixes.requested for prefixes in recent)
    return sum(prefixes.hit for prefixes in recent) / requested if requested else UNKNOWN


async def _clients(sources: Sources, tenant: str) -> list[control.ClientView]:
    views = []
    for process in [process for process in sources.processes if process.tenant == tenant]:
        views.append(_client(sources, process))
        await asyncio.sleep(0)  # a process may hold a hundred thousand leases
    return views


def _client(sources: Sources, process: Process) -> control.ClientView:
    names = sorted({session.client for session in process.sessions if session.client})
    return control.ClientView(
        pid=process.peer.pid,
        uid=process.peer.uid,
        name=", ".join(names)[:200],
        tenant=process.tenant,
        connections=len(process.sessions),
        leases=sources.leases.count(process.token),
        leased_bytes=sources.leases.leased_bytes(process.token),
        reservations=len(process.parked) + sum(len(session.writings) for session in process.sessions),
    )


def sums_of(flows: Flows) -> Iterator[tuple[FlowName, int]]:
    """What `Rates` keeps: blocks and bytes of each way under names of their own."""
    for unit, sums in (("blocks", flows.blocks), ("bytes", flows.bytes)):
        for way, count in sums.items():
            yield (unit, way), count
