"""Calls made of several requests, written once for both clients as generators.

A flow yields what is to be done and is sent the result: an `Operation` (do it and give me its value), `Start` (send it
and give me a `Pending`), a `Pending` (wait for it), `Work` (run it where it may take long). It returns the call's value.
Errors are thrown into it where it yielded.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from mooncask.client import operations
from mooncask.client.blocks import Block, Blocks, Slot
from mooncask.client.byte_views import flat_bytes
from mooncask.client.leases import Bytes, LeaseBook
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import AnyOperation, Keys, Match, NewBlocks, Operation
from mooncask.client.session import Limits, ProgressCallback, Session
from mooncask.client.wire import BlockStat, CommitState, HintFields, Tier
from mooncask.errors import BadRequest, DaemonUnavailable, OutOfBounds, UnknownReservation

T = TypeVar("T")

COMMIT_BYTES = 8 << 20
"""A put commits this much at a time, so that the daemon checksums one piece while the client copies the next."""
COPY_WINDOW = 32
"""A copying get holds leases of at most twice this many blocks at a time."""


class Pending(Protocol):
    """A request that was sent."""

    def abandon(self) -> None:
        """Its answer is not wanted."""
        ...


@dataclass(frozen=True, slots=True)
class Start:
    operation: AnyOperation


@dataclass(frozen=True, slots=True)
class Work:
    """A copy of `size_bytes` bytes."""

    run: Callable[[], None]
    size_bytes: int


Step = AnyOperation | Start | Pending | Work
Flow = Generator[Step, Any, T]


class Deadline:
    """One call's time, for all of its requests."""

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._end - time.monotonic())


def match(namespace: NamespaceHandle, keys: Keys, deadline: Deadline, limits: Limits) -> Flow[Match]:
    """Goes on after a piece only if all of it is here."""
    found = Match([], [])
    for start, stop in _pieces(len(keys), limits):
        part: Match = yield operations.match(namespace, keys[start:stop], deadline.left())
        before = found.seconds[-1] if found.seconds else 0.0
        found.tiers.extend(part.tiers)
        found.seconds.extend(before + seconds for seconds in part.seconds)
        if len(part) < stop - start:
            break
    return found


def acquire(
    namespace: NamespaceHandle,
    keys: Keys,
    deadline: Deadline,
    limits: Limits,
    wait: bool,
    verify: bool,
    hint: HintFields | None,
    progress: ProgressCallback | None,
) -> Flow[Blocks]:
    """More keys than one request takes: several at once, one result. No token, since a token stands for one request."""

    def numbered(start: int) -> ProgressCallback | None:
        tell = progress
        return None if tell is None else (lambda index, layer, layers: tell(start + index, layer, layers))

    asked = [
        Start(operations.acquire(namespace, keys[a:b], deadline.left(), wait, verify, False, hint, numbered(a)))
        for a, b in _pieces(len(keys), limits)
    ]
    parts: list[Blocks] = yield from _gather(asked)
    items = [item for part in parts for item in part]
    return Blocks(items, parts[0].book if parts else LeaseBook())


def acquire_described(
    namespace: NamespaceHandle, keys: Keys, deadline: Deadline
) -> Flow[tuple[Blocks, list[BlockStat | None]]]:
    """Leases and descriptions of the same versions: at most one request's worth of keys, mostly in one round trip."""
    seconds = deadline.left()
    blocks, found = yield from _gather(
        [Start(operations.acquire(namespace, keys, seconds)), Start(operations.stat(namespace, keys, seconds))]
    )
    if any(block is not None and block.tier is not Tier.DRAM for block in blocks):
        # It was described while it was still being loaded; what is asked for now is answered after the lease began.
        found = yield operations.stat(namespace, keys, deadline.left())
    return blocks, found


def counted(
    build: Callable[[Keys, float], Operation[int]], keys: Keys, deadline: Deadline, limits: Limits
) -> Flow[int]:
    """A request that says how many blocks it changed, over any number of keys."""
    total = 0
    for start, stop in _pieces(len(keys), limits):
        count: int = yield build(keys[start:stop], deadline.left())
        total += count
    return total


def listed(
    build: Callable[[Keys, float], Operation[list[T]]], keys: Keys, deadline: Deadline, limits: Limits
) -> Flow[list[T]]:
    """A request that answers an item a key, over any number of keys."""
    found: list[T] = []
    for start, stop in _pieces(len(keys), limits):
        part: list[T] = yield build(keys[start:stop], deadline.left())
        found.extend(part)
    return found


def get_into(
    namespace: NamespaceHandle, keys: Keys, buffers: Sequence[Any], deadline: Deadline, hint: HintFields | None
) -> Flow[list[bool]]:
    """Acquires a window of blocks while the one before is copied."""
    if len(keys) != len(buffers):
        raise BadRequest(f"{len(keys)} keys and {len(buffers)} buffers; each key needs one")
    targets = [flat_bytes(buffer, writable=True) for buffer in buffers]
    windows = [(a, min(a + COPY_WINDOW, len(keys))) for a in range(0, len(keys), COPY_WINDOW)]
    under_way: list[Pending] = []
    found: list[bool] = []
    try:
        for number in range(len(windows) + 1):
            if number < len(windows):
                a, b = windows[number]
                operation = operations.acquire(namespace, keys[a:b], deadline.left(), hint=hint)
                under_way.append((yield Start(operation)))
            if number > 0:
                blocks: Blocks = yield under_way.pop(0)
                a, b = windows[number - 1]
                with blocks:
                    yield _copy_out(blocks, targets[a:b])
                    found.extend(block is not None for block in blocks)
        return found
    finally:
        for pending in under_way:
            pending.abandon()


def put(
    namespace: NamespaceHandle,
    new: NewBlocks,
    sources: Sequence[Bytes],
    deadline: Deadline,
    limits: Limits,
    durable: bool,
    digests: Sequence[bytes],
) -> Flow[list[CommitState]]:
    """Reserve, copy and commit, with the commits under way while the next bytes are copied."""
    states = [CommitState.HAVE_IT] * len(sources)
    commits: list[tuple[list[int], Pending]] = []
    try:
        for start, stop in _pieces(len(sources), limits, new.sizes):
            session, slots = yield operations.reserve(namespace, new.part(start, stop), deadline.left())
            yield from _fill(session, slots, start, sources, deadline, durable, digests, commits)
        while commits:
            indexes, pending = commits.pop(0)
            answered: list[CommitState] = yield pending
            for index, state in zip(indexes, answered, strict=True):
                states[index] = state
        return states
    finally:
        for _, pending in commits:
            pending.abandon()


def _fill(
    session: Session,
    slots: Sequence[Slot | None],
    start: int,
    sources: Sequence[Bytes],
    deadline: Deadline,
    durable: bool,
    digests: Sequence[bytes],
    commits: list[tuple[list[int], Pending]],
) -> Flow[None]:
    """Copies into the slots and starts their commits; what is not committed when this fails is given back."""
    waiting = [(start + i, slot) for i, slot in enumerate(slots) if slot is not None]
    try:
        while waiting:
            piece = waiting[: _piece_length(waiting)]
            yield _copy_in(piece, sources)
            chosen = [digests[index] for index, _ in piece] if digests else []
            for _, slot in piece:
                slot.settle()
            operation = operations.commit(session, [slot for _, slot in piece], deadline.left(), durable, chosen)
            try:
                pending: Pending = yield Start(operation)
            except UnknownReservation as exc:
                # To whoever puts, places are nothing: the daemon went away, and the put can be repeated.
                raise DaemonUnavailable(session.address, "the connection was cut in the middle of a put") from exc
            commits.append(([index for index, _ in piece], pending))
            del waiting[: len(piece)]
    finally:
        for _, slot in waiting:
            slot.close()


def _piece_length(waiting: Sequence[tuple[int, Slot]]) -> int:
    total = 0
    for count, (_, slot) in enumerate(waiting, 1):
        total += slot.size
        if total >= COMMIT_BYTES:
            return count
    return len(waiting)


def _copy_in(piece: Sequence[tuple[int, Slot]], sources: Sequence[Bytes]) -> Work:
    pairs = [(slot.numpy(), sources[index]) for index, slot in piece]
    return _copy(pairs)


def _copy_out(blocks: Blocks, targets: Sequence[Bytes]) -> Work:
    pairs = [
        (_fitting(block, target), block.numpy())
        for block, target in zip(blocks, targets, strict=True)
        if block is not None
    ]
    return _copy(pairs)


def _fitting(block: Block, target: Bytes) -> Bytes:
    if target.nbytes < block.size:
        raise OutOfBounds(block.key.hex(), 0, target.nbytes, block.size)
    return target[: block.size]


def _copy(pairs: Sequence[tuple[Bytes, Bytes]]) -> Work:
    def run() -> None:
        for target, source in pairs:
            np.copyto(target, source)  # releases the GIL, which a memoryview's slice assignment does not

    return Work(run, sum(target.nbytes for target, _ in pairs))


def _gather(starts: Sequence[Start]) -> Flow[list[Any]]:
    under_way: list[Pending] = []
    try:
        for start in starts:
            under_way.append((yield start))
        found: list[Any] = []
        while under_way:
            found.append((yield under_way.pop(0)))
        return found
    finally:
        for pending in under_way:
            pending.abandon()


def _pieces(count: int, limits: Limits, sizes: Sequence[int] | None = None) -> Iterator[tuple[int, int]]:
    """[start, stop) of parts within the limits (a single larger item is a part)."""
    start = total = 0
    for i in range(count):
        size = sizes[i] if sizes is not None else 0
        if i > start and (i - start >= limits.batch or total + size > limits.reserve_bytes):
            yield start, i
            start, total = i, 0
        total += size
    if count > start:
        yield start, count
