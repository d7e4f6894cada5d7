"""What the store has of a prompt, asked in threads so that the scheduler never waits for a daemon.

A look-up matches, decides how much is worth loading, and leases the first part of it: what is on NVMe or at a peer comes
into DRAM then. Leases are held here until the request is scheduled, at most `HOLD_SECONDS`, after which the look-up is
made anew: a lease's token is good for 5 s.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field

from mooncask.client.blocks import Blocks
from mooncask.client.operations import Match
from mooncask.client.wire import Tier
from mooncask.engine_adapter.transformers.loading import LeftOut
from mooncask.engine_adapter.vllm.connection import StoreConnection
from mooncask.engine_adapter.vllm.load_decision import Limit
from mooncask.errors import MooncaskError

log = logging.getLogger(__name__)

HOLD_SECONDS = 3.0
INLINE_SECONDS = 0.003
"""A look-up in DRAM takes less; one that takes longer is asked for again in a later step."""
POLL_SECONDS = 0.01

Worth = Callable[[Match], Limit]
"""How many blocks of a match are worth loading."""
Late = Callable[[int, int, float], None]
"""Told (tier, bytes, seconds): the tier did not deliver that in that time."""


@dataclass(frozen=True, slots=True)
class Question:
    """The keys of a prompt, of which the engine itself has the first `start` blocks."""

    keys: list[bytes]
    start: int
    limit: Worth
    late: Late
    expected: int = 0
    """Blocks that a prefill engine said it has written or is about to: waited for until the deadline."""
    coming: bool = False
    """They are still being computed: that takes longer than a look-up may."""


@dataclass(slots=True)
class Found:
    """The first `blocks` blocks can be loaded; those that are leased, one lease a shard, begin at `start`."""

    start: int = 0
    blocks: int = 0
    stored: int = 0
    """How many are in the store, worth loading or not."""
    leases: list[Blocks] = field(default_factory=list)
    tier: int = 0
    seconds: float = 0.0
    wait: bool = False

    @property
    def all_leased(self) -> bool:
        """Whether all that can be loaded is leased, and so in DRAM: nothing is waited for any more."""
        count = self.blocks - self.start
        return bool(self.leases) and all(len(lease) >= count for lease in self.leases)

    def release(self) -> None:
        for lease in self.leases:
            lease.close()
        self.leases = []

    def hand_over(self) -> list[bytes]:
        """Tokens with which the workers adopt the leases, one a shard."""
        tokens = [lease.hand_over() if lease.token else b"" for lease in self.leases]
        self.release()  # of one that has no token
        return tokens


def look_up(connection: StoreConnection, question: Question, deadline: float) -> Found:
    """Raises what the daemon answers."""
    started = time.monotonic()
    client, handles = connection.open()
    found = Found(question.start)
    if question.coming and question.expected > question.start:
        # No thread waits here for what takes as long as a prefill: other look-ups would be late.
        found = Found(question.start, question.expected, question.expected, wait=True)
    elif question.expected > question.start:
        found = _expected(connection, question, deadline)
    if found.blocks <= question.start:
        matches = [client.match(handle, question.keys, _left(deadline)) for handle in handles]
        shortest = min(matches, key=len)
        limit = question.limit(shortest)
        found = Found(question.start, min(len(shortest), limit.blocks), len(shortest))
        found.tier = max((int(tier) for tier in shortest.tiers[question.start : found.blocks]), default=0)
        wanted = found.blocks
        _lease(connection, question, found, deadline)
        if found.blocks < wanted and time.monotonic() >= deadline:
            came = (found.blocks - question.start + 1) * connection.shards[0].block_bytes
            slowest = max(int(tier) for tier in shortest.tiers[found.blocks : wanted])
            question.late(slowest, came, time.monotonic() - started)
        if limit.rest is not None:
            _tell_recomputed(connection, question, limit.rest)
    found.seconds = time.monotonic() - started
    connection.worked()
    return found


def _tell_recomputed(connection: StoreConnection, question: Question, rest: LeftOut) -> None:
    """For the daemon's metrics and its `why`: these blocks are here, and are computed since that is faster."""
    client, handles = connection.open()
    key = question.keys[question.start + rest.first]
    try:
        for handle in handles:
            client.recomputed(handle, key, rest.blocks, Tier(rest.tier), rest.load_seconds, rest.compute_seconds)
    except MooncaskError as error:  # what was found stays found
        connection.fault("telling what is computed", error)


def _expected(connection: StoreConnection, question: Question, deadline: float) -> Found:
    """What a prefill engine hands over: leased as soon as its first part is there, the rest is waited for by the workers."""
    while True:
        found = Found(question.start, question.expected, question.expected, wait=True)
        _lease(connection, question, found, deadline)
        if found.blocks == question.expected or time.monotonic() >= deadline:
            return found
        found.release()
        time.sleep(POLL_SECONDS)  # it announces its blocks when it begins; this request may have been faster


def _lease(connection: StoreConnection, question: Question, found: Found, deadline: float) -> None:
    """Leases the first part of what was found, and cuts it to what is really there."""
    client, handles = connection.open()
    size = connection.shards[0].block_bytes
    most = min(max(1, connection.settings.lease_bytes // size), client.welcome.batch_max)
    part = question.keys[question.start : min(found.blocks, question.start + most)]
    if not part:
        found.blocks = min(found.blocks, question.start)
        return
    verify = connection.settings.verify
    for handle in handles:
        seconds = _left(deadline)
        found.leases.append(client.acquire(handle, part, seconds, wait=found.wait, verify=verify, want_token=True))
    there = min(lease.prefix for lease in found.leases)
    if there < len(part):
        found.blocks = question.start + there
    if not there:
        found.release()


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


@dataclass(slots=True)
class _Open:
    future: "Future[Found]"
    start: int
    deadline: float
    ready: float = 0.0
    """When the answer was first seen."""


class Lookups:
    """The look-ups of the requests that wait. For the scheduler's thread only; it is never blocked for long."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._open: dict[str, _Open] = {}
        self._pool = ThreadPoolExecutor(connection.settings.threads, "mooncask-lookup")
        self._orderly = ThreadPoolExecutor(1, "mooncask-in-order")

    def answer(self, request_id: str, start: int, ask: Callable[[], Question]) -> Found | None:
        """None while it is under way. At the deadline, and after a fault, nothing was found."""
        asked = self._open.get(request_id)
        if asked is not None and (asked.start != start or self._is_stale(asked)):
            self.drop(request_id)
            asked = None
        if asked is None:
            if not self._connection.usable:
                return Found()
            deadline = time.monotonic() + self._connection.settings.deadline_seconds
            future = self._pool.submit(self._run, ask(), deadline)
            asked = self._open[request_id] = _Open(future, start, deadline)
        try:
            found = asked.future.result(INLINE_SECONDS if not asked.ready else 0)
        except FutureTimeout:
            if time.monotonic() < asked.deadline:
                return None
            self.drop(request_id)
            return Found()
        asked.ready = asked.ready or time.monotonic()
        return found

    def take(self, request_id: str) -> Found | None:
        """The answer, for good: its leases are the caller's now."""
        asked = self._open.pop(request_id, None)
        return asked.future.result() if asked is not None and asked.future.done() else None

    def drop(self, request_id: str) -> None:
        """Nobody wants the answer any more; leases end now, or when they come."""
        asked = self._open.pop(request_id, None)
        if asked is not None and not asked.future.cancel():
            asked.future.add_done_callback(_release)

    def sweep(self) -> None:
        """Lets go of what has been held for too long."""
        for request_id in [name for name, asked in self._open.items() if self._is_stale(asked)]:
            self.drop(request_id)

    @property
    def pending(self) -> Sequence["Future[Found]"]:
        return [asked.future for asked in self._open.values() if not asked.future.done()]

    def in_background(self, what: str, call: Callable[[], object]) -> "Future[None]":
        """Runs a call to the daemon whose answer nobody waits for."""
        return self._pool.submit(self._run_quietly, what, call)

    def in_order(self, what: str, call: Callable[[], object]) -> None:
        """The same, after all that was to run in order before: what takes something back must not overtake it."""
        self._orderly.submit(self._run_quietly, what, call)

    def close(self) -> None:
        for request_id in list(self._open):
            self.drop(request_id)
        for pool in (self._pool, self._orderly):
            pool.shutdown(wait=True, cancel_futures=True)

    def _is_stale(self, asked: _Open) -> bool:
        return bool(asked.ready) and time.monotonic() - asked.ready > HOLD_SECONDS

    def _run(self, question: Question, deadline: float) -> Found:
        try:
            return look_up(self._connection, question, deadline)
        except MooncaskError as error:
            self._connection.fault("look-up", error)
        except Exception:
            log.exception("a look-up failed; the request is computed")
        return Found()

    def _run_quietly(self, what: str, call: Callable[[], object]) -> None:
        try:
            call()
        except MooncaskError as error:
            self._connection.fault(what, error)
        except Exception:
            log.exception("%s failed", what)


def _release(future: "Future[Found]") -> None:
    if not future.cancelled():
        future.result().release()
