"""This node among others, from start to stop: its endpoint, its directory, and what it tells the directory.

A daemon without cluster.listen has none of this: `Service.remote` and `Service.cluster` are None then.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from itertools import islice

from mooncask.client import control
from mooncask.daemon.config import Config
from mooncask.daemon.directory import open_directory
from mooncask.daemon.directory.directory import Directory, NodeRecord, new_incarnation
from mooncask.daemon.directory.have import HAVE
from mooncask.daemon.directory.suspects import Suspects
from mooncask.daemon.peers.following import FOLLOW
from mooncask.daemon.peers.hot import HotSpots
from mooncask.daemon.peers.ledger import PeerFigures, PeerLedger
from mooncask.daemon.peers.provider import StoreProvider
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.remote import Remote
from mooncask.daemon.peers.replicate import OFFER, Replication
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.peers.spares import Spares
from mooncask.daemon.peers.specs import SPEC, Specs
from mooncask.daemon.peers.whereabouts import WHERE, Whereabouts
from mooncask.daemon.service import Service
from mooncask.daemon.transport.endpoint import Endpoint, open_endpoint
from mooncask.daemon.transport.transport import PeerState
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

SLICE_KEYS = 512
NODES_SECONDS = 0.5
"""What a page waits for the directory's list of nodes."""


class Cluster:
    """Of one daemon; made before the doors open, closed before the store is."""

    def __init__(
        self, service: Service, endpoint: Endpoint, directory: Directory, ways: Ways, shared: SharedNamespaces
    ) -> None:
        self.endpoint = endpoint
        self.directory = directory
        self.ledger = ways.ledger
        self.remote = Remote(ways, shared)
        self.specs = Specs(ways, shared)
        self.whereabouts = Whereabouts(ways, shared)
        self.replication = Replication(ways, shared, self.specs, self.remote)
        self.hot = HotSpots(ways, shared, self.replication, service.config.cluster)
        self.spares = ways.spares
        self._service = service
        self._shared = shared

    @staticmethod
    async def open(service: Service, config: Config) -> "Cluster":
        """Listening for other nodes; blocks that come and go are announced from now on. Raises ConfigError and AddressInUse."""
        shared = SharedNamespaces(service.store)
        provider = StoreProvider(service, shared)
        endpoint = await open_endpoint(config, new_incarnation(config.node.name), provider, service.store.dram.arena)
        try:
            endpoint.server.handle(HAVE, provider.has)
            endpoint.server.handle_link(FOLLOW, provider.showing.follow)
            held = _Held(service, shared)
            directory = open_directory(config, endpoint, held.slices, held.record, service.counters)
        except BaseException:
            await endpoint.close()
            raise
        ways = Ways(service, directory, endpoint.pool, PeerLedger(), Suspects(), Spares(service, directory, shared))
        cluster = Cluster(service, endpoint, directory, ways, shared)
        cluster._serve(provider)
        service.remote = cluster.remote
        service.on_published = cluster._published
        service.store.departures.observers.append(cluster._left)
        log.info("in a cluster as %s at %s, %s directory", config.node.name, endpoint.identity.address, directory.kind)
        return cluster

    def _serve(self, provider: StoreProvider) -> None:
        """What others ask beside blocks, and what is done ahead of need."""
        self.endpoint.server.handle(OFFER, self.replication.offered)
        self.endpoint.server.handle(SPEC, self.specs.tell)
        self.endpoint.server.handle(WHERE, self.whereabouts.tell)
        provider.on_served = self._served
        self.spares.start()
        self.hot.start()

    def _served(self, namespace: Namespace, keys: Sequence[bytes]) -> None:
        self.spares.note(namespace, keys)
        self.hot.served(namespace, keys)

    async def close(self) -> None:
        """The others learn that this node goes; nothing is written into the store after this."""
        self._service.on_published = None
        self._service.store.departures.observers.remove(self._left)
        await self.hot.close()
        await self.spares.close()
        await self.remote.close()
        await self.directory.close()
        await self.endpoint.close()

    # --- what the directory is told ---

    def _published(self, namespace: Namespace, key: bytes) -> None:
        ns_id = self._shared.id_of(namespace)
        if ns_id:
            self.directory.announce(ns_id, [key])

    def _left(self, namespace_number: int, key: bytes) -> None:
        namespace = self._service.store.catalogue.registry.by_id(namespace_number)
        ns_id = self._shared.id_of(namespace) if namespace is not None else b""
        if ns_id:
            self.directory.withdraw(ns_id, [key])

    # --- for people ---

    async def page(self) -> control.Peers:
        """This node, its directory, and every other node that is known or was tried."""
        records = {node.name: node for node in await self.directory.nodes(time.monotonic() + NODES_SECONDS)}
        states = self.endpoint.pool.states()
        by_name = {state.name or state.address: state for state in states}
        for record in records.values():  # tried, but never reached: known by its address only
            state = by_name.get(record.address)
            if state is not None and not state.name:
                by_name[record.name] = by_name.pop(record.address)
        figures = {one.name: one for one in self.ledger.all()}
        names = sorted({*records, *by_name, *figures})
        identity, counters = self.endpoint.identity, self._service.counters
        return control.Peers(
            node=identity.name,
            incarnation=identity.incarnation.hex(),
            address=identity.address,
            directory=self.directory.kind,
            directory_state=self.directory.state,
            pulls=self.remote.flights,
            blocks_pulled=counters["peer_blocks_pulled"],
            bytes_pulled=counters["peer_bytes_pulled"],
            replicas=len(self._service.store.replicas),
            spares=self._service.store.replicas.spares,
            blocks_pushed=counters["replications_done"],
            pushes_refused=counters["replications_refused"],
            hot_blocks=counters["hot_blocks"],
            replicas_dropped=counters["replicas_dropped"],
            last_copies_kept=counters["last_copies_kept"],
            peers=[_view(name, records.get(name), by_name.get(name), figures.get(name)) for name in names],
        )


class _Held:
    """What this node could announce, and how it describes itself."""

    def __init__(self, service: Service, shared: SharedNamespaces) -> None:
        self._service = service
        self._shared = shared

    def slices(self) -> Iterator[tuple[bytes, Sequence[bytes]]]:
        """All blocks that others may have, some at a time, as they were when their namespace's turn came."""
        for namespace in self._service.store.namespaces():
            ns_id = self._shared.id_of(namespace)
            keys = iter(list(namespace.index)) if ns_id else iter(())
            while some := list(islice(keys, SLICE_KEYS)):
                yield ns_id, [key for key in some if self._is_told(namespace, key)]

    def _is_told(self, namespace: Namespace, key: bytes) -> bool:
        slot = namespace.index.get(key)
        return slot is not None and not self._service.store.replicas.is_spare(slot)

    def record(self, endpoint: Endpoint) -> NodeRecord:
        identity, status = endpoint.identity, self._service.store.status()
        return NodeRecord(
            identity.name,
            identity.incarnation,
            identity.address,
            ("tcp",),
            sum(tier.capacity_bytes for tier in status.tiers),
            len(self._service.loads),
            sum(tier.used_bytes for tier in status.tiers),
        )


def _view(
    name: str, record: NodeRecord | None, state: PeerState | None, figures: PeerFigures | None
) -> control.PeerView:
    known = figures or PeerFigures(name)
    load = state.load if state is not None else None
    received = load.bytes_received if load is not None else 0
    problem = (state.problem if state is not None else "") or known.last_problem
    return control.PeerView(
        name=name,
        state=_state_text(record, state),
        address=record.address if record is not None else state.address if state is not None else "",
        incarnation=_incarnation(record, state),
        transport=state.transport if state is not None else "",
        blocks_pulled=known.blocks_pulled,
        bytes_pulled=known.bytes_pulled,
        blocks_pushed=known.blocks_pushed,
        bytes_received=received,
        rate_bytes=received / load.receive_seconds if load is not None and load.receive_seconds else 0.0,
        failures=known.failures,
        not_there=known.not_there,
        wrong=known.wrong,
        leases=load.leases if load is not None else 0,
        round_trip_seconds=load.round_trip_seconds if load is not None else 0.0,
        seen_seconds=record.seen_seconds if record is not None else -1.0,
        problem=problem,
    )


def _incarnation(record: NodeRecord | None, state: PeerState | None) -> str:
    found = record.incarnation if record is not None else state.incarnation if state is not None else b""
    return found.hex()


def _state_text(record: NodeRecord | None, state: PeerState | None) -> str:
    if state is not None and state.connected:
        return "linked"
    if state is not None and state.problem:
        return "failing"
    return "known" if record is not None else "gone"
