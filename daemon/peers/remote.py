"""Blocks that other nodes have, as the rest of the daemon asks for them: one at a time, fetched together, each once.

Whoever misses a block asks for it here; what is asked for in one turn of the loop becomes one batch (`pull.py`), and who
asks for a block that is on its way waits for that one. The block itself is then taken from the store as any other.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.flights import Answer, Flight, Flights
from mooncask.daemon.peers.progressive import Progressive
from mooncask.daemon.peers.pull import Pull, Ways
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.tiers.block import TierName
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

PULLS_MAX = 64
"""Batches under way at a time."""
LOCATE_SECONDS = 0.25
"""What a match waits for the directory; then it answers with what is here."""
ROOM_OF_A_PUSH_SECONDS = 1.0
"""What nobody here has asked for yet does not stand in the queue for room for longer."""
SIZE_UNKNOWN = 1 << 20


@dataclass(slots=True)
class Located:
    """What continues a prefix: blocks that are here or at a living node. `seconds` as in `tiers.requests.Match`."""

    tiers: bytearray = field(default_factory=bytearray)
    seconds: list[float] = field(default_factory=list)


class Remote:
    """Of one daemon. Everything belongs to the event loop's thread."""

    def __init__(self, ways: Ways, shared: SharedNamespaces) -> None:
        self._ways = ways
        self._shared = shared
        self._store = ways.service.store
        self._flights: Flights[str] = Flights(self._store, self._begin)
        self._slots = asyncio.Semaphore(PULLS_MAX)
        self._closed = False
        self.progressive = Progressive(ways, shared, self.bring_from)

    @property
    def flights(self) -> int:
        """Blocks on their way."""
        return len(self._flights)

    def may_have(self, namespace: Namespace) -> bool:
        """Whether blocks of this namespace can come from other nodes at all."""
        return bool(self._shared.id_of(namespace)) and not self._closed

    async def bring(self, namespace: Namespace, key: bytes, deadline: float) -> bool:
        """Whether the block is here now, brought from another node if need be; False is a miss, also one by the deadline."""
        return await self._flights.bring(
            namespace, key, deadline, lambda: self._take_off(namespace, key, deadline), self._joined
        )

    async def bring_many(
        self,
        namespace: Namespace,
        keys: Sequence[bytes],
        deadline: float,
        on_answers: Callable[[list[Answer]], None],
    ) -> None:
        """As `bring`, for many: see `Flights.bring_many`."""
        await self._flights.bring_many(
            namespace, keys, deadline, lambda key: self._take_off(namespace, key, deadline), on_answers, self._joined
        )

    async def bring_from(self, namespace: Namespace, keys: Sequence[bytes], node: NodeRecord, deadline: float) -> str:
        """As `bring`, from one node that has said that it has these. Why something did not come, empty when nothing went wrong."""
        waited: list[Flight] = []
        mine: list[Flight] = []
        for key in keys:
            if self._store.has(namespace, key):
                continue
            flight = self._flights.find(namespace, key)
            if flight is None and (flight := self._new_flight(namespace, key, deadline)) is not None:
                mine.append(flight)
            if flight is not None:
                waited.append(flight)
        task = self._flights.start(self._pull(namespace, mine, node)) if mine else None
        if waited:
            await asyncio.wait([flight.answer for flight in waited], timeout=max(0.0, deadline - time.monotonic()))
        if task is None:
            return ""
        await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        return task.result() if task.done() and not task.cancelled() else "it took too long"

    async def known(self, namespace: Namespace, keys: Sequence[bytes]) -> set[bytes]:
        """Which of these a living node is said to have."""
        if not self.may_have(namespace):
            return set()
        deadline = time.monotonic() + LOCATE_SECONDS
        located = await self._ways.directory.lookup(self._shared.id_of(namespace), keys, deadline)
        return {key for key, holders in zip(keys, located, strict=True) if holders}

    async def locate(self, namespace: Namespace, keys: Sequence[bytes], begun_seconds: float) -> Located:
        """How far the prefix goes on over what is here or elsewhere; `begun_seconds`: the loading time of what came before."""
        found, total = Located(), begun_seconds
        if not self.may_have(namespace):
            return found
        deadline = time.monotonic() + LOCATE_SECONDS
        located = await self._ways.directory.lookup(self._shared.id_of(namespace), keys, deadline)
        catalogue = self._store.catalogue
        far = self._mean_size(namespace) / self._ways.ledger.pace()
        for key, holders in zip(keys, located, strict=True):
            slot = namespace.index.get(key) if self._store.has(namespace, key) else None
            if slot is None and not holders:
                break
            total += 0.0 if slot is not None else far
            found.tiers.append(TierName.PEER if slot is None else catalogue.where[slot])
            found.seconds.append(total)
        return found

    async def close(self) -> None:
        """Before the store is closed: nothing is written into it any more."""
        self._closed = True
        await self.progressive.close()
        await self._flights.close()

    # --- batches ---

    def _take_off(self, namespace: Namespace, key: bytes, deadline: float) -> Flight | None:
        flight = self._new_flight(namespace, key, deadline)
        if flight is not None:
            self._flights.want(flight)
        return flight

    def _new_flight(self, namespace: Namespace, key: bytes, deadline: float) -> Flight | None:
        if not self.may_have(namespace):
            return None
        return self._flights.new(namespace, self._shared.id_of(namespace), key, deadline)

    def _joined(self) -> None:
        self._ways.service.counters["peer_pulls_joined"] += 1

    def _begin(self, namespace: Namespace, flights: list[Flight]) -> None:
        self._flights.start(self._pull(namespace, flights))

    async def _pull(self, namespace: Namespace, flights: list[Flight], source: NodeRecord | None = None) -> str:
        """Why something did not come. `source`: the only node that is asked."""
        deadline = max(flight.deadline for flight in flights)
        by_key = {flight.key: flight for flight in flights}
        ns_id = self._shared.id_of(namespace)
        pull = Pull(self._ways, namespace, ns_id, deadline, lambda key: self._here(by_key[key]))
        if source is not None:
            pull.room_seconds = ROOM_OF_A_PUSH_SECONDS
        try:
            async with asyncio.timeout_at(deadline), self._slots:
                await (pull.run(list(by_key)) if source is None else pull.run_from(source, list(by_key)))
        except TimeoutError:
            pull.problem = "it took too long"  # what has not come is missed
        except Exception:
            pull.problem = "the daemon failed; its log says where"
            log.exception("a pull failed by a fault of this daemon")
        finally:
            for flight in flights:
                self._flights.end(flight, here=False)
        return pull.problem

    def _here(self, flight: Flight) -> None:
        self._flights.arrived(flight)

    def _mean_size(self, namespace: Namespace) -> float:
        return namespace.stored_bytes / namespace.blocks if namespace.blocks else SIZE_UNKNOWN
