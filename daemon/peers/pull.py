"""Brings blocks of one namespace from other nodes into this one's store: one batch, from the look-up to the commit.

A block is taken from one holder at a time; when that one has it not, is too slow, fails or sends other bytes than its checksum
says, from the next. What comes is published as any other block is and stays as a replica. Nothing runs past the deadline.
Who wants what, and that each block is fetched once: `remote.py`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from mooncask.client.wire import CommitState
from mooncask.daemon.directory.directory import Directory
from mooncask.daemon.directory.have import HAVE, Has, Have, decoded
from mooncask.daemon.directory.suspects import Suspects
from mooncask.daemon.peers.ledger import PeerFigures, PeerLedger
from mooncask.daemon.peers.plan import choose_holders
from mooncask.daemon.service import Committing, Service, Writing
from mooncask.daemon.transport.transport import Link, LinkPool, RemoteBlock
from mooncask.errors import DeadlineExceeded, DigestMismatch, MooncaskError
from mooncask.tiers.block import printable_key
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest

log = logging.getLogger(__name__)

ROUNDS_MAX = 4
"""Holders that are tried for one block."""
LEASES_AT_ONCE = 128
BYTES_AT_ONCE = 16 << 20
"""Reserved, read and published together: the first blocks of a long chain are usable while the others come."""
PATIENCE_SECONDS = 0.25
"""Who had less time than this to answer is not suspected: the caller was in a hurry."""
FIRST_TRY_SHARE = 0.5
"""Of the time that is left, for a holder that is not the last one who has the block."""


@dataclass(slots=True)
class Ways:
    """What a pull works with."""

    service: Service
    directory: Directory
    pool: LinkPool
    ledger: PeerLedger
    suspects: Suspects


@dataclass(slots=True)
class Pull:
    """`on_here(key)` is called in the very step in which a block can be read here, also when somebody else brought it."""

    ways: Ways
    namespace: Namespace
    ns_id: bytes
    deadline: float
    on_here: Callable[[bytes], None]
    _tried: dict[bytes, set[bytes]] = field(default_factory=dict)

    async def run(self, keys: Sequence[bytes]) -> None:
        """Returns when all is here that could be had. Raises nothing but cancellation and faults of this daemon."""
        located = await self.ways.directory.lookup(self.ns_id, keys, self.deadline)
        wanted = {key: holders for key, holders in zip(keys, located, strict=True) if holders}
        for _ in range(ROUNDS_MAX):
            wanted = {key: holders for key, holders in wanted.items() if not self._have(key)}
            chosen = choose_holders(wanted, self._tried, self._ranks(wanted))
            if not chosen or time.monotonic() >= self.deadline:
                return
            async with asyncio.TaskGroup() as group:
                for holder, some in chosen.items():
                    group.create_task(self._from_holder(holder, some, wanted))

    def _ranks(self, wanted: dict[bytes, list[bytes]]) -> dict[bytes, float]:
        """Those that are suspected come last, and then only if nobody else has a block."""
        now, suspects = time.monotonic(), self.ways.suspects
        holders = {holder for some in wanted.values() for holder in some}
        return {holder: 1.0 for holder in holders if suspects.avoids(holder, now)}

    def _have(self, key: bytes) -> bool:
        if not self.ways.service.store.has(self.namespace, key):
            return False
        self.on_here(key)
        return True

    # --- one holder ---

    async def _from_holder(self, holder: bytes, keys: list[bytes], wanted: dict[bytes, list[bytes]]) -> None:
        for key in keys:
            self._tried.setdefault(key, set()).add(holder)
        node = self.ways.directory.node(holder)
        if node is None or self.ways.suspects.avoids(holder, time.monotonic()):
            return
        figures = self.ways.ledger.of(node.name)
        began, deadline = time.monotonic(), self._deadline_for(keys, wanted)
        try:
            link = await self.ways.pool.link(node.address, deadline, holder)
            for first in range(0, len(keys), LEASES_AT_ONCE):
                await self._lease_and_read(link, keys[first : first + LEASES_AT_ONCE], deadline, figures)
            self.ways.suspects.answered(holder)
        except MooncaskError as error:
            figures.failures += 1
            figures.problem(error.message)
            if not isinstance(error, DeadlineExceeded) or time.monotonic() - began > PATIENCE_SECONDS:
                self.ways.suspects.failed(holder, time.monotonic())
            self.ways.service.counters["peer_failures"] += 1
            log.info("pull from %s: %s", node.name, error.message)

    def _deadline_for(self, keys: list[bytes], wanted: dict[bytes, list[bytes]]) -> float:
        """Earlier than the caller's where another node could still be asked."""
        if all(len(self._tried[key]) >= len(wanted[key]) for key in keys):
            return self.deadline
        now = time.monotonic()
        return now + (self.deadline - now) * FIRST_TRY_SHARE

    async def _lease_and_read(self, link: Link, keys: list[bytes], deadline: float, figures: PeerFigures) -> None:
        found = await link.lease(self.ns_id, keys, deadline)
        leased = [block for block in found if block is not None]
        try:
            missing = [key for key, block in zip(keys, found, strict=True) if block is None]
            if missing:
                await self._correct(link, missing, deadline, figures)
            right = [
                block
                for key, block in zip(keys, found, strict=True)
                if block is not None and self._is_asked(key, block, figures)
            ]
            for batch in batches(right, BYTES_AT_ONCE):
                await self._read(link, batch, deadline, figures)
        finally:
            link.release(leased)

    async def _correct(self, link: Link, keys: list[bytes], deadline: float, figures: PeerFigures) -> None:
        """The directory learns what the peer has not. A block that only could not be brought up in time is still there: it is
        asked which it is."""
        answer = await link.ask(HAVE, msgspec.msgpack.encode(Have(self.ns_id, keys)), deadline)
        sizes = decoded(answer, Has).sizes
        absent = [key for key, size in zip(keys, sizes, strict=False) if not size]
        if absent:
            figures.not_there += len(absent)
            self.ways.service.counters["peer_blocks_not_there"] += len(absent)
            self.ways.directory.not_there(self.ns_id, absent, link.peer.incarnation)

    def _is_asked(self, key: bytes, block: RemoteBlock, figures: PeerFigures) -> bool:
        """A peer may say anything: what could not be a block of this namespace is none."""
        if block.key == key and 0 < block.size <= self.ways.service.block_bytes_max and len(block.checksum) == 16:
            return True
        self._wrong(key, figures, "is another block than was asked for")
        return False

    def _wrong(self, key: bytes, figures: PeerFigures, what: str) -> None:
        figures.wrong += 1
        figures.problem(f"block {printable_key(key)} {what}")
        self.ways.service.counters["peer_blocks_wrong"] += 1
        log.error("block %s from peer %s %s", printable_key(key), figures.name, what)

    # --- one batch ---

    async def _read(self, link: Link, blocks: list[RemoteBlock], deadline: float, figures: PeerFigures) -> None:
        """Into places of this store, then published. What does not get that far is aborted: a link writes nothing after it has
        returned or raised, so the places can be used again at once."""
        service = self.ways.service
        blocks = [block for block in blocks if not self._have(block.key)]
        requests = [PutRequest(b.key, b.size, b.parent, b.depth, b.tokens) for b in blocks]
        if not requests:
            return
        places = await self._reserve(requests, deadline)
        pairs = [(block, place) for block, place in zip(blocks, places, strict=True) if place is not None]
        started = time.monotonic()
        try:
            views = [service.store.view(place.extent)[: block.size] for block, place in pairs]
            await link.read([block for block, _ in pairs], views, deadline)
        except BaseException:
            for _, place in pairs:
                service.abort(place)
            raise
        seconds = time.monotonic() - started
        outcomes = await service.commit_many([Committing(place, block.checksum) for block, place in pairs])
        published = [block for (block, _), end in zip(pairs, outcomes, strict=True) if end is CommitState.PUBLISHED]
        size_bytes = sum(block.size for block in published)
        figures.pulled(len(published), size_bytes, seconds)
        service.counters["peer_blocks_pulled"] += len(published)
        service.counters["peer_bytes_pulled"] += size_bytes
        for (block, _), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, DigestMismatch):
                self._wrong(block.key, figures, "came with bytes unlike its checksum")
            self._have(block.key)

    async def _reserve(self, requests: list[PutRequest], deadline: float) -> "Sequence[Writing | None]":
        """No room, or no quota left: that is a miss, and not the peer's fault."""
        try:
            return await self.ways.service.reserve(self.namespace, requests, deadline)
        except MooncaskError as error:
            self.ways.service.counters["peer_pulls_without_room"] += len(requests)
            log.debug("no room for what a peer has: %s", error.message)
            return [None] * len(requests)


def batches(blocks: Sequence[RemoteBlock], bytes_max: int) -> list[list[RemoteBlock]]:
    """In order; each up to `bytes_max`, or one block that is larger."""
    found: list[list[RemoteBlock]] = []
    size = 0
    for block in blocks:
        if not found or size + block.size > bytes_max:
            found.append([])
            size = 0
        found[-1].append(block)
        size += block.size
    return found
