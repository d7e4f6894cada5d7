"""What the daemon can tell of itself beyond counters: one object that holds what is remembered and answers the JSON pages.

Everything belongs to the event loop's thread. Bounded: each part names its own limit. Not here: how a page is asked for
(`daemon/http/pages/json_pages.py`) and what its fields mean (`client/control.py`).
"""

import asyncio
import time
from collections import Counter

from mooncask.client import control
from mooncask.daemon.insight.chains import Chains
from mooncask.daemon.insight.events import EventLog
from mooncask.daemon.insight.gone import Gone
from mooncask.daemon.insight.hot_chains import HotChains
from mooncask.daemon.insight.latencies import Latencies
from mooncask.daemon.insight.misses import Misses
from mooncask.daemon.insight.overview import FlowName, Sources, overview, sums_of
from mooncask.daemon.insight.rates import Rates
from mooncask.daemon.insight.recomputed import Recomputations
from mooncask.daemon.insight.traffic import Traffic
from mooncask.daemon.insight.tree import PrefixTrees
from mooncask.daemon.insight.verdicts import Verdicts
from mooncask.daemon.insight.why import Why
from mooncask.daemon.leases import LeaseTable
from mooncask.daemon.processes import ProcessTable
from mooncask.daemon.service import Service
from mooncask.tiers.flows import Flows
from mooncask.tiers.namespace import Namespace

RATES_SECONDS = 10.0
TICK_SECONDS = 0.9
"""At least between two ticks, however often the daemon's sweep comes by."""
TREES_UNUSED_SECONDS = 60.0
ABSORBS_AT_ONCE = 4


class Insight:
    """Of one daemon; made with its `LocalPlane`, told of look-ups and ticked about once a second."""

    def __init__(
        self, service: Service, leases: LeaseTable, processes: ProcessTable, local_counters: Counter[str]
    ) -> None:
        self.service = service
        store, now = service.store, time.monotonic()
        self.config_file = ""
        """Where the configuration was read from, empty when from nowhere; `main.py` knows."""
        self.trees = PrefixTrees(store.catalogue)
        self.chains = Chains(store, self.trees)
        self.gone = Gone(store.departures, service.config.insight.departures_max, time.time())
        self.misses = Misses(self.gone)
        self.hot_chains = HotChains(store, time.monotonic)
        self.traffic = Traffic()
        self.http = Flows()
        """Bytes of bodies that came and went over HTTP."""
        self.latencies = Latencies()
        self.flow_rates: Rates[FlowName] = Rates(RATES_SECONDS, now)
        self._request_rates: Rates[str] = Rates(RATES_SECONDS, now)
        self.verdicts = Verdicts(service, self.gone)
        self.recomputed = Recomputations()
        self._why = Why(self.verdicts, self.gone, self.recomputed, self._absorb)
        self._events = EventLog(self.gone, self.misses, self.verdicts)
        self._ticked_seconds = now
        for observer in (self.traffic.looked, self.hot_chains.looked, self.misses.looked):
            service.lookups.add(observer)
        service.on_matched_far = self.traffic.matched_far
        if service.cluster is not None:
            service.cluster.whereabouts.explained_by(self.verdicts, self._absorb)
        self._sources = Sources(
            service=service,
            leases=leases,
            processes=processes,
            local_counters=local_counters,
            traffic=self.traffic,
            hot_chains=self.hot_chains,
            flow_rates=self.flow_rates,
            flow_sums=self.flow_sums,
            requests_rate=self.requests_rate,
            what_if=self.what_if,
        )

    # --- answers ---

    async def overview(self, tenant: str) -> control.Overview:
        return await overview(self._sources, tenant)

    async def why(self, namespace: Namespace, request: control.WhyRequest) -> control.Why:
        """Raises BadRequest, NoSuchBlock for what is no key."""
        return await self._why.explain(namespace, request, self.service.door.owned(namespace.spec.tenant))

    def events(self, tenant: str, limit: int) -> control.Events:
        self._absorb()
        return self._events.newest(self.service.door.owned(tenant), limit, time.time() - time.monotonic())

    def what_if(self) -> list[control.WhatIf]:
        """Of the ghost caches, where there are any."""
        what_ifs = self.service.what_ifs
        return list(what_ifs.answers()) if what_ifs is not None else []

    # --- sums ---

    def flow_sums(self) -> dict[FlowName, int]:
        """Blocks and bytes of every way since the start."""
        sums: dict[FlowName, int] = {}
        for flows in (self.service.store.flows, self.traffic.flows, self.http):
            sums.update(sums_of(flows))
        return sums

    def requests_rate(self, now: float) -> float:
        """Requests a second over both sockets and HTTP, at `now` (`time.monotonic()`)."""
        return sum(self._request_rates.of(self.latencies.requests(), now).values())

    # --- time ---

    def tick(self) -> None:
        """About once a second, off any request's way: a few microseconds unless much has left."""
        now = time.monotonic()
        if now - self._ticked_seconds < TICK_SECONDS:
            return
        self._ticked_seconds = now
        self.flow_rates.snapshot(self.flow_sums(), now)
        self._request_rates.snapshot(self.latencies.requests(), now)
        self.hot_chains.tidy()
        self.trees.forget_unused(TREES_UNUSED_SECONDS)
        self._absorb_in_slices()

    def _absorb_in_slices(self) -> None:
        if self.gone.absorb():
            asyncio.get_running_loop().call_soon(self._absorb_in_slices)

    def _absorb(self) -> None:
        """What the store has noted since the last tick, as far as that takes no more than ten milliseconds or so."""
        for _ in range(ABSORBS_AT_ONCE):
            if not self.gone.absorb():
                return
