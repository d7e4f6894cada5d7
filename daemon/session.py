"""One local connection: what it opened, what it holds, and what becomes of that when it ends.

The requests themselves are in `reading.py`, `writing.py` and `control.py`; bytes and frames in `connection.py`.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mooncask.client import wire
from mooncask.daemon.acquisition import Acquisition
from mooncask.daemon.insight.insight import Insight
from mooncask.daemon.leases import LeaseTable
from mooncask.daemon.peers.warm import Warming
from mooncask.daemon.processes import Process, ProcessTable
from mooncask.daemon.service import Service, Writing
from mooncask.daemon.shared_places import SharedPlaces
from mooncask.daemon.staging import Staging
from mooncask.errors import AccessDenied, BadRequest, NoSuchNamespace, UnknownReservation
from mooncask.tiers.block import Hint
from mooncask.tiers.namespace import Namespace

log = logging.getLogger(__name__)


class LocalPlane:
    """What all local connections share: the service, the leases and the processes. Also ends what dead processes held."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.leases = LeaseTable(service.ids)
        self.processes = ProcessTable(self._process_died)
        self.shared = SharedPlaces()
        self.counters: Counter[str] = Counter()
        self.warming = Warming(service)
        self.insight = Insight(service, self.leases, self.processes, self.counters)

    def drop_all(self, extents: "Sequence[object]") -> None:
        drop = self.service.store.drop
        for extent in extents:
            drop(extent)  # type: ignore[arg-type]

    def abort_parked(self, process: Process, keep: frozenset[int] = frozenset()) -> None:
        """Reservations of cut connections that the process no longer writes into; those in `keep` it still may."""
        for number in [number for number in process.parked if number not in keep]:
            self.service.abort(process.parked.pop(number))

    def forget_if_idle(self, process: Process) -> None:
        """A living process without connection, leases, parked places and promises needs no watching."""
        busy = process.sessions or process.parked or self.leases.count(process.token)
        if not busy and not self.service.arrivals.promises(process):
            self.processes.leave(process)

    def cut_overstayed(self, now_seconds: float) -> None:
        """Connections that keep a lease longer than limits.lease_max are cut; the extents stay out of use."""
        connections = self.leases.overstayed(now_seconds, self.service.config.limits.lease_max)
        if not connections:
            return
        for session in [s for process in self.processes for s in process.sessions if s.number in connections]:
            self.counters["connections_overstayed"] += 1
            log.warning("connection %d of process %d keeps a lease too long", session.number, session.process.peer.pid)
            session.cut("a lease was kept longer than limits.lease_max")

    def _process_died(self, process: Process) -> None:
        self.counters["processes_died"] += 1
        for session in list(process.sessions):
            session.cut("its process is gone")
        self.drop_all(self.leases.end(process.token))
        self.abort_parked(process)
        self.service.end_promises(process)


@dataclass(slots=True, eq=False)
class Session:
    """A connection after its Hello. `send` queues a reply; `cut(reason)` ends the connection at once."""

    plane: LocalPlane
    process: Process
    number: int
    client: str
    send: Callable[[wire.Message], None]
    cut: Callable[[str], None]
    staging: Staging | None
    hint: Hint
    closed: bool = False
    congested: bool = False
    """The client does not read its replies: what it need not know is not sent."""
    namespaces: dict[int, Namespace] = field(default_factory=dict)
    writings: dict[int, Writing] = field(default_factory=dict)
    acquisitions: set[Acquisition] = field(default_factory=set)

    @property
    def service(self) -> Service:
        return self.plane.service

    @property
    def tenant(self) -> str:
        return self.process.tenant

    # --- what every request checks ---

    def namespace(self, handle: int) -> Namespace:
        """The namespace behind a handle of this connection, ownership checked anew."""
        namespace = self.namespaces.get(handle)
        if namespace is None:
            raise NoSuchNamespace(f"with handle {handle} on this connection")
        self.service.door.check(self.process.tenant, namespace)
        return namespace

    def check_keys(self, keys: Sequence[bytes]) -> None:
        if not 0 < len(keys) <= self.service.config.limits.batch_max:
            most = self.service.config.limits.batch_max
            raise BadRequest(f"{len(keys)} keys in one request; 1 to {most} are allowed (limits.batch_max)")
        lengths = list(map(len, keys))
        if max(lengths) > wire.KEY_BYTES_MAX or not min(lengths):
            raise BadRequest(f"a key has 1 to {wire.KEY_BYTES_MAX} bytes")

    def check_shares_memory(self) -> None:
        if not self.process.shares_memory:
            raise AccessDenied("this process is in a foreign pid namespace and gets no shared memory; use the HTTP API")

    def deadline(self, milliseconds: int, seconds_max: float) -> float:
        return time.monotonic() + min(max(0, milliseconds) / 1000, seconds_max)

    def hint_of(self, fields: wire.HintFields | None) -> Hint:
        if fields is None:
            return self.hint
        if not 0 <= fields.priority <= 255:
            raise BadRequest(f"hint.priority = {fields.priority}: 0 to 255")
        return Hint(
            self.tenant, fields.priority, fields.conversation, fields.turn, fields.expected_output, fields.public
        )

    # --- open reservations ---

    def writings_named(self, numbers: Sequence[int], generations: Sequence[int]) -> list[Writing]:
        """Open reservations of this connection by (id, generation). Raises UnknownReservation; nothing has changed then."""
        check_columns(len(numbers), generations)
        found = [self._writing(number, generation) for number, generation in zip(numbers, generations, strict=True)]
        if len(set(numbers)) < len(numbers):
            raise UnknownReservation(next(number for number in numbers if numbers.count(number) > 1))
        return found

    def _writing(self, number: int, generation: int) -> Writing:
        writing = self.writings.get(number)
        if writing is None or writing.generation != generation:
            raise UnknownReservation(number)
        return writing

    def unstage(self, writing: Writing) -> None:
        if self.staging is not None and writing.staging_offset >= 0:
            self.staging.free(writing.staging_offset, writing.reservation.request.size)

    # --- the end ---

    def close(self) -> None:
        """The connection is gone. What its living process may still read or write stays out of use; see `leases.py`.

        Commits under way run to their end: the client had written all it was going to.
        """
        if self.closed:
            return
        self.closed = True
        self.process.sessions.discard(self)
        for acquisition in list(self.acquisitions):
            acquisition.abandon()
        self.plane.leases.cut(self.process.token, self.number)
        self._give_up_writings()
        if self.staging is not None:
            self.staging.close()
        if not self.process.shares_memory and not self.process.sessions:
            self.service.end_promises(self.process)  # nothing will tell of its death
        if not self.process.dead:
            self.plane.forget_if_idle(self.process)

    def _give_up_writings(self) -> None:
        """Staged bytes can't reach the arena any more; a writer in the arena itself may not have noticed the cut yet."""
        for writing in self.writings.values():
            if writing.staging_offset >= 0 or self.process.dead:
                self.service.abort(writing)
            else:
                self.service.disown(writing)
                self.process.parked[writing.id] = writing
        self.writings.clear()


def check_columns(count: int, *columns: Sequence[object]) -> None:
    """Every column of a batch has an item for each of its `count` items. Raises BadRequest."""
    for column in columns:
        if len(column) != count:
            raise BadRequest(f"a batch of {count} items came with a list of {len(column)}")


def optional_column(count: int, column: Sequence[object]) -> bool:
    """Whether a column that may be left out is there. Raises BadRequest for one of another length."""
    if column:
        check_columns(count, column)
    return bool(column)
