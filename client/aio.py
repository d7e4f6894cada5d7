"""The asyncio local client: `LocalClient` with `await`. Works on asyncio's loop and on uvloop."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

from mooncask.client import calls, flows, operations, wire
from mooncask.client.ahead_calls import AsyncAheadCalls
from mooncask.client.async_link import AsyncLink, AsyncPendingCall
from mooncask.client.blocks import Blocks
from mooncask.client.calls import Plan
from mooncask.client.dial import Dialled, Target, dial
from mooncask.client.flows import Flow, Start, Work
from mooncask.client.flusher import FLUSH_SECONDS
from mooncask.client.link import NotSent
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import AnyOperation, Keys, Match, NewBlocks, Operation, Page
from mooncask.client.reservations import AsyncReservations
from mooncask.client.session import Limits, ProgressCallback
from mooncask.client.socket_path import default_socket_path
from mooncask.client.wire import BlockStat, CommitState, HintFields, NamespaceKind, Tier
from mooncask.errors import DaemonUnavailable

T = TypeVar("T")

THREAD_BYTES = 1 << 20
"""Copies from this size on run in a thread; smaller ones would take longer to hand over than to do."""


class AsyncLocalClient(AsyncAheadCalls):
    """A connection to the daemon behind a Unix socket, for one event loop. Calls of several tasks run side by side.

    Deadlines, errors, reconnects and leases are as `LocalClient` says, and so are the calls of the same names. Views may be
    read and dropped in any thread. A forked child can't use it.
    """

    def __init__(self, target: Target, deadline_seconds: float) -> None:
        """Does not connect yet; use `AsyncLocalClient.connect`."""
        self.target = target
        self.deadline_seconds = deadline_seconds
        self._link: AsyncLink | None = None
        self._dialling = asyncio.Lock()
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def connect(
        cls,
        socket_path: str | os.PathLike[str] = "",
        name: str = "",
        deadline_seconds: float = 2.0,
        *,
        want_write: bool = True,
        populate: bool = True,
    ) -> Self:
        """Connects; without a path, to where this user's daemon listens. Raises DaemonUnavailable, ProtocolMismatch, AccessDenied."""
        target = Target(
            os.fspath(socket_path) or default_socket_path(), name or f"pid {os.getpid()}", want_write, populate
        )
        client = cls(target, deadline_seconds)
        await client._connected(deadline_seconds)
        return client

    async def welcome(self) -> wire.Welcome:
        """What the daemon said of itself; connects if need be."""
        return (await self._connected(self.deadline_seconds)).session.welcome

    # --- namespaces ---

    async def open_namespace(
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
        """As `LocalClient.open_namespace`."""
        seconds = self._seconds(deadline_seconds)
        return await self.run(calls.open_namespace(name, family, shard, mode, kind, hash, create, seconds))

    # --- reading ---

    async def match(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> Match:
        """As `LocalClient.match`."""
        return await self._do(calls.match(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def acquire(
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
        """As `LocalClient.acquire`; `progress` is called on the loop and must be quick."""
        seconds, limits = self._seconds(deadline_seconds), await self._limits()
        plan = calls.acquire(namespace, keys, seconds, limits, wait, verify, want_token, hint, progress)
        blocks = await self._do(plan)
        self._wake()
        return blocks

    async def get_into(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        buffers: Sequence[Any],
        deadline_seconds: float | None = None,
        *,
        hint: HintFields | None = None,
    ) -> list[bool]:
        """As `LocalClient.get_into`. The copies run in a thread; cancelling waits for the one under way."""
        found = await self._do(calls.get_into(namespace, keys, buffers, self._seconds(deadline_seconds), hint))
        self._wake()
        return found

    async def adopt(self, token: bytes, deadline_seconds: float | None = None) -> Blocks:
        """As `LocalClient.adopt`."""
        blocks = await self.run(operations.adopt(token, self._seconds(deadline_seconds)))
        self._wake()
        return blocks

    # --- writing ---

    async def reserve(
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
    ) -> AsyncReservations:
        """As `LocalClient.reserve`."""
        new = NewBlocks(keys, sizes, parents, depths, tokens, layers, hint)
        session, slots = await self.run(operations.reserve(namespace, new, self._seconds(deadline_seconds)))
        self._wake()
        return AsyncReservations(session, slots, self)

    async def put(
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
        """As `LocalClient.put`. The copies run in a thread; cancelling waits for the one under way."""
        seconds, limits = self._seconds(deadline_seconds), await self._limits()
        return await self._do(
            calls.put(namespace, keys, payloads, parents, depths, tokens, durable, digests, hint, seconds, limits)
        )

    async def expect(
        self, namespace: NamespaceHandle, keys: Keys, ttl_seconds: float, deadline_seconds: float | None = None
    ) -> None:
        """As `LocalClient.expect`."""
        await self._do(
            calls.expect(namespace, keys, ttl_seconds, self._seconds(deadline_seconds), await self._limits())
        )

    # --- housekeeping ---

    async def recomputed(
        self,
        namespace: NamespaceHandle,
        key: bytes,
        blocks: int,
        tier: Tier,
        load_seconds: float,
        compute_seconds: float,
    ) -> None:
        """Says that this process computes `blocks` from `key` on, which are in `tier`, since that is faster: for `why`."""
        await self.run(
            operations.recomputed(namespace, key, blocks, tier, load_seconds, compute_seconds, self.deadline_seconds)
        )

    async def pin(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """As `LocalClient.pin`."""
        return await self._do(calls.pin(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def unpin(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """As `LocalClient.unpin`."""
        return await self._do(calls.unpin(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def set_ttl(
        self,
        namespace: NamespaceHandle,
        keys: Keys,
        ttl_seconds: float | None,
        deadline_seconds: float | None = None,
    ) -> int:
        """As `LocalClient.set_ttl`."""
        seconds, limits = self._seconds(deadline_seconds), await self._limits()
        return await self._do(calls.set_ttl(namespace, keys, ttl_seconds, seconds, limits))

    async def evict(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> int:
        """As `LocalClient.evict`."""
        return await self._do(calls.evict(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def stat(
        self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None
    ) -> list[BlockStat | None]:
        """As `LocalClient.stat`."""
        return await self._do(calls.stat(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def verify(self, namespace: NamespaceHandle, keys: Keys, deadline_seconds: float | None = None) -> list[bool]:
        """As `LocalClient.verify`."""
        return await self._do(calls.verify(namespace, keys, self._seconds(deadline_seconds), await self._limits()))

    async def list_blocks(
        self,
        namespace: NamespaceHandle,
        prefix: bytes = b"",
        after: bytes = b"",
        limit: int = 1000,
        deadline_seconds: float | None = None,
    ) -> Page:
        """As `LocalClient.list_blocks`."""
        return await self.run(operations.list_blocks(namespace, prefix, after, limit, self._seconds(deadline_seconds)))

    async def status(self, deadline_seconds: float | None = None) -> wire.Status:
        """As `LocalClient.status`."""
        return await self.run(operations.status(self._seconds(deadline_seconds)))

    # --- ending ---

    async def close(self) -> None:
        """Ends the connection. Views stay readable, and their leases held, until they die or this process ends."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        async with self._dialling:
            link, self._link = self._link, None
        if link is not None:
            link.flush()
            await link.close("this client was closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- how calls run ---

    def _seconds(self, deadline_seconds: float | None) -> float:
        return self.deadline_seconds if deadline_seconds is None else deadline_seconds

    async def run(self, operation: Operation[T]) -> T:
        """One request and its answer; `operations.py` makes them."""
        value: T = await (await self._start(operation)).wait()
        return value

    async def _start(self, operation: AnyOperation) -> AsyncPendingCall:
        """Sends a request. One that a dead connection did not take goes out again on a new one, once."""
        deadline = asyncio.get_running_loop().time() + operation.seconds
        try:
            return await self._start_on(await self._connected(operation.seconds), operation, deadline)
        except NotSent:
            try:
                return await self._start_on(await self._connected(operation.seconds), operation, deadline)
            except NotSent as exc:
                raise DaemonUnavailable(self.target.path, "it closes connections at once") from exc

    async def _start_on(self, link: AsyncLink, operation: AnyOperation, deadline: float) -> AsyncPendingCall:
        operation.check(link.session)
        namespace = operation.namespace
        handle = 0
        if namespace is not None:
            known = link.session.handles.get(namespace.name)
            handle = known if known is not None else await self._reopen(link, namespace, deadline)
        return await link.start(operation, handle, deadline)

    async def _reopen(self, link: AsyncLink, namespace: NamespaceHandle, deadline: float) -> int:
        operation = operations.reopen_namespace(namespace, deadline - asyncio.get_running_loop().time())
        handle: int = await (await link.start(operation, 0, deadline)).wait()
        return handle

    async def _limits(self) -> Limits:
        return (await self._connected(self.deadline_seconds)).session.limits

    async def _connected(self, seconds: float) -> AsyncLink:
        link = self._link
        if link is not None and not link.dead:
            return link
        async with self._dialling:
            if self._closed:
                raise DaemonUnavailable(self.target.path, "this client was closed")
            link = self._link
            if link is None or link.dead:
                if link is not None:
                    await link.close("it closed the connection")
                dialled = await _in_thread(partial(dial, self.target, time.monotonic() + seconds), _hang_up)
                link = self._link = await AsyncLink.over(dialled)
            return link

    async def _do(self, plan: Plan[T]) -> T:
        return await (self.run(plan) if isinstance(plan, Operation) else self._drive(plan))

    async def _drive(self, flow: Flow[T]) -> T:
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
                    resume = partial(flow.send, await self._step(step))
                except BaseException as exc:  # noqa: BLE001  # the flow cleans up and raises it again
                    resume = partial(flow.throw, exc)
        finally:
            del resume  # or an error and this frame would keep each other, and views, alive until a collection

    async def _step(self, step: flows.Step) -> Any:
        if isinstance(step, Operation):
            return await self.run(step)
        if isinstance(step, Start):
            return await self._start(step.operation)
        if isinstance(step, Work):
            return step.run() if step.size_bytes < THREAD_BYTES else await _in_thread(step.run)
        assert isinstance(step, AsyncPendingCall)
        return await step.wait()

    # --- giving leases back ---

    def flush(self) -> bool:
        """Sends what died views and dropped reservations left; says whether there may be more later. Opens no connection."""
        if self._link is None or self._link.dead:
            return False
        self._link.flush()
        return self._link.session.book.busy

    def _wake(self) -> None:
        if self._timer is None and not self._closed:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self.flush():
            self._wake()


async def _in_thread(run: Callable[[], T], undo: Callable[[T], Awaitable[None]] | None = None) -> T:
    """The result of `run` in a thread. Cancelling waits for its end: it may be writing into the caller's memory."""
    future = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if undo is not None and future.exception() is None:
            await undo(future.result())
        raise


async def _hang_up(dialled: Dialled) -> None:
    dialled.sock.close()
    for populator in dialled.populators:
        populator.stop()
