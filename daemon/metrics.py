"""What Prometheus scrapes, gathered when it asks. Names end in their unit; hit rates are counted in tokens.

hit rate = rate(mooncask_prefix_hit_tokens_total) / rate(mooncask_prefix_requested_tokens_total)
"""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mooncask.daemon.session import LocalPlane
from mooncask.daemon.status import all_counters, version

_TIER_GAUGES = ("capacity_bytes", "used_bytes", "blocks", "pinned_bytes", "leased_bytes", "reserved_bytes")


class Metrics:
    """A registry of the daemon's own: nothing that another library registers shows up in it."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, plane: LocalPlane, http_requests: Mapping[tuple[str, int], int]) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_DaemonCollector(plane, http_requests))
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _DaemonCollector(Collector):
    def __init__(self, plane: LocalPlane, http_requests: Mapping[tuple[str, int], int]) -> None:
        self._plane = plane
        self._service = plane.service
        self._http_requests = http_requests

    def describe(self) -> Iterable[Metric]:
        """Nothing beforehand: namespaces and counters come and go."""
        return []

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("mooncask_build_info", "1, with the version as a label.", labels=["version"])
        info.add_metric([version()], 1)
        yield info
        yield GaugeMetricFamily("mooncask_ready", "Whether requests are served.", float(self._service.ready))
        yield from self._tiers()
        yield from self._namespaces()
        yield from self._tokens()
        yield from self._tenants()
        yield from self._local()
        yield from self._what_if()
        yield from self._events()

    def _tiers(self) -> Iterator[Metric]:
        status = self._service.store.status()
        for name in _TIER_GAUGES:
            gauge = GaugeMetricFamily(f"mooncask_tier_{name}", f"{name} of the tier.", labels=["tier"])
            for tier in status.tiers:
                gauge.add_metric([tier.name.name.lower()], getattr(tier, name))
            yield gauge
        healthy = GaugeMetricFamily("mooncask_tier_healthy", "0 = the tier is degraded.", labels=["tier"])
        for tier in status.tiers:
            healthy.add_metric([tier.name.name.lower()], float(not tier.state.startswith("degraded")))
        yield healthy
        yield GaugeMetricFamily("mooncask_dirty_bytes", "Published bytes that wait for NVMe.", status.dirty_bytes)
        yield GaugeMetricFamily("mooncask_room_waiters", "Requests that wait for DRAM.", status.waiting_for_room)

    def _namespaces(self) -> Iterator[Metric]:
        labels = ["namespace", "tenant", "kind", "mode"]
        blocks = GaugeMetricFamily("mooncask_namespace_blocks", "Blocks in the namespace.", labels=labels)
        size = GaugeMetricFamily("mooncask_namespace_bytes", "Payload bytes in the namespace.", labels=labels)
        for namespace in self._service.store.namespaces():
            spec = namespace.spec
            values = [spec.name, spec.tenant, spec.kind, spec.mode.value]
            blocks.add_metric(values, namespace.blocks)
            size.add_metric(values, namespace.stored_bytes)
        yield blocks
        yield size

    def _tokens(self) -> Iterator[Metric]:
        for which, text in (("requested", "Tokens of prefixes looked up."), ("hit", "Those of usable prefixes.")):
            counter = CounterMetricFamily(f"mooncask_prefix_{which}_tokens", text, labels=["namespace"])
            for (namespace, kind), count in self._service.tokens.items():
                if kind == which:
                    counter.add_metric([namespace], count)
            yield counter

    def _tenants(self) -> Iterator[Metric]:
        service = self._service
        stored = GaugeMetricFamily("mooncask_tenant_stored_bytes", "Payload bytes stored.", labels=["tenant"])
        reserved = GaugeMetricFamily("mooncask_tenant_reserved_bytes", "Bytes in open reservations.", labels=["tenant"])
        quota = GaugeMetricFamily("mooncask_tenant_quota_bytes", "The quota, where there is one.", labels=["tenant"])
        refused = CounterMetricFamily("mooncask_tenant_quota_refusals", "Reserves above it.", labels=["tenant"])
        configured = service.config.tenants
        for tenant in sorted({*configured, *(n.spec.tenant for n in service.store.namespaces())}):
            stored.add_metric([tenant], service.door.stored_bytes(tenant))
            reserved.add_metric([tenant], service.reserved_bytes(tenant))
            if tenant in configured and configured[tenant].quota:
                quota.add_metric([tenant], configured[tenant].quota)
                refused.add_metric([tenant], service.quota_refusals[tenant])
        yield from (stored, reserved, quota, refused)

    def _local(self) -> Iterator[Metric]:
        plane = self._plane
        connections = sum(len(process.sessions) for process in plane.processes)
        parked = sum(writing.extent.length for process in plane.processes for writing in process.parked.values())
        yield GaugeMetricFamily("mooncask_local_connections", "Connections to the socket.", connections)
        yield GaugeMetricFamily(
            "mooncask_local_processes", "Processes that are connected or hold something.", len(plane.processes)
        )
        yield GaugeMetricFamily("mooncask_leases", "Leases of local processes.", len(plane.leases))
        yield GaugeMetricFamily(
            "mooncask_parked_bytes", "Bytes kept for processes that were cut off.", plane.leases.parked_bytes() + parked
        )
        arrivals = self._service.arrivals
        yield GaugeMetricFamily("mooncask_arrivals", "Keys that somebody is putting.", len(arrivals))
        yield GaugeMetricFamily("mooncask_arrival_waits", "Gets that wait for such a key.", arrivals.waiting)

    def _what_if(self) -> Iterator[Metric]:
        """Of the ghost caches; what is not known yet is left out."""
        what_ifs = self._service.what_ifs
        if what_ifs is None:
            return
        text = "Hit rate there would be with other memory or another policy."
        ratio = GaugeMetricFamily("mooncask_what_if_hit_ratio", text, labels=["what"])
        for answer in what_ifs.answers():
            if answer.hit_rate >= 0:
                ratio.add_metric([answer.name], answer.hit_rate)
        yield ratio
        yield GaugeMetricFamily(
            "mooncask_what_if_sample_ratio", "Share of blocks that is sampled for it.", what_ifs.rate
        )
        yield CounterMetricFamily("mooncask_what_if_dropped", "News that ghosts were not told of.", what_ifs.dropped)

    def _events(self) -> Iterator[Metric]:
        for name, count in sorted(all_counters(self._plane).items()):
            yield CounterMetricFamily(f"mooncask_{name}", "Counted since the start.", count)
        requests = CounterMetricFamily("mooncask_http_requests", "HTTP requests.", labels=["method", "status"])
        for (method, status), count in self._http_requests.items():
            requests.add_metric([method, str(status)], count)
        yield requests
