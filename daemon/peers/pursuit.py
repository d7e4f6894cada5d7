"""Follows blocks at one other node while they are being written there: what is written comes at once, the rest after the commit.

    asked for ──(WRITING)──> leased there, a place here ──(layers)──> provisional ──(HERE: the tail, the checksum)──> published
        │ (HERE)                                             └──(NOBODY, the link's end, the deadline)──> discarded
        └──> pulled as any other block (`pull.py`), also when the bytes that came early are not those of the checksum

A provisional block is nobody's but the pursuit's: readers here wait for it as for one that is written at this node, and hear
of its layers. Who wants what, and at which node: `progressive.py`.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
import xxhash

from mooncask.client.wire import CommitState
from mooncask.daemon.peers.credible import could_be
from mooncask.daemon.peers.following import (
    FOLLOW,
    TELL_NOW,
    Coming,
    Followed,
    Following,
    parse_followed,
    written_bytes,
)
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.service import Committing, Writing
from mooncask.daemon.transport.transport import Link, RemoteBlock
from mooncask.errors import Busy, DeadlineExceeded, DigestMismatch, MooncaskError
from mooncask.tiers.block import printable_key
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest

log = logging.getLogger(__name__)

ROOM_SECONDS = 1.0
"""What places for blocks that are being written may wait for room; without one they are pulled when they are there."""
COMMITS_AT_A_TIME = 32
"""As for the commits of local writers."""


@dataclass(slots=True, eq=False)
class Flight:
    """A block that is followed. It is itself a producer in `Arrivals`: who waits for the block waits for it."""

    key: bytes
    deadline: float
    ends_at_most: float
    found: "asyncio.Future[bool]"
    """Whether somebody elsewhere is putting it."""

    def extend(self, deadline: float) -> None:
        self.deadline = max(self.deadline, min(deadline, self.ends_at_most))


@dataclass(slots=True, eq=False)
class _Provisional:
    """One writing at the other node, and where its bytes go here: [0, done_bytes) have come, and `hasher` has seen them."""

    block: RemoteBlock
    place: Writing
    layers: int = 0
    done_bytes: int = 0
    hasher: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)
    """Fed as bytes come, so that the commit need not read them all."""

    @property
    def key(self) -> bytes:
        return self.block.key


@dataclass(slots=True)
class Pursuit:
    """`on_end(flight)` is called once for each flight; `bring(keys, deadline)` pulls those that are there."""

    ways: Ways
    namespace: Namespace
    ns_id: bytes
    link: Link
    on_end: Callable[[Flight], None]
    bring: Callable[[Sequence[bytes], float], Awaitable[object]]
    flights: dict[bytes, Flight] = field(default_factory=dict)
    _known: dict[bytes, int] = field(default_factory=dict)
    """Keys that are asked about by name, and what they were when they were asked about last."""
    _provisional: dict[int, _Provisional] = field(default_factory=dict)
    """By lease."""
    _pulls: "dict[bytes, asyncio.Task[None]]" = field(default_factory=dict)
    """By key."""

    def add(self, flight: Flight) -> None:
        """Before `run`."""
        self.flights[flight.key] = flight
        self._known[flight.key] = TELL_NOW

    @property
    def deadline(self) -> float:
        """Later waiters can move it."""
        return max((flight.deadline for flight in self.flights.values()), default=0.0)

    async def run(self) -> None:
        """Returns when every flight has ended. Raises nothing but cancellation and faults of this daemon."""
        try:
            while self._known or self._provisional:
                if time.monotonic() >= self.deadline:
                    return
                try:
                    await self._step()
                except DeadlineExceeded:
                    continue
        except MooncaskError as error:
            figures = self.ways.ledger.of(self.link.peer.name)
            figures.failures += 1
            figures.problem(error.message)
            self.ways.service.counters["peer_failures"] += 1
            log.info("following %d blocks at %s: %s", len(self.flights), self.link.peer.name, error.message)
        finally:
            await self._finish()

    async def _finish(self) -> None:
        """No read is under way here: a link returns or raises only when it writes no more."""
        self._discard(list(self._provisional.values()))
        for key in [key for key in self.flights if key not in self._pulls]:
            self._end(key)
        pulls = set(self._pulls.values())
        try:
            if pulls:
                await asyncio.wait(pulls)
        finally:
            for pull in pulls:
                pull.cancel()

    async def _step(self) -> None:
        """One question, and what follows from its answer."""
        keys, leases = [*self._known], [*self._provisional]
        question = Following(
            self.ns_id, keys, bytes(self._known.values()), leases, [one.layers for one in self._provisional.values()]
        )
        payload = await self.link.ask(FOLLOW, msgspec.msgpack.encode(question), self.deadline)
        answer = parse_followed(payload, len(keys), len(leases))
        self._forget_those_here()
        await self._take_leases(leases, answer)
        await self._take_keys(keys, answer)

    def _forget_those_here(self) -> None:
        """Somebody else may have put them."""
        has, pulls = self.ways.service.store.has, self._pulls
        here = [key for key in self.flights if key not in pulls and has(self.namespace, key)]
        self._discard([one for one in self._provisional.values() if one.key in here])
        for key in here:
            self._end(key)

    def _end(self, key: bytes) -> None:
        self._known.pop(key, None)
        flight = self.flights.pop(key, None)
        if flight is not None:
            self.on_end(flight)

    # --- blocks that are known by name ---

    async def _take_keys(self, keys: Sequence[bytes], answer: Followed) -> None:
        writing: dict[int, list[bytes]] = {}
        here: list[bytes] = []
        for key, state, total in zip(keys, answer.states, answer.totals, strict=True):
            if key not in self._known:
                continue
            self._known[key] = state
            if state == Coming.NOBODY:
                self._end(key)
            elif state == Coming.HERE:
                here.append(key)
            elif state == Coming.WRITING:
                writing.setdefault(total, []).append(key)
        self._pull(here)
        for total, some in writing.items():
            await self._lease(some, total)

    def _pull(self, keys: Sequence[bytes]) -> None:
        if not keys:
            return
        task = asyncio.get_running_loop().create_task(self._pulled(keys, self.deadline))
        for key in keys:
            self._known.pop(key, None)
            self._pulls[key] = task

    async def _pulled(self, keys: Sequence[bytes], deadline: float) -> None:
        """The top of a task."""
        try:
            await self.bring(keys, deadline)
        except Exception:
            log.exception("a pull failed by a fault of this daemon")
        finally:
            for key in keys:
                del self._pulls[key]
                self._end(key)

    async def _lease(self, keys: Sequence[bytes], layers: int) -> None:
        """Where that is not possible the block stays known as WRITING: the next that is heard of it is how it ended."""
        try:
            found = await self.link.lease_writing(self.ns_id, keys, self.deadline)
        except Busy as error:
            log.debug("%s: %s", self.link.peer.name, error.message)
            return
        leased = [block for block in found if block is not None]
        try:
            right = [block for key, block in zip(keys, found, strict=True) if block and self._is_asked(key, block)]
            kept = await self._reserve(right, layers)
        except BaseException:
            self.link.release(leased)
            raise
        self.link.release([block for block in leased if block not in kept])

    async def _reserve(self, blocks: Sequence[RemoteBlock], layers: int) -> Sequence[RemoteBlock]:
        """Those that have a place here now."""
        service = self.ways.service
        if not blocks:
            return []
        deadline = min(self.deadline, time.monotonic() + ROOM_SECONDS)
        requests = [PutRequest(b.key, b.size, b.parent, b.depth, b.tokens) for b in blocks]
        try:
            places = await service.reserve(self.namespace, requests, deadline, layers)
        except MooncaskError as error:
            service.counters["peer_pulls_without_room"] += len(requests)
            log.debug("no room for what a peer is writing: %s", error.message)
            return []
        kept = []
        for block, place in zip(blocks, places, strict=True):
            if place is not None:
                place.from_afar = True
                self._provisional[block.lease] = _Provisional(block, place)
                self._known.pop(block.key, None)
                kept.append(block)
            else:
                self._end(block.key)
        return kept

    def _is_asked(self, key: bytes, block: RemoteBlock) -> bool:
        return could_be(block, key, self.ways.service.block_bytes_max)

    # --- blocks that are coming ---

    async def _take_leases(self, leases: Sequence[int], answer: Followed) -> None:
        """What is complete first: readers wait for it."""
        ended: list[tuple[_Provisional, bytes]] = []
        further: list[_Provisional] = []
        goals: list[int] = []
        for i, lease in enumerate(leases):
            one = self._provisional.get(lease)
            if one is None:
                continue
            state = answer.lease_states[i]
            if state == Coming.HERE:
                ended.append((one, answer.checksums[i]))
            elif state == Coming.WRITING:
                one.layers = answer.done[i]
                one.place.layers = max(one.place.layers, one.layers)
                further.append(one)
                goals.append(written_bytes(one.block.size, one.layers, answer.of[i]))
            else:
                self._discard([one])
                self._known[one.key] = TELL_NOW
        await self._read([one for one, _ in ended], [one.block.size for one, _ in ended])
        for first in range(0, len(ended), COMMITS_AT_A_TIME):
            await self._publish(ended[first : first + COMMITS_AT_A_TIME])
        came = await self._read(further, goals)
        self.ways.service.counters["peer_bytes_pulled_early"] += came
        for one in further:
            self._tell_layers(one)

    async def _read(self, some: Sequence[_Provisional], goals: Sequence[int]) -> int:
        """Up to byte `goals[i]` of block i; how many bytes came."""
        wanted = [(one, goal) for one, goal in zip(some, goals, strict=True) if goal > one.done_bytes]
        if not wanted:
            return 0
        view = self.ways.service.store.view
        parts = [one.block.part(one.done_bytes, goal) for one, goal in wanted]
        into = [view(one.place.extent)[one.done_bytes : goal] for one, goal in wanted]
        await self.link.read(parts, into, self.deadline)
        await asyncio.to_thread(_feed, [(one.hasher, part) for (one, _), part in zip(wanted, into, strict=True)])
        for one, goal in wanted:
            one.done_bytes = goal
        return sum(part.size for part in parts)

    def _tell_layers(self, one: _Provisional) -> None:
        service = self.ways.service
        before = service.arrivals.producers(one.place.key).get(one.place)
        if before is not None and one.done_bytes and one.layers > before.done:
            service.counters["peer_layers_pulled"] += one.layers - before.done
            service.advance(one.place, one.layers)

    async def _publish(self, ended: Iterable[tuple[_Provisional, bytes]]) -> None:
        service = self.ways.service
        commits: list[Committing] = []
        blocks: list[RemoteBlock] = []
        for one, checksum in ended:
            del self._provisional[one.block.lease]  # from here on its place is the commit's
            commits.append(Committing(one.place, checksum, found=one.hasher.digest()))
            blocks.append(one.block)
        try:
            outcomes = await service.commit_many(commits)
        finally:
            self.link.release(blocks)
        unlike = [b.key for b, end in zip(blocks, outcomes, strict=True) if isinstance(end, DigestMismatch)]
        published = [b for b, end in zip(blocks, outcomes, strict=True) if end is CommitState.PUBLISHED]
        self._count(published)
        for block in blocks:
            if block.key not in unlike:
                self._end(block.key)
        self._unlike(unlike)

    def _count(self, published: Sequence[RemoteBlock]) -> None:
        counters, figures = self.ways.service.counters, self.ways.ledger.of(self.link.peer.name)
        size_bytes = sum(block.size for block in published)
        self.ways.spares.note(self.namespace, [block.key for block in published])
        figures.blocks_pulled += len(published)
        figures.bytes_pulled += size_bytes
        counters["peer_blocks_followed"] += len(published)
        counters["peer_blocks_pulled"] += len(published)
        counters["peer_bytes_pulled"] += size_bytes

    def _unlike(self, keys: Sequence[bytes]) -> None:
        """Their writer has changed what it had said to be written, or a byte was lost on the way: all is fetched anew."""
        self.ways.service.counters["peer_follows_unlike"] += len(keys)
        for key in keys:
            log.warning("block %s of %s is not what came of it early: pulled", printable_key(key), self.link.peer.name)
        self._pull(keys)

    def _discard(self, some: Sequence[_Provisional]) -> None:
        for one in some:
            del self._provisional[one.block.lease]
            self.ways.service.abort(one.place)
            self.ways.service.counters["peer_follows_dropped"] += 1
        self.link.release([one.block for one in some])


def _feed(came: "Sequence[tuple[xxhash.xxh3_128, memoryview]]") -> None:
    for hasher, part in came:
        hasher.update(part)
