"""What this node shows to others of blocks that are being written here: how far they are, and the bytes that are written.

Nothing is told unasked: who follows a block asks (`following.py`) and is answered when something has changed. A follower holds the
place that is written to, not the block: when the writer gives up, the place stays out of use until the follower lets go.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from mooncask.daemon.arrivals import NO_LAYERS, Key, Layers
from mooncask.daemon.peers.following import Coming, Followed, Following, parse_following, written_bytes
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.service import Service, Writing
from mooncask.daemon.transport.transport import Growing, Guest, HeldBlock
from mooncask.tiers.namespace import Namespace

_NO_CHECKSUM = b""


@dataclass(slots=True, eq=False)
class _Shown(Growing):
    """One writing, as a lease of another node names it."""

    writing: Writing | None = None


@dataclass(frozen=True, slots=True)
class _LeaseState:
    state: Coming
    layers: Layers = NO_LAYERS
    checksum: bytes = _NO_CHECKSUM


_NOBODY = _LeaseState(Coming.NOBODY)


class Showing:
    """Of one daemon. Everything belongs to the event loop's thread."""

    def __init__(self, service: Service, shared: SharedNamespaces) -> None:
        self._service = service
        self._store = service.store
        self._shared = shared

    # --- places ---

    def hold(self, ns_id: bytes, keys: Sequence[bytes]) -> list[HeldBlock | None]:
        """See `BlockProvider.hold_writing`."""
        namespace = self._shared.find(ns_id)
        if namespace is None:
            return [None] * len(keys)
        return [self._held(self._writing(Key(namespace.id, key))) for key in keys]

    def _held(self, writing: Writing | None) -> HeldBlock | None:
        if writing is None:
            return None
        extent, request = self._store.hold_reserved(writing.reservation), writing.reservation.request
        payload = self._store.view(extent)[: request.size]
        shown = _Shown(0, writing)
        return HeldBlock(
            request.key,
            extent,
            payload,
            _NO_CHECKSUM,
            request.parent,
            request.depth,
            request.tokens,
            growing=shown,
        )

    def _writing(self, name: Key) -> Writing | None:
        """Of those who write the block the one that is furthest. What comes from another node is followed there."""
        producers = self._service.arrivals.producers(name)
        own = [one for one in producers if isinstance(one, Writing) and not one.from_afar and one.reservation.open]
        return max(own, key=lambda writing: producers[writing].done, default=None)

    # --- questions ---

    async def follow(self, link: Guest, payload: bytes) -> bytes:
        """Answers `FOLLOW`: at once if there is news, else when there is."""
        asked = parse_following(payload)
        namespace = self._shared.find(asked.ns_id)
        held = [link.held(number) for number in asked.leases]
        shown = [one.growing if one is not None and isinstance(one.growing, _Shown) else None for one in held]
        while True:
            answer = self._answer(namespace, asked, shown)
            if _is_news(asked, answer):
                return msgspec.msgpack.encode(answer)
            names = {Key(namespace.id, key) for key in asked.keys} if namespace is not None else set[Key]()
            names |= {one.writing.key for one in shown if one is not None and one.writing is not None}
            await self._service.watches.change(names)

    def _answer(self, namespace: Namespace | None, asked: Following, shown: Sequence[_Shown | None]) -> Followed:
        writings = [None if namespace is None else self._writing(Key(namespace.id, key)) for key in asked.keys]
        states = [self._state(namespace, key, one) for key, one in zip(asked.keys, writings, strict=True)]
        leases = [self._lease_state(one) for one in shown]
        return Followed(
            bytes(states),
            [0 if one is None else one.layers for one in writings],
            bytes(one.state for one in leases),
            [one.layers.done for one in leases],
            [one.layers.total for one in leases],
            [one.checksum for one in leases],
        )

    def _state(self, namespace: Namespace | None, key: bytes, writing: Writing | None) -> Coming:
        if namespace is None:
            return Coming.NOBODY
        if self._store.has(namespace, key):
            return Coming.HERE
        if writing is not None:
            return Coming.WRITING
        return Coming.EXPECTED if self._service.arrivals.is_promised(Key(namespace.id, key)) else Coming.NOBODY

    def _lease_state(self, shown: _Shown | None) -> _LeaseState:
        """And `shown` says from now on how much of it may be read."""
        if shown is None or shown.writing is None:
            return _NOBODY
        writing, request = shown.writing, shown.writing.reservation.request
        if not writing.reservation.open:
            checksum = self._published(writing)
            if not checksum:
                return _NOBODY
            shown.written = request.size
            return _LeaseState(Coming.HERE, Layers(writing.layers, writing.layers), checksum)
        layers = self._service.arrivals.producers(writing.key).get(writing)
        if layers is None:
            return _NOBODY  # its writer is cut off
        if writing.staging_offset >= 0:  # its bytes come into the place when it is committed
            layers = Layers(0, layers.total)
        shown.written = written_bytes(request.size, *layers)
        return _LeaseState(Coming.WRITING, layers)

    def _published(self, writing: Writing) -> bytes:
        """The checksum, if this very place has become the block; empty if not, or if it has left again."""
        namespace, catalogue = writing.reservation.namespace, self._store.catalogue
        slot = namespace.index.get(writing.reservation.request.key)
        if slot is None or catalogue.dram.get(slot) is not writing.extent:
            return b""
        return catalogue.checksum(slot)


def _is_news(asked: Following, answer: Followed) -> bool:
    if answer.states != asked.states:
        return True
    pairs = zip(answer.lease_states, answer.done, asked.layers, strict=True)
    return any(state != Coming.WRITING or done > known for state, done, known in pairs)
