"""Brings blocks of one namespace from other nodes into this one's store: one batch, from the look-up to the commit.

A block is taken from one holder at a time; when that one has it not, is too slow, fails or sends other bytes than its checksum
says, from the next. What comes is published as any other block is and stays as a replica. Nothing runs past the deadline.
Who wants what, and that each block is fetched once: `remote.py`.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from mooncask.client.wire import CommitState
from mooncask.daemon.directory.directory import Directory, NodeRecord
from mooncask.daemon.directory.have import HAVE, Has, Have, decoded
from mooncask.daemon.directory.suspects import Suspects
from mooncask.daemon.peers.credible import could_be
from mooncask.daemon.peers.ledger import PeerFigures, PeerLedger
from mooncask.daemon.peers.plan import choose_holders
from mooncask.daemon.peers.spares import Spares
from mooncask.daemon.service import Committing, Service, Writing
from mooncask.daemon.transport.transport import Link, LinkPool, RemoteBlock
from mooncask.errors import Busy, DeadlineExceeded, DigestMismatch, MooncaskError
from mooncask.tiers.block import printable_key
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest

log = logging.getLogger(__name__)

ROUNDS_MAX = 4
"""Holders that are tried for one block."""
LEASES_AT_ONCE = 128
LEASES_FIRST = 8
"""As long as nobody knows how large the blocks are."""
BATCHES_AT_ONCE = 2
BUSY_SECONDS = 0.01
BYTES_AT_ONCE = 16 << 20
"""Reserved, read and published together: the first blocks of a long chain are usable while the others come."""
PATIENCE_SECONDS = 0.25
"""Who had less time than this to answer is not suspected: the caller was in a hurry."""
LATE_SECONDS = 0.05
"""What ends so long after its time says that this node has much to do, and nothing about the peer."""
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
    spares: Spares


@dataclass(slots=True)
class Pull:
    """`on_here(key)` is called in the very step in which a block can be read here, also when somebody else brought it."""

    ways: Ways
    namespace: Namespace
    ns_id: bytes
    deadline: float
    on_here: Callable[[bytes], None]
    room_seconds: float = math.inf
    """What is waited for room at most."""
    problem: str = ""
    """Why something did not come: the last of the reasons."""
    _tried: dict[bytes, set[bytes]] = field(default_factory=dict)

    async def run(self, keys: Sequence[bytes]) -> None:
        """Returns when all is here that could be had. Raises nothing but cancellation and faults of this daemon."""
        located = await self.ways.directory.lookup(self.ns_id, keys, self.deadline)
        wanted = {key: holders for key, holders in zip(keys, located, strict=True) if holders}
        for _ in range(ROUNDS_MAX):
            wanted = {key: holders for key, holders in wanted.items() if not self.have(key)}
            chosen = choose_holders(wanted, self._tried, self._ranks(wanted))
            if not chosen or time.monotonic() >= self.deadline:
                return
            async with asyncio.TaskGroup() as group:
                for holder, some in chosen.items():
                    group.create_task(self._from_holder(holder, some, wanted))

    async def run_from(self, node: NodeRecord, keys: Sequence[bytes]) -> None:
        """As `run`, from one node that has said that it has them."""
        wanted = {key: [node.incarnation] for key in keys if not self.have(key)}
        if wanted:
            await self._from_node(node, list(wanted), wanted)

    def _ranks(self, wanted: dict[bytes, list[bytes]]) -> dict[bytes, float]:
        """Those that are suspected come last, and then only if nobody else has a block."""
        now, suspects = time.monotonic(), self.ways.suspects
        holders = {holder for some in wanted.values() for holder in some}
        return {holder: 1.0 for holder in holders if suspects.avoids(holder, now)}

    def have(self, key: bytes) -> bool:
        if not self.ways.service.store.has(self.namespace, key):
            return False
        self.on_here(key)
        return True

    # --- one holder ---

    async def _from_holder(self, holder: bytes, keys: list[bytes], wanted: dict[bytes, list[bytes]]) -> None:
        for key in keys:
            self._tried.setdefault(key, set()).add(holder)
        node = self.ways.directory.node(holder)
        if node is not None and not self.ways.suspects.avoids(holder, time.monotonic()):
            await self._from_node(node, keys, wanted)

    async def _from_node(self, node: NodeRecord, keys: list[bytes], wanted: dict[bytes, list[bytes]]) -> None:
        holder = node.incarnation
        for key in keys:
            self._tried.setdefault(key, set()).add(holder)
        figures = self.ways.ledger.of(node.name)
        began, deadline = time.monotonic(), self._deadline_for(keys, wanted)
        try:
            link = await self.ways.pool.link(node.address, deadline, holder)
            await _Errand(self, link, deque(keys), deadline, figures, keys_at_once(self.namespace)).run()
            self.ways.suspects.answered(holder)
        except MooncaskError as error:
            now, late = time.monotonic(), isinstance(error, DeadlineExceeded)
            self.problem = error.message
            figures.failures += 1
            figures.problem(error.message)
            is_slow = now - began > PATIENCE_SECONDS and now - deadline < LATE_SECONDS
            if not isinstance(error, Busy) and (not late or is_slow):
                self.ways.suspects.failed(holder, now)
            self.ways.service.counters["peer_failures"] += 1
            log.info("pull from %s: %s", node.name, error.message)

    def _deadline_for(self, keys: list[bytes], wanted: dict[bytes, list[bytes]]) -> float:
        """Earlier than the caller's where another node could still be asked."""
        if all(len(self._tried[key]) >= len(wanted[key]) for key in keys):
            return self.deadline
        now = time.monotonic()
        return now + (self.deadline - now) * FIRST_TRY_SHARE


@dataclass(slots=True)
class _Errand:
    """One holder is asked for these keys: a few batches are under way at a time, so that bytes come while others are checked."""

    pull: Pull
    link: Link
    keys: deque[bytes]
    deadline: float
    figures: PeerFigures
    _at_once: int
    """Keys of the next lease: as many as BYTES_AT_ONCE, by the size of those that came."""
    _error: MooncaskError | None = None

    @property
    def ways(self) -> Ways:
        return self.pull.ways

    async def run(self) -> None:
        """Raises what the link raised."""
        async with asyncio.TaskGroup() as group:
            for _ in range(BATCHES_AT_ONCE):
                group.create_task(self._work_off())
        if self._error is not None:
            raise self._error

    async def _work_off(self) -> None:
        while self.keys and self._error is None:
            some = [self.keys.popleft() for _ in range(min(self._at_once, len(self.keys)))]
            try:
                await self._lease_and_read(some)
            except MooncaskError as error:
                self._error = error.with_traceback(None)

    async def _lease_and_read(self, keys: list[bytes]) -> None:
        found = await self._lease(keys)
        leased = [block for block in found if block is not None]
        try:
            missing = [key for key, block in zip(keys, found, strict=True) if block is None]
            if missing:
                await self._correct(missing)
            right = [
                block
                for key, block in zip(keys, found, strict=True)
                if block is not None and self._is_asked(key, block)
            ]
            if right:
                largest = max(block.size for block in right)
                self._at_once = max(1, min(LEASES_AT_ONCE, BYTES_AT_ONCE // largest))
            for batch in batches(right, BYTES_AT_ONCE):
                await self._read(batch)
        finally:
            self.link.release(leased)

    async def _lease(self, keys: list[bytes]) -> list[RemoteBlock | None]:
        """What the peer has no room for now is asked for again, less at a time, until the deadline."""
        while True:
            try:
                return await self.link.lease(self.pull.ns_id, keys, self.deadline)
            except Busy:
                if time.monotonic() + BUSY_SECONDS >= self.deadline:
                    raise
            half = max(1, len(keys) // 2)
            self._at_once = min(self._at_once, half)
            self.keys.extendleft(reversed(keys[half:]))
            del keys[half:]
            await asyncio.sleep(BUSY_SECONDS)

    async def _correct(self, keys: list[bytes]) -> None:
        """The directory learns what the peer has not. A block that only could not be brought up in time is still there: it is
        asked which it is."""
        answer = await self.link.ask(HAVE, msgspec.msgpack.encode(Have(self.pull.ns_id, keys)), self.deadline)
        sizes = decoded(answer, Has).sizes
        absent = [key for key, size in zip(keys, sizes, strict=False) if not size]
        if absent:
            self.figures.not_there += len(absent)
            self.ways.service.counters["peer_blocks_not_there"] += len(absent)
            self.ways.directory.not_there(self.pull.ns_id, absent, self.link.peer.incarnation)

    def _is_asked(self, key: bytes, block: RemoteBlock) -> bool:
        if block.checksum and could_be(block, key, self.ways.service.block_bytes_max):
            return True
        self._wrong(key, "is another block than was asked for")
        return False

    def _wrong(self, key: bytes, what: str) -> None:
        self.figures.wrong += 1
        self.figures.problem(f"block {printable_key(key)} {what}")
        self.ways.service.counters["peer_blocks_wrong"] += 1
        log.error("block %s from peer %s %s", printable_key(key), self.figures.name, what)

    # --- one batch ---

    async def _read(self, blocks: list[RemoteBlock]) -> None:
        """Into places of this store, then published. What does not get that far is aborted: a link writes nothing after it has
        returned or raised, so the places can be used again at once."""
        service = self.ways.service
        blocks = [block for block in blocks if not self.pull.have(block.key)]
        requests = [PutRequest(b.key, b.size, b.parent, b.depth, b.tokens) for b in blocks]
        if not requests:
            return
        places = await self._reserve(requests)
        pairs = [(block, place) for block, place in zip(blocks, places, strict=True) if place is not None]
        started = time.monotonic()
        try:
            views = [service.store.view(place.extent)[: block.size] for block, place in pairs]
            digests = await self.link.read([block for block, _ in pairs], views, self.deadline)
        except BaseException:
            for _, place in pairs:
                service.abort(place)
            raise
        seconds = time.monotonic() - started
        commits = zip(pairs, digests, strict=True)
        outcomes = await service.commit_many(
            [Committing(place, block.checksum, found=digest) for (block, place), digest in commits]
        )
        published = [block for (block, _), end in zip(pairs, outcomes, strict=True) if end is CommitState.PUBLISHED]
        size_bytes = sum(block.size for block in published)
        self.ways.spares.note(self.pull.namespace, [block.key for block in published])
        self.figures.pulled(len(published), size_bytes, seconds)
        service.counters["peer_blocks_pulled"] += len(published)
        service.counters["peer_bytes_pulled"] += size_bytes
        for (block, _), outcome in zip(pairs, outcomes, strict=True):
            if isinstance(outcome, DigestMismatch):
                self._wrong(block.key, "came with bytes unlike its checksum")
            self.pull.have(block.key)

    async def _reserve(self, requests: list[PutRequest]) -> Sequence[Writing | None]:
        """No room, or no quota left: that is a miss, and not the peer's fault."""
        try:
            deadline = min(self.deadline, time.monotonic() + self.pull.room_seconds)
            return await self.ways.service.reserve(self.pull.namespace, requests, deadline)
        except MooncaskError as error:
            self.ways.service.counters["peer_pulls_without_room"] += len(requests)
            self.pull.problem = error.message
            log.debug("no room for what a peer has: %s", error.message)
            return [None] * len(requests)


def keys_at_once(namespace: Namespace) -> int:
    """Blocks of a KV namespace are mostly of one size: what is here says what will come."""
    if not namespace.blocks:
        return LEASES_FIRST
    return max(1, min(LEASES_AT_ONCE, BYTES_AT_ONCE * namespace.blocks // max(1, namespace.stored_bytes)))


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
