"""Push: this node asks another one to pull blocks from here. What comes of an `offer` is decided by the one that gets it.

The asker sends which blocks, and what their namespace is; the other opens that, and pulls with the same machinery as after a miss,
so that bytes are checked, room and quotas are kept, and a block that is on its way already comes once. What makes a push worth
it by itself is decided in `hot.py`.
"""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from mooncask.client import control
from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.directory.have import KEY_BYTES_MAX, decoded
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.remote import Remote
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.peers.specs import Spec, Specs
from mooncask.daemon.transport.transport import PeerInfo
from mooncask.errors import BadRequest, Busy, MooncaskError
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

OFFER = "offer"
OFFER_KEYS_MAX = 512
OFFER_BYTES_MAX = 64 << 20
"""One block may be larger."""
OFFER_SECONDS_MAX = 600.0
"""As long as a person may wait for a replication."""
OFFERS_AT_ONCE = 4
"""Of all nodes together: a node that is given much goes on serving."""
OFFERS_WAITING = 16
PUSHES_AT_ONCE = 4
PUSHES_WAITING = 64
ANSWER_SECONDS = 0.2
"""The other's time for the pull is so much shorter than the asker's for the answer."""
NODES_SECONDS = 1.0


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """Blocks that the asker has. `holders_max`: pull only what fewer nodes have; 0 = in any case."""

    ns_id: bytes
    spec: Spec
    keys: list[bytes]
    seconds: float
    holders_max: int = 0


class Taken(msgspec.Struct, frozen=True, array_like=True):
    """What became of an Offer: `here` were there already, `pulled` came, the others were `refused`, for the `reason`."""

    here: int
    pulled: int
    pulled_bytes: int
    refused: int
    reason: str = ""


@dataclass(slots=True)
class _Sum:
    here: int = 0
    pulled: int = 0
    pulled_bytes: int = 0
    refused: int = 0
    reason: str = ""

    def add(self, taken: Taken) -> None:
        self.here += taken.here
        self.pulled += taken.pulled
        self.pulled_bytes += taken.pulled_bytes
        self.refused += taken.refused
        self.reason = taken.reason or self.reason


class Replication:
    """Both ends of it, of one daemon. Everything belongs to the event loop's thread."""

    def __init__(self, ways: Ways, shared: SharedNamespaces, specs: Specs, remote: Remote) -> None:
        self._ways = ways
        self._service = ways.service
        self._shared = shared
        self._specs = specs
        self._remote = remote
        self._taking = asyncio.Semaphore(OFFERS_AT_ONCE)
        self._pushing = asyncio.Semaphore(PUSHES_AT_ONCE)
        self._offers = self._pushes = 0

    # --- giving ---

    async def push(
        self, namespace: Namespace, keys: Sequence[bytes], to: str, deadline: float, holders_max: int = 0
    ) -> control.Replicated:
        """Blocks of this node to the node called `to` (or at that host:port). Returns when it has them, has refused them, or at the
        deadline. Raises BadRequest for a namespace of objects and an unknown node, Busy."""
        ns_id = self._shared.id_of(namespace)
        if not ns_id:
            raise BadRequest(f"namespace {namespace.spec.name} holds objects: those stay on their node")
        if self._pushes >= PUSHES_WAITING:
            raise Busy(f"{PUSHES_WAITING} replications are under way from here")
        wanted = list(dict.fromkeys(keys))
        here = [key for key in wanted if self._service.store.has(namespace, key)]
        node, sums = await self._node(to, deadline), _Sum()
        self._pushes += 1
        try:
            async with asyncio.timeout_at(deadline), self._pushing:
                for some in self._slices(namespace, here):
                    await self._offer(namespace, ns_id, some, node, deadline, holders_max, sums)
        except TimeoutError:
            sums.reason = "it took too long"
        finally:
            self._pushes -= 1
        late = len(here) - sums.here - sums.pulled - sums.refused
        self._service.counters["replications_refused"] += late
        return control.Replicated(
            node=node.name,
            blocks=len(wanted),
            missing=len(wanted) - len(here),
            there=sums.here,
            copied=sums.pulled,
            copied_bytes=sums.pulled_bytes,
            refused=sums.refused + late,
            reason=sums.reason,
        )

    async def _node(self, to: str, deadline: float) -> NodeRecord:
        nodes = await self._ways.directory.nodes(min(deadline, time.monotonic() + NODES_SECONDS))
        for node in nodes:
            if to in (node.name, node.address):
                return node
        if to == self._service.config.node.name:
            raise BadRequest(f'"{to}" is this node itself')
        known = ", ".join(sorted(node.name for node in nodes)) or "none"
        raise BadRequest(f'no node "{to[:80]}" is known here now; known are: {known}')

    def _slices(self, namespace: Namespace, keys: Sequence[bytes]) -> Iterator[list[bytes]]:
        """In order, each as much as one Offer may have."""
        some: list[bytes] = []
        size = 0
        for key in keys:
            slot = namespace.index.get(key)
            more = self._service.store.catalogue.size[slot] if slot is not None else 0
            if some and (len(some) >= OFFER_KEYS_MAX or size + more > OFFER_BYTES_MAX):
                yield some
                some, size = [], 0
            some.append(key)
            size += more
        if some:
            yield some

    async def _offer(
        self,
        namespace: Namespace,
        ns_id: bytes,
        keys: list[bytes],
        node: NodeRecord,
        deadline: float,
        holders_max: int,
        sums: _Sum,
    ) -> None:
        """What the other refuses as a whole is a reason, and the rest is tried all the same."""
        counters = self._service.counters
        counters["replications_asked"] += len(keys)
        seconds = max(0.0, deadline - time.monotonic() - ANSWER_SECONDS)
        offer = Offer(ns_id, Spec.of(namespace), keys, seconds, holders_max)
        try:
            link = await self._ways.pool.link(node.address, deadline, node.incarnation)
            taken = decoded(await link.ask(OFFER, msgspec.msgpack.encode(offer), deadline), Taken)
        except MooncaskError as error:
            taken = Taken(0, 0, 0, len(keys), error.message)
        counters["replications_done"] += taken.pulled
        counters["replications_refused"] += taken.refused
        self._ways.ledger.of(node.name).pushed(taken.pulled, taken.pulled_bytes)
        if taken.here or taken.pulled:
            self._ways.spares.note(namespace, keys)
        sums.add(taken)

    # --- taking ---

    async def offered(self, peer: PeerInfo, payload: bytes) -> bytes:
        """Answers `offer`."""
        offer = decoded(payload, Offer)
        if len(offer.keys) > OFFER_KEYS_MAX or any(not 0 < len(key) <= KEY_BYTES_MAX for key in offer.keys):
            raise BadRequest(f"an offer has at most {OFFER_KEYS_MAX} keys of 1 to {KEY_BYTES_MAX} bytes")
        if self._offers >= OFFERS_AT_ONCE + OFFERS_WAITING:
            raise Busy(f"{self._offers} offers are under way here")
        deadline = time.monotonic() + min(max(0.0, offer.seconds), OFFER_SECONDS_MAX)
        self._offers += 1
        try:
            async with self._taking:
                return msgspec.msgpack.encode(await self._take(peer, offer, deadline))
        finally:
            self._offers -= 1

    async def _take(self, peer: PeerInfo, offer: Offer, deadline: float) -> Taken:
        namespace = await self._specs.open(offer.spec, offer.ns_id)
        store = self._service.store
        missing = [key for key in offer.keys if not store.has(namespace, key)]
        here = len(offer.keys) - len(missing)
        wanted, reason = missing, ""
        if offer.holders_max:
            wanted = await self._below(offer, missing, deadline)
            reason = "enough nodes have it" if len(wanted) < len(missing) else ""
        giver = NodeRecord(peer.name, peer.incarnation, peer.address)
        reason = await self._remote.bring_from(namespace, wanted, giver, deadline) or reason
        pulled = [key for key in wanted if store.has(namespace, key)]
        refused = len(missing) - len(pulled)
        size = sum(store.catalogue.size[namespace.index[key]] for key in pulled)
        self._service.counters["replicas_taken"] += len(pulled)
        return Taken(here, len(pulled), size, refused, (reason or "they did not come") if refused else "")

    async def _below(self, offer: Offer, keys: Sequence[bytes], deadline: float) -> list[bytes]:
        """Those that fewer than `holders_max` other nodes have now."""
        located = await self._ways.directory.lookup(offer.ns_id, keys, deadline)
        return [key for key, holders in zip(keys, located, strict=True) if len(holders) < offer.holders_max]
