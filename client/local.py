"""The sync local client: blocks of the daemon on this machine, read and written in place. See `aio.py` for asyncio."""

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from mooncask.client import calls, flows, operations, wire
from mooncask.client.ahead_calls import AheadCalls
from mooncask.client.blocks import Blocks
from mooncask.client.calls import Plan
from mooncask.client.dial import Target, dial
from mooncask.client.flows import Deadline, Flow, Start, Work
from mooncask.client.flusher import Flusher
from mooncask.client.link import Link, NotSent, PendingCall
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import AnyOperation, Keys, Match, NewBlocks, Operation, Page
from mooncask.client.reservations import Reservations
from mooncask.client.session import Limits, ProgressCallback
from mooncask.client.socket_path import default_socket_path
from mooncask.client.wire import BlockStat, CommitState, HintFields, NamespaceKind, Tier
from mooncask.errors import DaemonUnavailable

T = TypeVar("T")


class LocalClient(AheadCalls):
    """A connection to the daemon behind a Unix socket. Any thread may call it; calls of several threads run side by side.

    Every call ends by its deadline (`deadline_seconds`, or the one given to `connect`) and raises DeadlineExceeded when no
    answer came, DaemonUnavailable when there is no daemon or it went away in mid-call, or what the daemon answered. After
    either the client can still be used: the next call connects anew, opens its namespaces again and keeps the leases whose
    views still live. A forked child may use a client it inherited: it gets a connection of its own, but no views.
    """

    def __init__(self, target: Target, deadline_seconds: float) -> None:
        """Does not connect yet; use `LocalClient.connect`."""
        self.target = target
        self.deadline_seconds = deadline_seconds
        self._set_up()

    def _set_up(self) -> None:
        self._pid = os.getpid()
        self._link: Link | None = None
        self._dialling = threading.Lock()
        self._closed = False
        self._flusher = Flusher(self)

    @classmethod
    def connect(
        cls,
        socket_path: str | os.PathLike[str] = "",
        name: str = "",
        deadline_seconds: float = 2.0,
        *,
        want_write: bool = True,
        populate: bool = True,
    ) -> Self:
        """Connects; without a path, to where this user's daemon listens (`socket_path.py`).

        `name` is what the daemon calls this client in its logs; `populate` maps the arena's pages ahead of use.
        Raises DaemonUnavailable, ProtocolMismatch, AccessDenied.
        """
        target = Target(
            os.fspath(socket_path) or default_socket_path(), name or f"pid {os.getpid()}", want_write, populate
        )
        client = cls(target, deadline_seconds)
        client._connected(time.monotonic() + deadline_seconds)
        return client

    @property
    def welcome(self) -> wire.Welcome:
        """What the daemon said of itself; connects if need be."""
        return self._connected(time.monotonic() + self.deadline_seconds).session.welcome

    # --- namespaces ---

    def open_namespace(
        self,
        name: str = "",
        family: Mapping[str, str] | None = None,
        shard: str = "",
        mode: str = "",
        *,
        kind: NamespaceKind = NamespaceKind.KV,
        hash: str = "sha256",
        create: bool = True,
        deadline_seconds: float | None = None,
    ) -> NamespaceHandle:
        """Opens a namespace, made if need be. Raises FamilyMismatch, NoSuchNamespace (with create=False), AccessDenied."""
        seconds = self._seconds(deadline_seconds)
        return self.run(calls.open_namespace(name, family, shard, mode, kind, hash, create, seconds))

    # --- reading ---

    def match(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> Match:
        """The longest prefix of `keys` that is here; changes nothing."""
        return self._do(calls.match(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def acquire(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        deadline_seconds: float | None = None,
        wait: bool = False,
        verify: bool = False,
        *,
        want_token: bool = False,
        hint: HintFields | None = None,
        progress: ProgressCallback | None = None,
    ) -> Blocks:
        """Leases blocks for reading in place. What is not here by the deadline is None in the result, not an error.

        `wait` also waits for blocks that somebody is putting, and then calls `progress(index, layers written, layers)`;
        `verify` checks the bytes of DRAM hits too. `want_token` works for as many keys as one request takes
        (`welcome.batch_max`).
        """
        seconds, limits = self._seconds(deadline_seconds), self._limits()
        plan = calls.acquire(namespace, keys, seconds, limits, wait, verify, want_token, hint, progress)
        blocks = self._do(plan)
        self._wake()
        return blocks

    def acquire_described(
        self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None
    ) -> tuple[Blocks, list[BlockStat | None]]:
        """Leases blocks and tells what is known of each. For as many keys as one request takes.

        The description is asked for after the lease: where it is of the version that the caller expects, the leased bytes
        are that version's. (Another one may have taken its place in between; then it is of that one.)
        """
        found = self._drive(flows.acquire_described(namespace, keys, Deadline(self._seconds(deadline_seconds))))
        self._wake()
        return found

    def get_into(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        buffers: Sequence[Any],
        deadline_seconds: float | None = None,
        *,
        hint: HintFields | None = None,
    ) -> list[bool]:
        """Copies blocks into buffers (bytearrays, arrays, CPU tensors) at least as long; False where one is not here."""
        found = self._do(calls.get_into(namespace, keys, buffers, self._seconds(deadline_seconds), hint))
        self._wake()
        return found

    def adopt(self, token: bytes, deadline_seconds: float | None = None) -> Blocks:
        """Takes over the leases behind another process's token (`Blocks.hand_over`), within 5 s and once."""
        blocks = self.run(operations.adopt(token, self._seconds(deadline_seconds)))
        self._wake()
        return blocks

    # --- writing ---

    def reserve(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        sizes: Sequence[int],
        *,
        parents: Sequence[bytes] = (),
        depths: Sequence[int] = (),
        tokens: Sequence[int] = (),
        layers: int = 0,
        hint: HintFields | None = None,
        deadline_seconds: float | None = None,
    ) -> Reservations:
        """Places for new blocks: all or none. Raises Busy at the deadline, LengthMismatch, BlockTooLarge, QuotaExceeded …"""
        new = NewBlocks(keys, sizes, parents, depths, tokens, layers, hint)
        session, slots = self.run(operations.reserve(namespace, new, self._seconds(deadline_seconds)))
        self._wake()
        return Reservations(session, slots, self)

    def put(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        payloads: Sequence[Any],
        *,
        parents: Sequence[bytes] = (),
        depths: Sequence[int] = (),
        tokens: Sequence[int] = (),
        durable: bool = False,
        digests: Sequence[bytes] = (),
        hint: HintFields | None = None,
        deadline_seconds: float | None = None,
    ) -> list[CommitState]:
        """Stores blocks from buffers. `durable`: answer when they survive a crash. `digests`: xxh3_128 of each, to be checked.

        Raises what `reserve` raises, and the first error of a commit; blocks that were published by then stay.
        """
        seconds, limits = self._seconds(deadline_seconds), self._limits()
        return self._do(
            calls.put(namespace, keys, payloads, parents, depths, tokens, durable, digests, hint, seconds, limits)
        )

    def expect(
        self, namespace: NamespaceHandle, keys: Keys, ttl_seconds: float, deadline_seconds: float | None = None
    ) -> None:
        """Announces that this process will put `keys` within `ttl_seconds`, for those who acquire with wait=True."""
        self._do(calls.expect(namespace, keys, ttl_seconds, self._seconds(deadline_seconds), self._limits()))

    # --- housekeeping ---

    def recomputed(
        self,
        namespace: NamespaceHandle,
        key: bytes,
        blocks: int,
        tier: Tier,
        load_seconds: float,
        compute_seconds: float,
    ) -> None:
        """Says that this process computes `blocks` from `key` on, which are in `tier`, since that is faster: for `why`."""
        self.run(
            operations.recomputed(namespace, key, blocks, tier, load_seconds, compute_seconds, self.deadline_seconds)
        )

    def pin(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """Keeps blocks from being evicted until as many unpins; returns how many are here. Raises PinLimitExceeded."""
        return self._do(calls.pin(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def unpin(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """Takes one pin off each block; returns how many are here."""
        return self._do(calls.unpin(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def set_ttl(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        ttl_seconds: float | None,
        deadline_seconds: float | None = None,
    ) -> int:
        """Lets blocks vanish after a time; None: they stay until evicted. Returns how many are here."""
        seconds, limits = self._seconds(deadline_seconds), self._limits()
        return self._do(calls.set_ttl(namespace, keys, ttl_seconds, seconds, limits))

    def evict(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """Deletes blocks from all tiers, durably; returns how many there were. Leased ones stay readable for their holders."""
        return self._do(calls.evict(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def stat(
        self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None
    ) -> list[BlockStat | None]:
        """What is known of each block; None for those that are not here."""
        return self._do(calls.stat(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def verify(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> list[bool]:
        """Reads and checks every copy of each block. False: not here, or a wrong copy was found and quarantined."""
        return self._do(calls.verify(namespace, keys, self._seconds(deadline_seconds), self._limits()))

    def list_blocks(
        self,
        namespace: NamespaceHandle,
        prefix: bytes = b"",
        after: bytes = b"",
        limit: int = 1000,
        deadline_seconds: float | None = None,
    ) -> Page:
        """Blocks in byte order of their keys, after `after`; go on with the last key while `more` is set."""
        return self.run(operations.list_blocks(namespace, prefix, after, limit, self._seconds(deadline_seconds)))

    def status(self, deadline_seconds: float | None = None) -> wire.Status:
        """The daemon, its tiers and its namespaces."""
        return self.run(operations.status(self._seconds(deadline_seconds)))

    # --- ending ---

    def close(self) -> None:
        """Ends the connection. Views stay readable, and their leases held, until they die or this process ends."""
        if self._pid != os.getpid():
            self._forget_parent()
        self._closed = True
        self._flusher.stop()
        with self._dialling:
            link, self._link = self._link, None
        if link is not None:
            link.flush()
            link.close("this client was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()

    # --- how calls run ---

    def _seconds(self, deadline_seconds: float | None) -> float:
        return self.deadline_seconds if deadline_seconds is None else deadline_seconds

    def run(self, operation: Operation[T]) -> T:
        """One request and its answer; `operations.py` makes them."""
        value: T = self._start(operation).wait()
        return value

    def _start(self, operation: AnyOperation) -> PendingCall:
        """Sends a request. One that a dead connection did not take goes out again on a new one, once."""
        deadline = time.monotonic() + operation.seconds
        try:
            return self._start_on(self._connected(deadline), operation, deadline)
        except NotSent:
            try:
                return self._start_on(self._connected(deadline), operation, deadline)
            except NotSent as exc:
                raise DaemonUnavailable(self.target.path, "it closes connections at once") from exc

    def _start_on(self, link: Link, operation: AnyOperation, deadline: float) -> PendingCall:
        operation.check(link.session)
        namespace = operation.namespace
        handle = 0
        if namespace is not None:
            known = link.session.handles.get(namespace.name)
            handle = known if known is not None else self._reopen(link, namespace, deadline)
        return PendingCall(link, link.start(operation, handle, deadline), operation, deadline)

    def _reopen(self, link: Link, namespace: NamespaceHandle, deadline: float) -> int:
        operation = operations.reopen_namespace(namespace, deadline - time.monotonic())
        handle: int = PendingCall(link, link.start(operation, 0, deadline), operation, deadline).wait()
        return handle

    def _wake(self) -> None:
        self._flusher.wake()

    def _limits(self) -> Limits:
        return self._connected(time.monotonic() + self.deadline_seconds).session.limits

    def _connected(self, deadline: float) -> Link:
        if self._pid != os.getpid():
            self._forget_parent()
        link = self._link
        if link is not None and not link.dead:
            return link
        with self._dialling:
            if self._closed:
                raise DaemonUnavailable(self.target.path, "this client was closed")
            link = self._link
            if link is None or link.dead:
                if link is not None:
                    link.close("it closed the connection")
                link = self._link = Link(dial(self.target, deadline))
            return link

    def _forget_parent(self) -> None:
        """This is a forked child: the connection, the locks and the leases are its parent's."""
        inherited, closed = self._link, self._closed
        self._set_up()
        self._closed = closed
        if inherited is not None:
            inherited.drop_inherited()

    def _do(self, plan: Plan[T]) -> T:
        return self.run(plan) if isinstance(plan, Operation) else self._drive(plan)

    def _drive(self, flow: Flow[T]) -> T:
        """Runs a call of several requests."""
        resume: Callable[[], flows.Step] = partial(flow.send, None)
        try:
            while True:
                try:
                    step = resume()
                except StopIteration as stop:
                    result: T = stop.value
                    return result
                try:
                    resume = partial(flow.send, self._step(step))
                except BaseException as exc:  # noqa: BLE001  # the flow cleans up and raises it again
                    resume = partial(flow.throw, exc)
        finally:
            del resume  # or an error and this frame would keep each other, and views, alive until a collection

    def _step(self, step: flows.Step) -> Any:
        if isinstance(step, Operation):
            return self.run(step)
        if isinstance(step, Start):
            return self._start(step.operation)
        if isinstance(step, Work):
            return step.run()
        assert isinstance(step, PendingCall)
        return step.wait()

    def flush(self) -> bool:
        """Sends what died views and dropped reservations left; says whether there may be more later. Opens no connection."""
        link = self._link
        if link is None or link.dead or self._pid != os.getpid():
            return False
        link.flush()
        return link.session.book.busy
