"""What Prometheus scrapes, gathered when it asks. Names end in their unit; hit rates are counted in tokens.

hit rate = rate(mooncask_prefix_hit_tokens_total) / rate(mooncask_prefix_requested_tokens_total)

Numbers of label values are bounded: of namespaces the NAMESPACES_SHOWN oldest have series of their own and all others are one,
"(others)"; tenants are those of the configuration; kinds, tiers, reasons, operations and methods are fixed few.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from mooncask.daemon.metric_texts import COLD_GAUGES, COUNTERS, PEER_COUNTERS, TIER_GAUGES
from mooncask.daemon.session import LocalPlane
from mooncask.daemon.status import all_counters, all_tiers, version
from mooncask.tiers.block import TierName
from mooncask.tiers.histogram import Histogram
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import TierStatus

NAMESPACES_SHOWN = 500
OTHERS = "(others)"


class Metrics:
    """A registry of the daemon's own: nothing that another library registers shows up in it."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, plane: LocalPlane, http_requests: Mapping[tuple[str, int], int]) -> None:
        self._collector = _DaemonCollector(plane, http_requests)
        self._process = ProcessCollector(registry=None)

    def gather(self) -> "Gathered":
        """All values as they are now: the part that must run in the event loop's thread."""
        return Gathered([*self._collector.collect(), *self._process.collect()])


class Gathered(Collector):
    """Metrics at one moment. `text` may run in another thread: with many namespaces it takes tens of milliseconds."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics

    def describe(self) -> list[Metric]:
        """Nothing beforehand: registering must not ask for values."""
        return []

    def text(self) -> bytes:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


class _DaemonCollector:
    def __init__(self, plane: LocalPlane, http_requests: Mapping[tuple[str, int], int]) -> None:
        self._plane = plane
        self._service = plane.service
        self._insight = plane.insight
        self._http_requests = http_requests

    def collect(self) -> Iterator[Metric]:
        info = GaugeMetricFamily("mooncask_build_info", "1, with the version as a label.", labels=["version"])
        info.add_metric([version()], 1)
        yield info
        yield GaugeMetricFamily("mooncask_ready", "Whether requests are served.", float(self._service.ready))
        yield from self._tiers()
        yield from self._namespaces()
        yield from self._tenants()
        yield from self._local()
        yield from self._queues()
        yield from self._flows()
        yield from self._latencies()
        yield from self._what_if()
        yield from self._peers()
        yield from self._cold()
        yield from self._events()

    # --- what is here ---

    def _tiers(self) -> Iterator[Metric]:
        tiers = all_tiers(self._service)
        for name, text in TIER_GAUGES.items():
            yield _by_tier(f"mooncask_tier_{name}", text, tiers, {tier.name: getattr(tier, name) for tier in tiers})
        healthy = {tier.name: float(not tier.state.startswith("degraded")) for tier in tiers}
        yield _by_tier("mooncask_tier_healthy", "0 = the tier is degraded and takes no writes.", tiers, healthy)

    def _namespaces(self) -> Iterator[Metric]:
        labels = ["namespace", "tenant", "kind", "mode"]
        blocks = GaugeMetricFamily("mooncask_namespace_blocks", "Blocks in the namespace.", labels=labels)
        size = GaugeMetricFamily("mooncask_namespace_bytes", "Payload bytes in the namespace.", labels=labels)
        ordered = sorted(self._service.store.namespaces(), key=lambda namespace: namespace.id)
        shown, others = ordered[:NAMESPACES_SHOWN], ordered[NAMESPACES_SHOWN:]
        for namespace in shown:
            spec = namespace.spec
            values = [spec.name, spec.tenant, spec.kind, spec.mode.value]
            blocks.add_metric(values, namespace.blocks)
            size.add_metric(values, namespace.stored_bytes)
        if others:
            blocks.add_metric([OTHERS, "", "", ""], sum(namespace.blocks for namespace in others))
            size.add_metric([OTHERS, "", "", ""], sum(namespace.stored_bytes for namespace in others))
        yield from (blocks, size)
        yield from self._tokens({namespace.spec.name for namespace in shown})

    def _tokens(self, shown: set[str]) -> Iterator[Metric]:
        texts = (
            ("requested", "Tokens of prefixes that matches asked for."),
            ("hit", "Tokens of those prefixes that were here without a gap from their beginning."),
        )
        for which, text in texts:
            sums: Counter[str] = Counter()
            for (namespace, kind), count in self._service.tokens.items():
                if kind == which:
                    sums[namespace if namespace in shown else OTHERS] += count
            counter = CounterMetricFamily(f"mooncask_prefix_{which}_tokens", text, labels=["namespace"])
            for namespace, count in sums.items():
                counter.add_metric([namespace], count)
            yield counter
        text = "Hit tokens by the tier that had them when they were matched: dram stands for all memory, peer for other nodes."
        tiers = CounterMetricFamily("mooncask_prefix_hit_tier_tokens", text, labels=["tier"])
        for tier, count in self._insight.traffic.tier_tokens.items():
            tiers.add_metric([tier], count)
        yield tiers
        text = (
            "Blocks that were here and that engines computed, since loading them from the tier would have taken longer."
        )
        recomputed = CounterMetricFamily("mooncask_recomputed_blocks", text, labels=["tier"])
        for tier, count in self._insight.recomputed.blocks.items():
            recomputed.add_metric([tier], count)
        yield recomputed

    def _tenants(self) -> Iterator[Metric]:
        service, labels = self._service, ["tenant"]
        stored = GaugeMetricFamily("mooncask_tenant_stored_bytes", "Payload bytes stored.", labels=labels)
        reserved = GaugeMetricFamily("mooncask_tenant_reserved_bytes", "Bytes in open reservations.", labels=labels)
        quota = GaugeMetricFamily("mooncask_tenant_quota_bytes", "The quota, where there is one.", labels=labels)
        refused = CounterMetricFamily("mooncask_tenant_quota_refusals", "Reserves above the quota.", labels=labels)
        configured = service.config.tenants
        held = _stored_bytes(service.store.namespaces())
        for tenant in sorted({*configured, *held}):
            stored.add_metric([tenant], held[tenant])
            reserved.add_metric([tenant], service.reserved_bytes(tenant))
            if tenant in configured and configured[tenant].quota:
                quota.add_metric([tenant], configured[tenant].quota)
                refused.add_metric([tenant], service.quota_refusals[tenant])
        yield from (stored, reserved, quota, refused)

    # --- who is here ---

    def _local(self) -> Iterator[Metric]:
        plane = self._plane
        connections = sum(len(process.sessions) for process in plane.processes)
        parked = sum(writing.extent.length for process in plane.processes for writing in process.parked.values())
        for name, text, value in (
            ("local_connections", "Connections to the socket.", connections),
            ("local_processes", "Processes that are connected or hold something.", len(plane.processes)),
            ("leases", "Leases of local processes.", len(plane.leases)),
            (
                "parked_bytes",
                "Bytes kept for processes that were cut off, until they release them or end.",
                plane.leases.parked_bytes() + parked,
            ),
        ):
            yield GaugeMetricFamily(f"mooncask_{name}", text, value)

    def _queues(self) -> Iterator[Metric]:
        status, arrivals = self._service.store.status(), self._service.arrivals
        for name, text, value in (
            ("dirty_bytes", "Published bytes that wait for NVMe.", status.dirty_bytes),
            ("room_waiters", "Requests that wait for DRAM.", status.waiting_for_room),
            ("loads", "Blocks that are being brought into DRAM for acquires.", len(self._service.loads)),
            ("arrivals", "Keys that somebody is putting or has announced.", len(arrivals)),
            ("arrival_waits", "Gets that wait for such a key.", arrivals.waiting),
        ):
            yield GaugeMetricFamily(f"mooncask_{name}", text, value)

    # --- what happens ---

    def _flows(self) -> Iterator[Metric]:
        sums = self._insight.flow_sums()
        text = "that went this way: put, hit, miss, promote, demote, load, write, evict; tier: where to, from or found."
        for what, unit in (("Blocks", "blocks"), ("Bytes", "bytes")):
            counter = CounterMetricFamily(f"mooncask_flow_{unit}", f"{what} {text}", labels=["kind", "tier"])
            for (kind, way), count in sums.items():
                if kind == unit:
                    counter.add_metric([way.kind, way.tier], count)
            yield counter
        left = CounterMetricFamily(
            "mooncask_departures", "Blocks that left the node, by reason and last tier.", labels=["reason", "tier"]
        )
        for (reason, tier), count in self._service.store.departures.by_reason.items():
            left.add_metric([reason, TierName(tier).name.lower() if tier else ""], count)
        yield left

    def _latencies(self) -> Iterator[Metric]:
        latencies, timings = self._insight.latencies, self._service.store.timings
        yield _histograms(
            "mooncask_request_duration_seconds",
            "From when a request of the socket is taken up until its last answer is on its way.",
            latencies.local,
        )
        yield _histograms(
            "mooncask_http_request_duration_seconds",
            "From an HTTP request's headers until its handler is done, by S3 operation.",
            latencies.http,
        )
        yield _histograms(
            "mooncask_nvme_operation_duration_seconds",
            "Reads of a block, checked, and durable writes of one.",
            {"read": timings.nvme_read, "write": timings.nvme_write},
        )

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

    def _peers(self) -> Iterator[Metric]:
        """Nothing for a node that is alone. Peers are bounded (`PeerLedger`)."""
        cluster = self._service.cluster
        if cluster is None:
            return
        up = GaugeMetricFamily("mooncask_directory_up", "0 = the directory does not answer.")
        up.add_metric([], float(cluster.directory.state == "ok"))
        yield up
        replicas = self._service.store.replicas
        yield GaugeMetricFamily(
            "mooncask_replica_blocks", "Blocks that other nodes are thought to have too.", len(replicas)
        )
        yield GaugeMetricFamily("mooncask_spare_blocks", "Of these, those that may leave first.", replicas.spares)
        linked = GaugeMetricFamily("mooncask_peer_linked", "Whether there is a link to the node.", labels=["peer"])
        received = CounterMetricFamily(
            "mooncask_peer_received_bytes", "Bytes of blocks that came from the node.", labels=["peer"]
        )
        for state in cluster.endpoint.pool.states():
            name = state.name or state.address
            linked.add_metric([name], float(state.connected))
            received.add_metric([name], state.load.bytes_received)
        yield from (linked, received)
        for field, text in PEER_COUNTERS.items():
            counter = CounterMetricFamily(f"mooncask_peer_{field}", text, labels=["peer"])
            for figures in cluster.ledger.all():
                counter.add_metric([figures.name], getattr(figures, field))
            yield counter

    def _cold(self) -> Iterator[Metric]:
        if self._service.cold is not None:
            for name, value in self._service.cold.gauges().items():
                yield GaugeMetricFamily(f"mooncask_cold_{name}", COLD_GAUGES[name], value)

    def _events(self) -> Iterator[Metric]:
        """Also those that have not happened yet: an alert on the growth of a counter needs its 0."""
        counted = {**dict.fromkeys(COUNTERS, 0), **all_counters(self._plane)}
        for name, count in sorted(counted.items()):
            if name.removeprefix("peer_") in PEER_COUNTERS and name.startswith("peer_"):
                continue  # the same metric by peer is above; twice in one page is no valid one, and a sum counted double
            text = COUNTERS.get(name, f"How often: {name.replace('_', ' ')}.")
            yield CounterMetricFamily(f"mooncask_{name}", text, count)
        text = "Look-ups that insight and ghost caches were not told of, since too many came at once."
        yield CounterMetricFamily("mooncask_lookups_unobserved", text, self._service.lookups.dropped)
        requests = CounterMetricFamily("mooncask_http_requests", "Answers over HTTP.", labels=["method", "status"])
        for (method, status), count in self._http_requests.items():
            requests.add_metric([method, str(status)], count)
        yield requests


def _by_tier(name: str, text: str, tiers: Iterable[TierStatus], values: Mapping[TierName, float]) -> Metric:
    gauge = GaugeMetricFamily(name, text, labels=["tier"])
    for tier in tiers:
        gauge.add_metric([tier.name.name.lower()], values[tier.name])
    return gauge


def _stored_bytes(namespaces: Iterable[Namespace]) -> Counter[str]:
    """By tenant."""
    found: Counter[str] = Counter()
    for namespace in namespaces:
        found[namespace.spec.tenant] += namespace.stored_bytes
    return found


def _histograms(name: str, text: str, by_operation: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=["operation"])
    for operation, histogram in by_operation.items():
        buckets, below = [], 0
        for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound == float("inf") else f"{bound:g}", below))
        family.add_metric([operation], buckets=buckets, sum_value=histogram.sum_seconds)
    return family
