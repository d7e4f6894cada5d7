"""Match, Acquire, Adopt, Release and Verify of one connection. DRAM hits are answered without a task or an await."""

import asyncio
import itertools
import secrets
import time
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from mooncask.client import wire
from mooncask.daemon.acquisition import Acquisition, Arrived, Found, wrong_copies
from mooncask.daemon.arrivals import Layers
from mooncask.daemon.insight.lookups import LookupKind
from mooncask.daemon.session import Session, check_columns
from mooncask.daemon.status import block_stat
from mooncask.daemon.windowed import windowed
from mooncask.errors import BadRequest, Busy, DeadlineExceeded, NoSuchBlock
from mooncask.tiers.block import Extent, TierName
from mooncask.tiers.namespace import Namespace
from mooncask.tiers.requests import Match

if TYPE_CHECKING:
    from mooncask.daemon.peers.remote import Remote

LEASES_MAX = 1 << 17
"""Of one process: what a batch a millisecond, never released, reaches within half a minute."""
VERIFIES_MAX = 8
FAR_ROUNDS = 4
_DRAM = bytes([TierName.DRAM])
_TIERS = {int(tier): tier.name.lower() for tier in wire.Tier if tier is not wire.Tier.NONE}

Later = Coroutine[Any, Any, wire.Message | None]


class Reading:
    """The reading requests of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._service = session.service
        self._leases = session.plane.leases
        self._token = session.process.token

    def match(self, request: wire.Match) -> wire.Message | Later:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        found = self._service.match(namespace, request.keys, session.hint, self._token)
        if self._service.remote is not None and len(found) < len(request.keys):
            return self._match_far(request, namespace, found, self._service.remote)
        if self._service.cold is not None and len(found) < len(request.keys):
            found = self._service.match_cold(namespace, request.keys, found)
        return wire.Matched(request.id, found.tiers, found.seconds)

    async def _match_far(
        self, request: wire.Match, namespace: Namespace, found: Match, remote: "Remote"
    ) -> wire.Message:
        """The prefix goes on over what other nodes and the bucket have: now the one, now the other, some times at most."""
        for _ in range(FAR_ROUNDS):
            begun = found.seconds[-1] if found.seconds else 0.0
            more = await remote.locate(namespace, request.keys[len(found) :], begun)
            self._service.matched_far(namespace, len(more.tiers))
            found = Match(found.tiers + more.tiers, found.seconds + more.seconds)
            reached = len(found)
            found = self._service.match_cold(namespace, request.keys, found)
            if len(found) == reached or len(found) == len(request.keys):
                break
        return wire.Matched(request.id, found.tiers, found.seconds)

    def acquire(self, request: wire.Acquire) -> wire.Message | Later:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys(request.keys)
        session.check_shares_memory()
        self._check_room_for(len(request.keys))
        hint = session.hint_of(request.hint)
        self._service.objects.check_one_block(namespace, request.keys)
        held = self._service.store.hold(namespace, request.keys, hint)
        pending = _Pending(self, request, namespace)
        if request.verify:
            checksums = [self._service.store.checksum(namespace, key) for key in request.keys]
            return pending.verified(held, checksums)
        if None not in held:
            count = len(held)
            self._service.lookups.note(
                LookupKind.ACQUIRE, namespace, request.keys, count, hint, self._token, count, request.wait
            )
            self._service.counters["acquire_hit_blocks"] += len(held)
            return pending.reply(range(len(held)), held, _DRAM * len(held), [], more=False)  # type: ignore[arg-type]
        return pending.answer(held)

    def adopt(self, request: wire.Adopt) -> wire.Message:
        session = self._session
        session.check_shares_memory()
        if session.plane.shared.knows(request.token):
            return self._join(request)
        uid = session.process.peer.uid
        leases = self._leases.adopt(request.token, self._token, session.number, uid, session.tenant, time.monotonic())
        keys, ids = [lease.key for lease in leases], [lease.id for lease in leases]
        return self._adopted(request, keys, ids, [lease.extent for lease in leases])

    def _join(self, request: wire.Adopt) -> wire.Message:
        """A lease on each place that somebody else has reserved and lets this process write too."""
        session = self._session
        writings = session.plane.shared.joined(request.token, session)
        self._check_room_for(len(writings))
        extents = [self._service.store.hold_reserved(writing.reservation) for writing in writings]
        keys = [writing.reservation.request.key for writing in writings]
        ids = self._leases.grant(self._token, session.number, keys, extents, time.monotonic())
        return self._adopted(request, keys, ids, extents)

    def _adopted(
        self, request: wire.Adopt, keys: list[bytes], ids: list[int], extents: Sequence[Extent]
    ) -> wire.Message:
        return wire.Adopted(
            request.id,
            keys,
            ids,
            [extent.generation for extent in extents],
            [extent.offset for extent in extents],
            [extent.size for extent in extents],
            _DRAM * len(extents),
        )

    def recomputed(self, request: wire.Recomputed) -> wire.Message | None:
        session = self._session
        namespace = session.namespace(request.namespace)
        session.check_keys([request.key])
        if not 0 < request.blocks <= 1 << 20 or request.tier not in _TIERS:
            raise BadRequest(
                f"{request.blocks} blocks of tier {request.tier} were recomputed: 1 to {1 << 20} of a tier"
            )
        tier = _TIERS[request.tier]
        times = (max(0.0, request.load_seconds), max(0.0, request.compute_seconds))
        session.plane.insight.recomputed.note(namespace.id, request.key, request.blocks, tier, *times)
        return wire.Done(request.id, request.blocks) if request.id else None

    def release(self, request: wire.Release) -> wire.Message | None:
        check_columns(len(request.leases), request.generations)
        if request.id:
            ended = self._leases.release(self._token, request.leases, request.generations)
        else:
            ended = self._leases.release_known(self._token, request.leases, request.generations)
            self._count_unknown(len(request.leases) - len(ended))
        self._session.plane.drop_all(ended)
        return wire.Done(request.id, len(ended)) if request.id else None

    def verify(self, request: wire.Verify) -> Later:
        namespace = self._session.namespace(request.namespace)
        self._session.check_keys(request.keys)
        return self._verify(request, namespace)

    async def _verify(self, request: wire.Verify, namespace: Namespace) -> wire.Message:
        """Blocks that are here and right, in the order asked; None for those that are not, wrong ones quarantined now."""
        limits = self._service.config.limits
        deadline = self._session.deadline(request.deadline_ms, limits.acquire_deadline_max)

        async def checked(key: bytes) -> wire.BlockStat | None:
            try:
                right = self._service.store.has(namespace, key) and await self._service.objects.verify(namespace, key)
            except NoSuchBlock:  # deleted meanwhile
                return None
            info = self._service.store.info(namespace, key) if right else None
            return block_stat(info) if info else None

        try:
            async with asyncio.timeout_at(deadline):
                found = await windowed(request.keys, checked, VERIFIES_MAX)
        except TimeoutError as error:
            raise DeadlineExceeded(f"verify of {len(request.keys)} blocks", request.deadline_ms / 1000) from error
        return wire.Blocks(request.id, found)

    def _check_room_for(self, count: int) -> None:
        held = self._leases.count(self._token)
        if held + count > LEASES_MAX:
            raise Busy(f"this process holds {held} leases; {LEASES_MAX} are allowed: release some")

    def _count_unknown(self, count: int) -> None:
        if count:
            self._session.plane.counters["releases_unknown"] += count


class _Pending:
    """One Acquire until its last reply."""

    def __init__(self, reading: Reading, request: wire.Acquire, namespace: Namespace) -> None:
        self._session = reading._session
        self._service = reading._service
        self._leases = reading._leases
        self._request = request
        self._namespace = namespace
        self._granted: list[int] = []
        self._undecided: set[int] = set()
        self._last_found: list[tuple[int, Found]] = []
        self._last_missed: list[int] = []
        """What was decided when nothing else was left: it goes with the last reply."""

    def answer(self, held: Sequence[Extent | None]) -> wire.Message | Later:
        """Hits now; what may still come becomes a coroutine, unless nothing may or there is no time for it."""
        request, index = self._request, self._namespace.index
        hint = self._session.hint_of(request.hint)
        here = sum(1 for _ in itertools.takewhile(index.__contains__, request.keys))
        self._service.lookups.note(
            LookupKind.ACQUIRE,
            self._namespace,
            request.keys,
            here,
            hint,
            self._session.process.token,
            held.index(None) if None in held else len(held),
            request.wait,
        )
        hits = [i for i, extent in enumerate(held) if extent is not None]
        missing = [i for i, extent in enumerate(held) if extent is None]
        remote = self._service.remote
        all_may = request.wait or (remote is not None and remote.may_have(self._namespace))
        cold = self._service.may_be_cold
        some = [i for i in missing if all_may or request.keys[i] in index or cold(self._namespace, request.keys[i])]
        coming = some if request.deadline_ms > 0 else []
        missed = missing if not coming else sorted(set(missing).difference(coming))
        self._service.counters["acquire_hit_blocks"] += len(hits)
        extents = [extent for extent in held if extent is not None]
        reply = self.reply(hits, extents, _DRAM * len(hits), missed, more=bool(coming))
        self._count_missed(len(missed))
        if not coming:
            return reply
        if hits or missed:
            self._session.send(reply)
        self._undecided = set(coming)
        return self._bring(coming)

    async def verified(self, held: list[Extent | None], checksums: list[bytes | None]) -> wire.Message | None:
        """As `answer`, after the DRAM hits were checked in a thread. Nothing is leased that the client does not learn of."""
        wrong = await wrong_copies(self._service, self._namespace, self._request.keys, held, checksums)
        for i in wrong:
            self._service.store.drop(held[i])  # type: ignore[arg-type]
            held[i] = None
        if self._session.closed:
            self._session.plane.drop_all([extent for extent in held if extent is not None])
            return None
        answer = self.answer(held)
        return answer if isinstance(answer, wire.Message) else await answer

    def reply(
        self, index: Sequence[int], extents: Sequence[Extent], tiers: bytes, missed: list[int], *, more: bool
    ) -> wire.Acquired:
        """Leases `extents` to the process; the caller sends this, with no await in between."""
        request, session = self._request, self._session
        # Only a range is known to be in the keys' own order; what arrives is not, and a lease is adopted by its key.
        keys = request.keys if index == range(len(request.keys)) else [request.keys[i] for i in index]
        leases = self._leases.grant(session.process.token, session.number, keys, extents, time.monotonic())
        token = b""
        if request.want_token:
            self._granted += leases
            token = b"" if more else self._offer()
        return wire.Acquired(
            request.id,
            list(index),
            leases,
            [extent.generation for extent in extents],
            [extent.offset for extent in extents],
            [extent.size for extent in extents],
            tiers,
            missed,
            more,
            token,
        )

    async def _bring(self, coming: list[int]) -> wire.Message | None:
        session, request = self._session, self._request
        deadline = session.deadline(request.deadline_ms, self._service.config.limits.acquire_deadline_max)
        hint = session.hint_of(request.hint)
        acquisition = Acquisition(
            self._service, self._namespace, request.keys, deadline, hint, request.wait, self._progress
        )
        session.acquisitions.add(acquisition)
        try:
            await acquisition.run(coming, self._arrived)
        finally:
            session.acquisitions.discard(acquisition)
        if session.closed:
            return None
        missed = sorted(self._undecided)
        self._count_missed(len(missed))
        return self._reply_found(self._last_found, [*self._last_missed, *missed], more=False)

    def _arrived(self, items: list[Arrived]) -> None:
        """Called only while the connection is there: closing it abandons the acquisition."""
        found = [(item.index, item.found) for item in items if item.found is not None]
        missed = [item.index for item in items if item.found is None]
        self._undecided.difference_update(item.index for item in items)
        self._count_missed(len(missed))
        self._service.counters["acquire_loaded_blocks"] += len(found)
        if self._undecided:
            self._session.send(self._reply_found(found, missed, more=True))
        else:
            self._last_found, self._last_missed = found, missed  # no await from here to the last reply

    def _reply_found(self, found: Sequence[tuple[int, Found]], missed: list[int], *, more: bool) -> wire.Acquired:
        tiers = bytes(place.tier for _, place in found)
        return self.reply([i for i, _ in found], [p.extent for _, p in found], tiers, missed, more=more)

    def _progress(self, index: int, layers: Layers) -> None:
        if not self._session.closed and not self._session.congested:
            self._session.send(wire.Progress(self._request.id, index, layers.done, layers.total))

    def _offer(self) -> bytes:
        process = self._session.process
        return self._leases.offer(
            process.token, self._granted, process.peer.uid, process.tenant, time.monotonic(), secrets.token_bytes(24)
        )

    def _count_missed(self, count: int) -> None:
        self._service.counters["acquire_missed_blocks"] += count
