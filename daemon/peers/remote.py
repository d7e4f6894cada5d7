"""Blocks that other nodes have, as the rest of the daemon asks for them: one at a time, fetched together, each once.

Whoever misses a block asks for it here; what is asked for in one turn of the loop becomes one batch (`pull.py`), and who
asks for a block that is on its way waits for that one. The block itself is then taken from the store as any other.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from mooncask.daemon.arrivals import Key
from mooncask.daemon.directory.directory import NodeRecord
from mooncask.daemon.peers.progressive import Progressive
from mooncask.daemon.peers.pull import Pull, Ways
from mooncask.daemon.peers.shared import SharedNamespaces
from mooncask.tiers.block import Extent, TierName
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)

FLIGHTS_MAX = 1 << 16
"""Blocks that may be wanted from afar at a time; more are misses."""
PULLS_MAX = 64
"""Batches under way at a time."""
HELD_SECONDS = 0.05
"""A block that has come can't leave before those that waited for it had their turn."""
LOCATE_SECONDS = 0.25
"""What a match waits for the directory; then it answers with what is here."""
CLOSE_SECONDS = 2.0
ROOM_OF_A_PUSH_SECONDS = 1.0
"""What nobody here has asked for yet does not stand in the queue for room for longer."""
SIZE_UNKNOWN = 1 << 20


@dataclass(slots=True, eq=False)
class _Flight:
    """One block on its way. `answer`: whether it is here now."""

    key: bytes
    deadline: float
    answer: "asyncio.Future[bool]"


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
        self._flights: dict[Key, _Flight] = {}
        self._wanted: dict[Namespace, list[_Flight]] = {}
        self._tasks: set[asyncio.Task[str]] = set()
        self._slots = asyncio.Semaphore(PULLS_MAX)
        self._held: dict[Extent, asyncio.TimerHandle] = {}
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
        while True:
            flight = self._flights.get(Key(namespace.id, key))
            joined = flight is not None
            if flight is None:
                flight = self._begin(namespace, key, deadline)
            if flight is None:
                return False
            self._ways.service.counters["peer_pulls_joined"] += joined
            try:
                async with asyncio.timeout_at(deadline):
                    here = await asyncio.shield(flight.answer)
            except TimeoutError:
                return False
            if here or not joined or flight.deadline >= deadline:
                return here

    async def bring_from(self, namespace: Namespace, keys: Sequence[bytes], node: NodeRecord, deadline: float) -> str:
        """As `bring`, from one node that has said that it has these. Why something did not come, empty when nothing went wrong."""
        waited: list[_Flight] = []
        mine: list[_Flight] = []
        for key in keys:
            if self._store.has(namespace, key):
                continue
            flight = self._flights.get(Key(namespace.id, key))
            if flight is None and (flight := self._new_flight(namespace, key, deadline)) is not None:
                mine.append(flight)
            if flight is not None:
                waited.append(flight)
        task = self._start(self._pull(namespace, mine, node)) if mine else None
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
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=CLOSE_SECONDS)
        for extent, timer in self._held.items():
            timer.cancel()
            self._store.drop(extent)
        self._held.clear()

    # --- batches ---

    def _begin(self, namespace: Namespace, key: bytes, deadline: float) -> _Flight | None:
        flight = self._new_flight(namespace, key, deadline)
        if flight is not None:
            if not self._wanted:
                asyncio.get_running_loop().call_soon(self._dispatch)
            self._wanted.setdefault(namespace, []).append(flight)
        return flight

    def _new_flight(self, namespace: Namespace, key: bytes, deadline: float) -> _Flight | None:
        if len(self._flights) >= FLIGHTS_MAX or not self.may_have(namespace):
            return None
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        flight = self._flights[Key(namespace.id, key)] = _Flight(key, deadline, answer)
        return flight

    def _dispatch(self) -> None:
        wanted, self._wanted = self._wanted, {}
        for namespace, flights in wanted.items():
            self._start(self._pull(namespace, flights))

    def _start(self, work: Coroutine[Any, Any, str]) -> asyncio.Task[str]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _pull(self, namespace: Namespace, flights: list[_Flight], source: NodeRecord | None = None) -> str:
        """Why something did not come. `source`: the only node that is asked."""
        deadline = max(flight.deadline for flight in flights)
        by_key = {flight.key: flight for flight in flights}
        ns_id = self._shared.id_of(namespace)
        pull = Pull(self._ways, namespace, ns_id, deadline, lambda key: self._here(namespace, by_key[key]))
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
                self._end(namespace, flight, here=False)
        return pull.problem

    def _here(self, namespace: Namespace, flight: _Flight) -> None:
        if flight.answer.done():
            return
        (extent,) = self._store.hold(namespace, [flight.key])
        if extent is not None:
            if extent in self._held:
                self._store.drop(extent)
            else:
                loop = asyncio.get_running_loop()
                self._held[extent] = loop.call_later(HELD_SECONDS, self._let_go, extent)
        self._end(namespace, flight, here=True)

    def _let_go(self, extent: Extent) -> None:
        del self._held[extent]
        self._store.drop(extent)

    def _end(self, namespace: Namespace, flight: _Flight, *, here: bool) -> None:
        if not flight.answer.done():
            flight.answer.set_result(here)
        name = Key(namespace.id, flight.key)
        if self._flights.get(name) is flight:
            del self._flights[name]

    def _mean_size(self, namespace: Namespace) -> float:
        return namespace.stored_bytes / namespace.blocks if namespace.blocks else SIZE_UNKNOWN
