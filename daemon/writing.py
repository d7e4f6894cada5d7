"""Expect, Reserve, Advance, Commit and Abort of one connection."""

import secrets
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from mooncask.client import wire
from mooncask.client.wire import CommitState
from mooncask.daemon.namespace_door import block_tokens
from mooncask.daemon.service import Committing, Writing
from mooncask.daemon.session import Session, check_columns, optional_column
from mooncask.daemon.windowed import windowed
from mooncask.errors import AccessDenied, BadRequest, MooncaskError, NotEvictable, UnknownReservation, error_data
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import PutRequest, Reservation

_U32 = 1 << 32
COMMITS_AT_A_TIME = 32
"""The loop serves nobody while these are published, after a thread has checked them: about a millisecond."""

Later = Coroutine[Any, Any, wire.Message | None]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of one item of a Commit. A block that is published and did not become durable has an error too."""

    state: CommitState
    error: MooncaskError | None = None


def _outcome(found: CommitState | MooncaskError) -> _Outcome:
    return _Outcome(CommitState.FAILED, found) if isinstance(found, MooncaskError) else _Outcome(found)


class WritingRequests:
    """The writing requests of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service

    def expect(self, request: wire.Expect) -> wire.Message:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        if not 0 < request.ttl_ms <= 3_600_000:
            raise BadRequest(f"expect for {request.ttl_ms} ms: 1 to 3600000 are allowed")
        count = self._service.expect(namespace, request.keys, session.process, request.ttl_ms / 1000)
        return wire.Done(request.id, count)

    # --- reserve ---

    def reserve(self, request: wire.Reserve) -> Later:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        session.check_shares_memory()
        if request.share and session.staging is not None:
            raise AccessDenied("only writers in the arena itself can share a place; see socket.trusted_writers")
        return self._reserve(request, namespace, _put_requests(request, session))

    async def _reserve(
        self, request: wire.Reserve, namespace: Namespace, puts: list[PutRequest]
    ) -> wire.Message | None:
        session = self._session
        deadline = session.deadline(request.deadline_ms, self._service.config.limits.reserve_deadline_max)
        offsets = await self._stage(puts, deadline)
        try:
            writings = await self._service.reserve(namespace, puts, deadline, request.layers)
        except BaseException:
            self._unstage(puts, offsets, [None] * len(puts))
            raise
        if session.closed:  # cut while it waited: nobody was told of these places, so nobody writes into them
            for writing in filter(None, writings):
                self._service.abort(writing)
            return None
        self._unstage(puts, offsets, writings)
        return self._reserved(request, writings, offsets)

    def _reserved(self, request: wire.Reserve, writings: list[Writing | None], offsets: list[int]) -> wire.Message:
        places = []
        for i, writing in enumerate(writings):
            if writing is None:
                places.append((0, 0, 0))
                continue
            writing.staging_offset = offsets[i] if offsets else -1
            self._session.writings[writing.id] = writing
            places.append((writing.id, writing.generation, offsets[i] if offsets else writing.extent.offset))
        opened = [writing for writing in writings if writing is not None]
        shared = self._session.plane.shared
        token = shared.share(self._session, opened, secrets.token_bytes(24)) if request.share and opened else b""
        return wire.Reserved(request.id, [p[0] for p in places], [p[1] for p in places], [p[2] for p in places], token)

    async def _stage(self, puts: list[PutRequest], deadline: float) -> list[int]:
        """Places in the staging area, for all; none where the writer uses the arena itself."""
        if self._session.staging is None:
            return []
        return await self._session.staging.allocate([put.size for put in puts], deadline)

    def _unstage(self, puts: list[PutRequest], offsets: list[int], writings: list[Writing | None]) -> None:
        """Gives back the places of blocks that need not be written."""
        if self._session.staging is None:
            return
        for put, offset, writing in zip(puts, offsets, writings, strict=True):
            if writing is None:
                self._session.staging.free(offset, put.size)

    # --- advance, commit, abort ---

    def advance(self, request: wire.Advance) -> wire.Message | None:
        writings = [self._session.writings.get(number) for number in request.reservations]
        for number, writing in zip(request.reservations, writings, strict=True):
            if writing is None:
                raise UnknownReservation(number)
            if not 0 <= request.layer <= writing.layers:
                raise BadRequest(
                    f"advance to layer {request.layer} of {writing.layers}: reserve says how many there are"
                )
        for writing in writings:
            assert writing is not None
            self._service.advance(writing, request.layer)
        return wire.Done(request.id, len(writings)) if request.id else None

    def commit(self, request: wire.Commit) -> Later:
        session = self._session
        writings = session.writings_named(request.reservations, request.generations)
        digests = request.digests if optional_column(len(writings), request.digests) else [b""] * len(writings)
        if any(len(digest) not in (0, 16) for digest in digests):
            raise BadRequest("a digest is 16 bytes of xxh3_128, big endian, or empty")
        token_ids = _token_ids(request, writings)
        if request.durable:
            for writing in writings:
                self._service.check_can_be_durable(writing.reservation.namespace)
        for writing in writings:  # from here on a second commit is an unknown reservation
            del session.writings[writing.id]
        deadline = session.deadline(request.deadline_ms, self._service.config.limits.reserve_deadline_max)
        # The staged bytes are taken now: the connection, and its staging area with it, may be gone before a task runs.
        items = [
            Committing(writing, digest, self._staged(writing), token_ids=ids)
            for writing, digest, ids in zip(writings, digests, token_ids, strict=True)
        ]
        return self._commit_all(request, items, deadline)

    async def _commit_all(self, request: wire.Commit, items: list[Committing], deadline: float) -> wire.Message:
        states = await self._publish(items)
        outcomes = await self._made_durable(items, states, deadline) if request.durable else states
        failures = [
            wire.Failure(i, type(outcome.error).__name__, outcome.error.message, error_data(outcome.error))
            for i, outcome in enumerate(outcomes)
            if outcome.error is not None
        ]
        return wire.Committed(request.id, bytes(outcome.state for outcome in outcomes), failures)

    async def _publish(self, items: list[Committing]) -> list[_Outcome]:
        """So many at a time that others get their turn in between."""
        outcomes: list[_Outcome] = []
        waiting = list(items)
        try:
            while waiting:
                share, waiting = waiting[:COMMITS_AT_A_TIME], waiting[COMMITS_AT_A_TIME:]
                found = await self._service.commit_many(share)
                outcomes += map(_outcome, found)
        finally:
            for item in waiting:  # cancelled: what was not begun
                self._service.abort(item.writing)
            if not self._session.closed:
                for item in items:
                    self._session.unstage(item.writing)
        return outcomes

    async def _made_durable(self, items: list[Committing], states: list[_Outcome], deadline: float) -> list[_Outcome]:
        """All at once, so that they reach the disk in the same batches."""

        async def durable(pair: tuple[Committing, _Outcome]) -> _Outcome:
            item, outcome = pair
            if outcome.error is not None:
                return outcome
            reservation = item.writing.reservation
            try:
                await self._service.durable(reservation.namespace, reservation.request.key, deadline)
            except NotEvictable as error:
                return _Outcome(self._withdrawn(reservation, outcome.state), error)
            except MooncaskError as error:
                return _Outcome(outcome.state, error)
            return _Outcome(CommitState.DURABLE if outcome.state is CommitState.PUBLISHED else outcome.state)

        return await windowed(list(zip(items, states, strict=True)), durable, at_a_time=len(items))

    def _withdrawn(self, reservation: Reservation, state: CommitState) -> CommitState:
        """An object that found no room on NVMe could not be evicted from DRAM either: it is taken back."""
        namespace = reservation.namespace
        if namespace.spec.evictable or state is not CommitState.PUBLISHED:
            return state
        withdrawn = self._service.store.withdraw(namespace, reservation.request.key)
        return CommitState.FAILED if withdrawn else state

    def _staged(self, writing: Writing) -> memoryview | None:
        if writing.staging_offset < 0:
            return None
        assert self._session.staging is not None
        return self._session.staging.view(writing.staging_offset, writing.reservation.request.size)

    def abort(self, request: wire.Abort) -> wire.Message | None:
        """Also for places that were parked when an earlier connection of this process was cut."""
        session = self._session
        parked = session.process.parked
        check_columns(len(request.reservations), request.generations)
        pairs = list(zip(request.reservations, request.generations, strict=True))
        old = [n for n, g in pairs if n in parked and parked[n].generation == g]
        pairs = [(n, g) for n, g in pairs if n not in old]
        writings = session.writings_named([n for n, _ in pairs], [g for _, g in pairs])
        for writing in writings:
            del session.writings[writing.id]
            session.unstage(writing)
            self._service.abort(writing)
        for number in dict.fromkeys(old):
            self._service.abort(parked.pop(number))
        return wire.Done(request.id, len(request.reservations)) if request.id else None


def _token_ids(request: wire.Commit, writings: list[Writing]) -> list[bytes]:
    """Of each block, or empty. Raises BadRequest."""
    if not optional_column(len(writings), request.token_ids):
        return [b""] * len(writings)
    for writing, ids in zip(writings, request.token_ids, strict=True):
        tokens = writing.reservation.request.tokens
        if ids and len(ids) != 4 * tokens:
            raise BadRequest(f"{len(ids)} bytes of token ids for a block of {tokens} tokens, at 4 bytes each")
    return request.token_ids


def _put_requests(request: wire.Reserve, session: Session) -> list[PutRequest]:
    """The batch, checked. Raises BadRequest."""
    count = len(request.keys)
    check_columns(count, request.sizes)
    if len(set(request.keys)) < count:
        raise BadRequest("a key stands twice in one reserve")
    if min(request.sizes) < 0 or not 0 <= request.layers < _U32:
        raise BadRequest("sizes and layers can't be negative")
    parents = request.parents if optional_column(count, request.parents) else [b""] * count
    depths = request.depths if optional_column(count, request.depths) else [0] * count
    default = block_tokens(session.namespace(request.namespace).spec.family)
    tokens = request.tokens if optional_column(count, request.tokens) else [default] * count
    if max(map(len, parents)) > wire.KEY_BYTES_MAX:
        raise BadRequest(f"a parent's key has at most {wire.KEY_BYTES_MAX} bytes")
    if min(*depths, *tokens) < 0 or max(*depths, *tokens) >= _U32:
        raise BadRequest("depths and tokens lie in [0, 2^32)")
    hint = session.hint_of(request.hint)
    columns = zip(request.keys, request.sizes, parents, depths, tokens, strict=True)
    return [PutRequest(key, size, parent, depth, token, hint) for key, size, parent, depth, token in columns]
