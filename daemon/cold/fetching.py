"""Brings blocks from the bucket into the store: who misses one asks here; what is asked for in one turn of the loop is planned
together, each block is fetched once however many ask, and nobody waits past the deadline.

What comes is published as any other block is: checked against the checksum that was packed with it, and kept.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

from mooncask.client.wire import CommitState
from mooncask.daemon.cold.bucket import BucketFault
from mooncask.daemon.cold.index import PackName
from mooncask.daemon.cold.names import pack_path
from mooncask.daemon.cold.pack import BadObject, Record, decode_record
from mooncask.daemon.cold.ranges import Read, plan_reads
from mooncask.daemon.cold.sealing import Sealing
from mooncask.daemon.cold.world import PATIENCE_SECONDS, World
from mooncask.daemon.flights import Flight, Flights
from mooncask.daemon.service import Committing
from mooncask.errors import DigestMismatch, MooncaskError
from mooncask.tiers.block import printable_key
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest

log = logging.getLogger(__name__)

RECORD_EXTRA_BYTES_MAX = 4096
"""Of a record beside its payload."""
SPARE_SECONDS = 0.01
"""Before the deadline a read is given up by itself, so that it is known that the bucket was too slow."""


class Fetching:
    """Of one daemon. Belongs to the event loop's thread."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._service = world.service
        self._store = world.service.store
        self._flights: Flights[None] = Flights(self._store, self._begin)
        self._slots = asyncio.Semaphore(world.section.requests_max)
        self._closed = False

    @property
    def flights(self) -> int:
        return len(self._flights)

    async def bring(self, namespace: Namespace, ns_id: bytes, key: bytes, deadline: float) -> bool:
        """Whether the block is here now; False is a miss, also one by the deadline."""
        deadline = min(deadline, time.monotonic() + self._world.section.deadline)
        return await self._flights.bring(
            namespace, key, deadline, lambda: self._take_off(namespace, ns_id, key, deadline)
        )

    async def close(self) -> None:
        """Before the store is closed: nothing is written into it any more."""
        self._closed = True
        await self._flights.close()

    # --- planning ---

    def _take_off(self, namespace: Namespace, ns_id: bytes, key: bytes, deadline: float) -> Flight | None:
        world = self._world
        if self._closed or not world.usable() or not world.may_have(ns_id, key):
            return None
        if world.index.length(ns_id, key) > self._service.block_bytes_max + RECORD_EXTRA_BYTES_MAX:
            return None  # nothing that this node could keep: it is not read to find that out
        flight = self._flights.new(namespace, ns_id, key, deadline)
        if flight is not None:
            self._flights.want(flight)
        return flight

    def _begin(self, namespace: Namespace, flights: list[Flight]) -> None:
        by_key = {flight.key: flight for flight in flights}
        places = [(f.key, place) for f in flights if (place := self._world.index.find(f.ns_id, f.key)) is not None]
        for read in plan_reads(places):
            some = {key: by_key.pop(key) for key in read.places}
            self._flights.start(self._bring_read(namespace, read, some))
        for flight in by_key.values():
            self._flights.end(flight, here=False)

    # --- one read ---

    async def _bring_read(self, namespace: Namespace, read: Read, flights: dict[bytes, Flight]) -> None:
        deadline = max(flight.deadline for flight in flights.values())
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                records = await self._read(read, flights, deadline)
                await self._publish(namespace, records, flights, deadline)
        except TimeoutError:
            pass  # what has not come is missed
        except MooncaskError as error:
            log.debug("no room for what is in the bucket: %s", error.message)
            self._world.counters["cold_reads_without_room"] += len(flights)
        except Exception:
            log.exception("a read of the bucket failed by a fault of this daemon")
        finally:
            for flight in flights.values():
                self._flights.end(flight, here=False)

    async def _read(self, read: Read, flights: dict[bytes, Flight], deadline: float) -> list[Record]:
        """What of it is right, as far as records tell."""
        world, pack = self._world, read.pack
        began = time.monotonic()
        path = pack_path(pack.run, pack.name.number)
        seconds = max(0.001, deadline - began - SPARE_SECONDS)
        try:
            data = await world.bucket.get_range(path, read.offset, read.length, seconds)
        except BucketFault as error:
            took = time.monotonic() - began
            if took >= PATIENCE_SECONDS or took < seconds:
                world.failed("reading", error)
            return []
        world.worked()
        if data is None:
            self._gone(pack.name)
            return []
        world.pace.read(read.length, time.monotonic() - began)
        pack.used_seconds = time.time()
        world.counters["cold_reads"] += 1
        world.counters["cold_read_bytes"] += read.length
        decoded = await asyncio.to_thread(_decode, read, data, world.sealing)
        return [record for key, found in decoded.items() if (record := self._asked(flights[key], found)) is not None]

    def _gone(self, name: PackName) -> None:
        """Collected by its owner: nothing of it is there any more."""
        self._world.counters["cold_packs_gone"] += 1
        self._world.drop(name)

    def _asked(self, flight: Flight, found: "Record | BadObject") -> Record | None:
        if isinstance(found, BadObject):
            self._wrong(flight, str(found))
            return None
        facts = found.facts
        if (facts.ns_id, facts.key) != (flight.ns_id, flight.key):
            self._wrong(flight, "another block than was asked for")
            return None
        fits = 0 < facts.size <= self._service.block_bytes_max and facts.parent != facts.key
        return found if fits else None

    def _wrong(self, flight: Flight, why: str) -> None:
        """Not to be read again."""
        world = self._world
        world.counters["cold_blocks_wrong"] += 1
        pack = world.forget(flight.ns_id, flight.key)
        where = pack_path(pack.run, pack.name.number) if pack is not None else "a pack"
        log.error("block %s in %s of the bucket: %s", printable_key(flight.key), where, why)

    async def _publish(
        self, namespace: Namespace, records: Sequence[Record], flights: dict[bytes, Flight], deadline: float
    ) -> None:
        records = [record for record in records if not self._flights.arrived(flights[record.facts.key])]
        if not records:
            return
        requests = [
            PutRequest(one.facts.key, one.facts.size, one.facts.parent, one.facts.depth, one.facts.tokens)
            for one in records
        ]
        places = await self._service.reserve(namespace, requests, deadline)
        pairs = [(record, place) for record, place in zip(records, places, strict=True) if place is not None]
        outcomes = await self._service.commit_many(
            [Committing(place, record.facts.checksum, record.payload) for record, place in pairs]
        )
        for (record, _), outcome in zip(pairs, outcomes, strict=True):
            flight = flights[record.facts.key]
            if isinstance(outcome, DigestMismatch):
                self._wrong(flight, "its bytes are not those of its checksum")
            if outcome is CommitState.PUBLISHED:
                self._world.counters["cold_blocks_read"] += 1
        for record in records:
            self._flights.arrived(flights[record.facts.key])


def _decode(read: Read, data: memoryview, sealing: Sealing) -> "dict[bytes, Record | BadObject]":
    """In a thread: what is encrypted takes a while."""
    found: dict[bytes, Record | BadObject] = {}
    for key, place in read.places.items():
        start = place.offset - read.offset
        part = data[start : start + place.length]
        try:
            found[key] = decode_record(part, sealing, read.pack.key_id, read.pack.identity, place.offset)
        except BadObject as error:
            found[key] = error
    return found
