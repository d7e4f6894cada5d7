"""Blocks that somebody at another node is putting or has announced: who waits for one here follows it there.

Asked only for those who wait, and of whom the directory knows nothing: every living node is asked once, and the one that puts the
block is followed (`pursuit.py`). While a block is followed it is among this daemon's arrivals, like one that is put here:
whoever waits for it, now or later, waits there, hears of its layers and of its end, and causes no transfer of its own.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from mooncask.daemon.arrivals import Key
from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.peers.following import BLOCKS_MAX, FOLLOW, TELL_NOW, Coming, Following, parse_followed
from mooncask.daemon.peers.pull import Ways
from mooncask.daemon.peers.pursuit import Flight, Pursuit
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.daemon.transport.transport import Link
from mooncask.errors import DeadlineExceeded, MooncaskError
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

FLIGHTS_MAX = 1 << 16
"""Blocks that may be followed at a time; more are misses."""
PURSUITS_MAX = 64
"""Batches of them; more wait their turn."""
NODES_MAX = 32
"""That are asked for one batch."""
ASK_SECONDS = 0.25
"""What a node may take to say whether somebody there is putting a block, at least."""
ASK_SHARE = 0.05
"""And of the time that is left, up to ASK_SECONDS_MAX: who waits for long loses more by taking a busy node for one without news."""
ASK_SECONDS_MAX = 2.0
BRINGS_MAX = 16
"""How often a block is fetched that is said to be there and does not come, though nothing went wrong."""
FLIGHT_SECONDS_MAX = 120.0
"""However long others wait, and half of limits.lease_max at most: a lease at the other node must not grow too old."""
CLOSE_SECONDS = 2.0


class BringFrom(Protocol):
    """See `Remote.bring_from`."""

    async def __call__(self, namespace: Namespace, keys: Sequence[bytes], node: NodeRecord, deadline: float) -> str: ...


@dataclass(frozen=True, slots=True)
class _Sighting:
    """What one node says of a block."""

    state: int
    node: NodeRecord
    link: Link


class Progressive:
    """Of one daemon. Everything belongs to the event loop's thread."""

    def __init__(self, ways: Ways, shared: SharedNamespaces, bring: BringFrom) -> None:
        self._ways = ways
        self._shared = shared
        self._bring = bring
        self._arrivals = ways.service.arrivals
        self._flights: dict[Key, Flight] = {}
        self._wanted: dict[Namespace, list[Flight]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(PURSUITS_MAX)
        self._closed = False

    async def follow(self, namespace: Namespace, key: bytes, deadline: float) -> None:
        """Returns when the block is among the arrivals, or when nobody is known who puts it."""
        name = Key(namespace.id, key)
        flight = self._flights.get(name)
        if flight is None:
            if self._closed or len(self._flights) >= FLIGHTS_MAX or self._arrivals.is_written(name):
                return
            flight = self._begin(namespace, key)
        flight.extend(deadline)
        try:
            async with asyncio.timeout_at(deadline):
                await asyncio.shield(flight.found)
        except TimeoutError:
            pass

    async def close(self) -> None:
        """Nothing is written into the store after this."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_SECONDS)

    # --- flights ---

    def _begin(self, namespace: Namespace, key: bytes) -> Flight:
        loop = asyncio.get_running_loop()
        seconds = min(FLIGHT_SECONDS_MAX, self._ways.service.config.limits.lease_max / 2)
        flight = Flight(key, 0.0, time.monotonic() + seconds, loop.create_future())
        self._flights[Key(namespace.id, key)] = flight
        if not self._wanted:
            loop.call_soon(self._dispatch)
        self._wanted.setdefault(namespace, []).append(flight)
        return flight

    def _end(self, namespace: Namespace, flight: Flight) -> None:
        """Who waits for nobody else learns that it does not come, if it has not."""
        name = Key(namespace.id, flight.key)
        if self._flights.get(name) is flight:
            del self._flights[name]
        for waiter in self._arrivals.gone(name, flight):
            waiter.wake(published=False)
        if not flight.found.done():
            flight.found.set_result(False)

    def _dispatch(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for namespace, flights in wanted.items():
            for first in range(0, len(flights), BLOCKS_MAX):
                some = flights[first : first + BLOCKS_MAX]
                task = asyncio.get_running_loop().create_task(self._run(namespace, some))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _run(self, namespace: Namespace, flights: list[Flight]) -> None:
        """The top of a task: looks for those who put these blocks, and follows them."""
        deadline = max(flight.deadline for flight in flights)
        try:
            async with asyncio.timeout_at(deadline):
                await self._slots.acquire()
        except TimeoutError:
            self._end_all(namespace, flights)
            return
        try:
            await self._seek_and_follow(namespace, flights)
        except Exception:
            log.exception("following blocks failed by a fault of this daemon")
        finally:
            self._slots.release()
            self._end_all(namespace, flights)

    def _end_all(self, namespace: Namespace, flights: Iterable[Flight]) -> None:
        for flight in flights:
            if not flight.found.done() or self._flights.get(Key(namespace.id, flight.key)) is flight:
                self._end(namespace, flight)

    async def _seek_and_follow(self, namespace: Namespace, flights: list[Flight]) -> None:
        ns_id = self._shared.id_of(namespace)
        keys = [flight.key for flight in flights]
        deadline, now = max(flight.deadline for flight in flights), time.monotonic()
        sightings = await self._ask_around(ns_id, keys, min(deadline, now + ask_seconds(deadline - now)))
        pursuits: dict[bytes, Pursuit] = {}
        for flight in flights:
            sighting = sightings.get(flight.key)
            if sighting is None:
                self._end(namespace, flight)
                continue
            self._arrivals.announce(Key(namespace.id, flight.key), flight)
            flight.found.set_result(True)
            holder = sighting.node.incarnation
            if holder not in pursuits:
                pursuits[holder] = self._pursuit(namespace, ns_id, sighting)
            pursuits[holder].add(flight)
        async with asyncio.TaskGroup() as group:
            for pursuit in pursuits.values():
                group.create_task(pursuit.run())

    def _pursuit(self, namespace: Namespace, ns_id: bytes, sighting: _Sighting) -> Pursuit:
        def on_end(flight: Flight) -> None:
            self._end(namespace, flight)

        async def bring(keys: Sequence[bytes], deadline: float) -> None:
            await bring_all(
                keys,
                lambda key: self._ways.service.store.has(namespace, key),
                lambda some: self._bring(namespace, some, sighting.node, deadline),
            )

        return Pursuit(self._ways, namespace, ns_id, sighting.link, on_end, bring)

    # --- who puts them ---

    async def _ask_around(self, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> dict[bytes, _Sighting]:
        """For each key the node where it is written, else where it is, else where it is expected."""
        nodes = self._nearest(await self._ways.directory.nodes(deadline))
        found: dict[bytes, _Sighting] = {}
        asks = {asyncio.create_task(self._ask(node, ns_id, keys, deadline)): node for node in nodes}
        pending = set(asks)
        try:
            while pending and not _all_are_certain(found, keys):
                done, pending = await asyncio.wait(
                    pending, timeout=max(0.0, deadline - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                for task in done:
                    _keep_best(found, keys, task.result())
        finally:
            for task in pending:
                task.cancel()
        return found

    def _nearest(self, nodes: Sequence[NodeRecord]) -> list[NodeRecord]:
        """Those to ask: the linked ones first, none that did not answer a moment ago."""
        now, suspects = time.monotonic(), self._ways.suspects
        linked = {link.peer.incarnation for link in self._ways.pool.links()}
        living = [node for node in nodes if not suspects.avoids(node.incarnation, now)]
        return sorted(living, key=lambda node: node.incarnation not in linked)[:NODES_MAX]

    async def _ask(self, node: NodeRecord, ns_id: bytes, keys: Sequence[bytes], deadline: float) -> list[_Sighting]:
        """Nothing from a node that does not answer, or that knows no such question."""
        question = Following(ns_id, list(keys), bytes([TELL_NOW]) * len(keys), [], [])
        in_a_hurry = deadline - time.monotonic() < ASK_SECONDS / 2
        try:
            link = await self._ways.pool.link(node.address, deadline, node.incarnation)
            payload = await link.ask(FOLLOW, msgspec.msgpack.encode(question), deadline)
            states = parse_followed(payload, len(keys), 0).states
        except DeadlineExceeded:
            if not in_a_hurry:
                self._ways.suspects.failed(node.incarnation, time.monotonic())
            return []
        except MooncaskError as error:
            log.debug("%s was asked what is put there: %s", node.name, error.message)
            return []
        return [_Sighting(state, node, link) for state in states]


async def bring_all(
    keys: Sequence[bytes], has: Callable[[bytes], bool], bring: Callable[[Sequence[bytes]], Awaitable[str]]
) -> None:
    """Until all are here or `bring` says what went wrong. Others may be looking for some of them already where nobody was known
    to have them, one after the other: each time `bring` only waits for the end of that."""
    missing = keys
    for _ in range(BRINGS_MAX):
        if not missing or await bring(missing):
            return
        missing = [key for key in missing if not has(key)]


def ask_seconds(left: float) -> float:
    """What nodes may take to answer somebody who has so many seconds left."""
    return max(ASK_SECONDS, min(ASK_SECONDS_MAX, ASK_SHARE * left))


_ORDER = (Coming.NOBODY, Coming.EXPECTED, Coming.HERE, Coming.WRITING)
"""The later, the better: a block that is here may leave again, one that is expected may never come."""


def _keep_best(found: dict[bytes, _Sighting], keys: Sequence[bytes], said: Sequence[_Sighting]) -> None:
    for key, sighting in zip(keys, said, strict=False):
        before = found.get(key)
        rank = _ORDER.index(Coming(sighting.state))
        if rank and (before is None or rank > _ORDER.index(Coming(before.state))):
            found[key] = sighting


def _all_are_certain(found: dict[bytes, _Sighting], keys: Sequence[bytes]) -> bool:
    return all(key in found and found[key].state >= Coming.WRITING for key in keys)
