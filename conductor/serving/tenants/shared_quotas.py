"""The tenants' windows in the Conductor's state: a restart forgets nothing, and several Conductors count together.

A Conductor books ahead for a few requests in one go (a lease) and admits from that without asking anybody; what it did not use
within LEASE_SECONDS it gives back. So no tenant ever gets more than its quota, but for a minute or day that may be
LEASE_SECONDS short. It may get less: what a Conductor has leased (at most a LEASE_SHARE-th of the quota beside the request itself)
is out of reach of the others for a moment; of one that was killed its lease, and all that its requests might have used, count
until they leave the window.

While the state does not answer each Conductor counts for itself, on top of what it saw there last, and writes it down afterwards.
"""

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from mooncask.conductor.serving.state.state import Record, State
from mooncask.conductor.serving.tenants.quotas import LEASE_SECONDS, Limits, Refusal, Windows, folded
from mooncask.errors import StateUnavailable, TokenQuotaExceeded

log = logging.getLogger(__name__)

TABLE = "quotas"
LEASE_REQUESTS = 4
"""A lease is for so many requests like the one that needs it."""
LEASE_SHARE = 20
SEEN_SECONDS = 0.25
"""A record that was read so lately is believed when it says no."""
STATE_SECONDS = 1.0
"""A request waits no longer for the state."""
AGAIN_SECONDS = 1.0
"""After a failure; until then nobody waits."""
DOUBT_SECONDS = 15.0
"""A change whose answer did not come may still be made so much later: a file that somebody else locks, a server that is busy."""
TICK_SECONDS = 0.5
TRIES_MAX = 50
"""Of a change that others are faster with."""
CHANGES_MAX = 256
"""Seconds in which something was booked and is not written; beyond, older ones are taken together."""


@dataclass(frozen=True, slots=True)
class _Doubt:
    """A change that was sent: what it makes of the record. Whether it was made is not known before it is answered."""

    value: bytes
    sent_at: float
    """On the loop's clock."""
    written: Mapping[int, int]
    tokens: int
    """Of the request that waits for it; in doubt that has counted them elsewhere, or is gone."""
    ahead: int
    at: float


@dataclass(slots=True)
class _Account:
    """One tenant's. `windows`: as they are, with what is not written yet."""

    tenant: str
    limits: Limits
    windows: Windows
    value: bytes = b""
    version: int = 0
    seen_at: float = float("-inf")
    """When the record was read or written, on the loop's clock; what others did since is not in it."""
    left: int = 0
    """Of the lease."""
    leased_at: float = 0.0
    changes: Counter[int] = field(default_factory=Counter)
    """Not written yet: tokens by the second in which they were booked; less than 0: to be given back."""
    waiting_tokens: int = 0
    doubts: list[_Doubt] = field(default_factory=list)
    """Of the record's `version`, so one of them can be made at most; oldest first."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def settled(self) -> bool:
        """Nothing is left to be written."""
        return not self.changes and not self.left and not self.doubts

    def take(self, tokens: int, now: float) -> bool:
        """From the lease, if that has so much."""
        if self.left < tokens or abs(now - self.leased_at) >= LEASE_SECONDS:
            return False
        self.left -= tokens
        return True

    @contextlib.asynccontextmanager
    async def turn(self, tokens: int) -> AsyncIterator[None]:
        """One at a time; who has it knows what the others wait for."""
        self.waiting_tokens += tokens
        try:
            await self.lock.acquire()
        finally:
            self.waiting_tokens -= tokens
        try:
            yield
        finally:
            self.lock.release()

    def change(self, tokens: int, at: float) -> None:
        if tokens:
            self.changes[int(at)] += tokens
            self.windows.change(tokens, at)
            if len(self.changes) > CHANGES_MAX:
                self.changes = folded(self.changes)

    def end_lease(self) -> None:
        """What is left of it is to be given back."""
        left, self.left = self.left, 0
        self.change(-left, self.leased_at)

    def read(self, record: Record | None, at: float) -> None:
        """What stands in the state. Raises msgspec.DecodeError."""
        value, version = (record.value, record.version) if record is not None else (b"", 0)
        Windows(self.limits, value)
        doubts = self.doubts
        if version == self.version:
            self.doubts = [doubt for doubt in doubts if at - doubt.sent_at < DOUBT_SECONDS]
        else:
            self.doubts = []
            made = next((doubt for doubt in doubts if doubt.value == value), None)
            if made is not None:
                self.written(made, version, at)
                self.left += made.tokens
                return
            self._drop(_given_back(doubts))  # somebody else has written, maybe on top of one of them: it counts as used
        self.value, self.version, self.seen_at = value, version, at
        self.windows = self.with_changes(self.changes)

    def written(self, change: _Doubt, version: int, at: float) -> None:
        """The change was made; what was in doubt beside it was not, and can't be any more."""
        self.doubts, self.value, self.version, self.seen_at = [], change.value, version, at
        self._drop(change.written)
        self.windows = self.with_changes(self.changes)
        self.left, self.leased_at = self.left + change.ahead, change.at

    def with_changes(self, changes: Mapping[int, int]) -> Windows:
        """The record with these changes; what is given back was booked before."""
        windows = Windows(self.limits, self.value)
        for second, tokens in sorted(changes.items(), key=lambda change: change[1] < 0):
            windows.change(tokens, second)
        return windows

    def _drop(self, written: Mapping[int, int]) -> None:
        for second, tokens in written.items():
            self.changes[second] -= tokens
            if not self.changes[second]:
                del self.changes[second]


def _given_back(doubts: Sequence[_Doubt]) -> dict[int, int]:
    """The most that any of them gave back, by second, less than 0."""
    least: Counter[int] = Counter()
    for doubt in doubts:
        for second, tokens in doubt.written.items():
            least[second] = min(least[second], tokens)
    return dict(least)


class SharedQuotas:
    """Of all tenants that have limits. Belongs to one event loop."""

    def __init__(self, limits: Mapping[str, Limits], state: State) -> None:
        self._state = state
        self._accounts = {tenant: _Account(tenant, one, Windows(one)) for tenant, one in limits.items() if one.least}
        self._touched: set[str] = set()
        """Who may have a lease, or changes that are not written yet."""
        self._down_until = float("-inf")
        self._said = ""
        """The last failure, until the state has answered again."""

    async def admit(self, tenant: str, tokens: int, now: float) -> None:
        """Books them in every window, or in none. `now`: seconds since 1970. Raises TokenQuotaExceeded."""
        account = self._accounts.get(tenant)
        if account is None or account.take(tokens, now):
            return
        self._touched.add(tenant)
        async with account.turn(tokens):
            if account.take(tokens, now):
                return
            refusal = await self._book(account, tokens, now)
        if refusal is not None:
            raise TokenQuotaExceeded(tenant, refusal.what, refusal.limit, refusal.seconds or 0.0)

    def give_back(self, tenant: str, tokens: int, booked_at: float) -> None:
        """What a request did not use that was admitted then. It is in the state a moment later."""
        if (account := self._accounts.get(tenant)) is not None:
            account.change(-tokens, booked_at)
            self._touched.add(tenant)

    def used(self, now: float) -> dict[str, dict[str, tuple[int, int]]]:
        """By tenant and kind of window: tokens used and the limit, as far as they are known here."""
        return {tenant: account.windows.used(now, account.left) for tenant, account in self._accounts.items()}

    @contextlib.asynccontextmanager
    async def kept(self) -> AsyncIterator[None]:
        """Reads what stands in the state; writes behind what happens while it is open, and at its end what is left."""
        await self._read_all()
        task = asyncio.create_task(self._keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._down_until = float("-inf")
            for tenant in list(self._touched):
                await self._settle(self._accounts[tenant])

    # --- booking ---

    async def _book(self, account: _Account, tokens: int, now: float) -> Refusal | None:
        """In the state, with a lease for what may come; here alone when that does not answer."""
        account.end_lease()
        if not self._is_down():
            try:
                return await self._change(account, tokens, now)
            except StateUnavailable as exc:
                self._failed(exc)
        refusal = account.windows.refusal(tokens, now)
        if refusal is None:
            account.change(tokens, now)
        return refusal

    async def _change(self, account: _Account, tokens: int, now: float) -> Refusal | None:
        """Writes what is not written yet, and books `tokens`. The caller has the lock. Raises StateUnavailable."""
        try:
            async with asyncio.timeout(STATE_SECONDS):
                for _ in range(TRIES_MAX):
                    done, refusal = await self._try(account, tokens, now)
                    if done:
                        return refusal
        except TimeoutError as exc:
            raise StateUnavailable(TABLE, f"no answer within {STATE_SECONDS} s") from exc
        except msgspec.DecodeError as exc:
            raise StateUnavailable(TABLE, f"the record of {account.tenant} can't be read: {exc}") from exc
        raise StateUnavailable(TABLE, f"the record of {account.tenant} is changed all the time")

    async def _try(self, account: _Account, tokens: int, now: float) -> tuple[bool, Refusal | None]:
        """One try: whether it is done, and why it was refused. `tokens` 0: only writes."""
        loop = asyncio.get_running_loop()
        if account.doubts or account.seen_at == float("-inf"):
            account.read(await self._state.get(TABLE, account.tenant), loop.time())
        account.end_lease()
        written = dict(account.changes)
        windows = account.with_changes(written)
        refusal = windows.refusal(tokens, now) if tokens else None
        if refusal is not None:
            if loop.time() - account.seen_at <= SEEN_SECONDS:
                return True, refusal
            account.seen_at = float("-inf")
            return False, None
        if not tokens and not written:
            return True, None
        ahead = self._ahead(account, tokens, windows.room(now) - tokens) if tokens else 0
        if tokens:
            windows.change(tokens + ahead, now)
        change = _Doubt(windows.encoded(), loop.time(), written, tokens, ahead, now)
        account.doubts.append(change)
        version = await self._state.put(TABLE, account.tenant, change.value, account.version)
        if version:
            account.written(change, version, loop.time())
            return True, None
        account.doubts.pop()
        account.seen_at = float("-inf")
        return False, None

    def _ahead(self, account: _Account, tokens: int, room: int) -> int:
        """For those who wait already, and for a few more."""
        more = min((LEASE_REQUESTS - 1) * tokens, account.limits.least // LEASE_SHARE)
        return max(0, min(room, max(account.waiting_tokens, more)))

    def _is_down(self) -> bool:
        return asyncio.get_running_loop().time() < self._down_until

    def _failed(self, error: StateUnavailable) -> None:
        if error.message != self._said:
            log.warning("quotas are counted here alone for now: %s", error.message)
        self._said = error.message
        self._down_until = asyncio.get_running_loop().time() + AGAIN_SECONDS

    # --- beside the requests ---

    async def _keep(self) -> None:
        """Writes what is to be written, and looks at one tenant after the other for what others did: the pages show it."""
        everybody = itertools.cycle(self._accounts.values())
        while True:
            await asyncio.sleep(TICK_SECONDS)
            try:
                await self._settle_touched()
                if self._accounts:
                    await self._refresh(next(everybody))
            except Exception:  # the top of this task: nothing would be given back any more
                log.exception("quotas could not be written")

    async def _settle_touched(self) -> None:
        for account in [self._accounts[tenant] for tenant in self._touched]:
            if account.changes or account.doubts or abs(time.time() - account.leased_at) >= LEASE_SECONDS:
                await self._settle(account)
            if account.settled:
                self._touched.discard(account.tenant)

    async def _settle(self, account: _Account) -> None:
        """Nothing is left unwritten, if the state answers."""
        async with account.lock:
            account.end_lease()
            if not account.settled and not self._is_down():
                try:
                    await self._change(account, 0, time.time())
                except StateUnavailable as exc:
                    self._failed(exc)

    async def _refresh(self, account: _Account) -> None:
        """What others did, for the pages."""
        async with account.lock:
            if self._is_down():
                return
            try:
                async with asyncio.timeout(STATE_SECONDS):
                    record = await self._state.get(TABLE, account.tenant)
                account.read(record, asyncio.get_running_loop().time())
                self._said = ""
            except TimeoutError:
                self._failed(StateUnavailable(TABLE, f"no answer within {STATE_SECONDS} s"))
            except StateUnavailable as exc:
                self._failed(exc)
            except msgspec.DecodeError as exc:
                log.warning("what tenant %s has used can't be read: %s", account.tenant, exc)

    async def _read_all(self) -> None:
        """Raises StateUnavailable. A record that can't be read stops nobody from starting: it is said when it is asked for."""
        now = asyncio.get_running_loop().time()
        for record in await self._state.records(TABLE):
            if (account := self._accounts.get(record.key)) is not None:
                with contextlib.suppress(msgspec.DecodeError):
                    account.read(record, now)
