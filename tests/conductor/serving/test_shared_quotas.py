"""Token quotas in the Conductor's state: several Conductors and restarts give no tenant more than its quota, and little less."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from directory_server import DirectoryServer

from mooncask.conductor.serving.state.opening import opened_state
from mooncask.conductor.serving.state.sqlite import MEMORY, SqliteState
from mooncask.conductor.serving.state.state import Entry, Record, State
from mooncask.conductor.serving.tenants.quotas import DAY, LEASE_SECONDS, MINUTE, SLOTS, Limits
from mooncask.conductor.serving.tenants.shared_quotas import CHANGES_MAX, LEASE_SHARE, SharedQuotas
from mooncask.errors import StateUnavailable, TokenQuotaExceeded

NOW = 1e9
LIMITS = {"acme": Limits(1000, 100_000), "free": Limits()}


@dataclass
class Unsteady:
    """A state that fails as it is told: `lost` calls get no answer, of which every second one was carried out."""

    state: State
    down: bool = False
    lost: int = 0
    calls: int = 0

    async def get(self, table: str, key: str) -> Record | None:
        self._check()
        return await self.state.get(table, key)

    async def put(self, table: str, key: str, value: bytes, version: int) -> int:
        self._check()
        if self.lost:
            self.lost -= 1
            if self.lost % 2:
                await self.state.put(table, key, value, version)
            raise StateUnavailable("here", "the answer is lost")
        return await self.state.put(table, key, value, version)

    async def delete(self, table: str, key: str, version: int) -> bool:
        return await self.state.delete(table, key, version)

    async def records(self, table: str, prefix: str = "") -> list[Record]:
        return await self.state.records(table, prefix)

    async def append(self, entries: Sequence[Entry]) -> list[Entry]:
        return await self.state.append(entries)

    async def entries(self, tenant: str, begin: float, end: float, offset: int, limit: int) -> list[Entry]:
        return await self.state.entries(tenant, begin, end, offset, limit)

    async def forget(self, before: float) -> int:
        return await self.state.forget(before)

    async def close(self) -> None:
        await self.state.close()

    def _check(self) -> None:
        self.calls += 1
        if self.down:
            raise StateUnavailable("here", "it is down")


@asynccontextmanager
async def memory() -> AsyncIterator[State]:
    async with opened_state("memory:", "") as state:
        yield state


async def admitted(quotas: SharedQuotas, tokens: int, now: float = NOW, tenant: str = "acme") -> bool:
    try:
        await quotas.admit(tenant, tokens, now)
    except TokenQuotaExceeded:
        return False
    return True


async def test_two_conductors_give_a_tenant_its_quota_once() -> None:
    async with memory() as state:
        one, other = SharedQuotas(LIMITS, state), SharedQuotas(LIMITS, state)
        got = await asyncio.gather(*(admitted((one, other)[n % 2], 10) for n in range(300)))
        most = 1000 // 10
        assert most - 1000 // LEASE_SHARE // 10 <= sum(got) <= most
        assert not await admitted(one, 100) and not await admitted(other, 100)
        assert await admitted(other, 1000, NOW + MINUTE + LEASE_SECONDS)


async def test_a_conductor_that_starts_anew_knows_what_was_used(tmp_path: Path) -> None:
    async with opened_state(f"sqlite:///{tmp_path}/s.db", "") as state:
        first = SharedQuotas(LIMITS, state)
        async with first.kept():
            assert await admitted(first, 700)
            first.give_back("acme", 100, NOW)
    async with opened_state(f"sqlite:///{tmp_path}/s.db", "") as state:
        second = SharedQuotas(LIMITS, state)
        async with second.kept():
            assert second.used(NOW)["acme"] == {"tokens a minute": (600, 1000), "tokens a day": (600, 100_000)}
            assert not await admitted(second, 401)
            assert await admitted(second, 400)


async def test_what_a_killed_conductor_had_leased_counts_as_used_and_no_more() -> None:
    async with memory() as state:
        killed = SharedQuotas(LIMITS, state)
        assert await admitted(killed, 100)
        after = SharedQuotas(LIMITS, state)
        assert await admitted(after, 1000 - 100 - 1000 // LEASE_SHARE)
        assert not await admitted(after, 1)


async def test_most_requests_of_a_busy_tenant_ask_nobody() -> None:
    async with memory() as state:
        counted = Unsteady(state)
        quotas = SharedQuotas(LIMITS, counted)
        for n in range(40):
            assert await admitted(quotas, 10, NOW + n * 0.01)
        assert counted.calls <= 12
        at_once = SharedQuotas({"acme": Limits(100_000)}, counted)
        counted.calls = 0
        assert all(await asyncio.gather(*(admitted(at_once, 10) for _ in range(100))))
        assert counted.calls <= 4


async def test_who_has_no_quota_is_never_asked_about() -> None:
    counted = Unsteady(SqliteState(MEMORY), down=True)
    quotas = SharedQuotas(LIMITS, counted)
    assert await admitted(quotas, 10**9, tenant="free")
    assert await admitted(quotas, 10**9, tenant="nobody")
    assert counted.calls == 0


async def test_while_the_state_is_down_one_counts_alone_and_writes_it_down_afterwards() -> None:
    async with memory() as state:
        unsteady = Unsteady(state)
        quotas = SharedQuotas(LIMITS, unsteady)
        assert await admitted(quotas, 400)
        unsteady.down = True
        assert await admitted(quotas, 500)
        assert not await admitted(quotas, 200)
        quotas.give_back("acme", 300, NOW)
        assert await admitted(quotas, 200)
        calls = unsteady.calls
        assert await admitted(quotas, 100)
        assert unsteady.calls == calls
        unsteady.down = False
        async with quotas.kept():
            pass
        other = SharedQuotas(LIMITS, state)
        async with other.kept():
            assert other.used(NOW)["acme"]["tokens a minute"] == (900, 1000)


async def test_what_a_long_outage_leaves_to_be_written_is_bounded_and_right() -> None:
    async with memory() as state:
        unsteady = Unsteady(state, down=True)
        quotas = SharedQuotas(LIMITS, unsteady)
        hours = [NOW + 7.0 * i for i in range(3000)]
        for now in hours:
            await quotas.admit("acme", 30, now)
            quotas.give_back("acme", 10, now)
        assert len(quotas._accounts["acme"].changes) <= CHANGES_MAX
        assert quotas.used(hours[-1])["acme"]["tokens a day"][0] == 20 * len(hours)
        unsteady.down = False
        async with quotas.kept():
            pass
        async with (other := SharedQuotas(LIMITS, state)).kept():
            used = other.used(hours[-1])["acme"]
            assert used["tokens a day"][0] == 20 * len(hours)
            assert used["tokens a minute"][0] == 20 * sum(now > hours[-1] - MINUTE for now in hours)


@pytest.mark.parametrize("lost", [1, 2])
async def test_a_change_whose_answer_is_lost_is_made_once(lost: int) -> None:
    """lost = 2: it was made; 1: it was not."""
    async with memory() as state:
        unsteady = Unsteady(state)
        quotas = SharedQuotas(LIMITS, unsteady)
        async with quotas.kept():
            assert await admitted(quotas, 600)
            quotas.give_back("acme", 200, NOW)
            unsteady.lost = lost
            assert await admitted(quotas, 100)
            unsteady.lost = 0
        other = SharedQuotas(LIMITS, state)
        async with other.kept():
            assert other.used(NOW)["acme"]["tokens a minute"][0] == 500


async def test_of_a_change_in_doubt_over_which_others_have_written_the_larger_count_stands() -> None:
    async with memory() as state:
        unsteady = Unsteady(state)
        quotas, other = SharedQuotas(LIMITS, unsteady), SharedQuotas(LIMITS, state)
        async with quotas.kept():
            assert await admitted(quotas, 600)
            quotas.give_back("acme", 200, NOW)
            unsteady.lost = 2
            assert await admitted(quotas, 100)
            unsteady.lost = 0
            assert await admitted(other, 50)
        async with other.kept():
            used = other.used(NOW)["acme"]["tokens a minute"][0]
        assert 550 <= used <= 1000


@dataclass
class Late(Unsteady):
    """Its next put gets no answer, and is carried out behind the next question: as from a file that was locked meanwhile."""

    late: bool = False
    under_way: tuple[str, str, bytes, int] | None = None

    async def get(self, table: str, key: str) -> Record | None:
        told = await super().get(table, key)
        if self.under_way is not None:
            call, self.under_way = self.under_way, None
            assert await super().put(*call)
        return told

    async def put(self, table: str, key: str, value: bytes, version: int) -> int:
        if self.late:
            self.late, self.under_way = False, (table, key, value, version)
            raise StateUnavailable("here", "no answer in time")
        return await super().put(table, key, value, version)


async def test_a_change_that_is_made_after_its_record_was_read_again_is_made_once() -> None:
    async with memory() as state:
        late = Late(state)
        quotas = SharedQuotas(LIMITS, late)
        async with quotas.kept():
            assert await admitted(quotas, 600)
            quotas.give_back("acme", 200, NOW)
            late.late = True
            assert await admitted(quotas, 100)
        other = SharedQuotas(LIMITS, state)
        async with other.kept():
            assert other.used(NOW)["acme"]["tokens a minute"][0] == 500


async def test_a_record_that_can_not_be_read_keeps_nobody_from_starting_and_each_counts_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with memory() as state:
        assert await state.put("quotas", "acme", b"\xc1", 0)
        quotas = SharedQuotas(LIMITS, state)
        async with quotas.kept():
            assert await admitted(quotas, 600)
            assert not await admitted(quotas, 600)
        assert "the record of acme can't be read" in caplog.text


async def test_who_goes_away_while_the_state_is_asked_takes_nothing_along() -> None:
    async with memory() as state:
        quotas = SharedQuotas(LIMITS, state)
        async with quotas.kept():
            for _ in range(20):
                asked = [asyncio.create_task(admitted(quotas, 100)) for _ in range(3)]
                await asyncio.sleep(0)
                for one in asked:
                    one.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        other = SharedQuotas(LIMITS, state)
        async with other.kept():
            used = other.used(NOW)["acme"]["tokens a minute"][0]
        assert used % 100 == 0  # a request whose client has gone may count, a lease may not


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[DirectoryServer]:
    pytest.importorskip("valkey", reason="valkey is not installed: pip install mooncask[cluster]")
    with DirectoryServer(tmp_path, "--appendonly", "yes") as server:
        yield server


async def test_on_a_server_conductors_share_the_quota_and_go_on_when_it_is_killed(valkey: DirectoryServer) -> None:
    async with opened_state(valkey.url, "p") as one_state, opened_state(valkey.url, "p") as other_state:
        one, other = SharedQuotas(LIMITS, one_state), SharedQuotas(LIMITS, other_state)
        async with one.kept(), other.kept():
            got = await asyncio.gather(*(admitted((one, other)[n % 2], 50) for n in range(60)))
            assert 18 <= sum(got) <= 20
            valkey.kill()
            assert not await admitted(one, 200)
            assert not await admitted(other, 200)
            assert await admitted(one, 200, NOW + 70)
            valkey.start()
        third = SharedQuotas(LIMITS, one_state)
        async with third.kept():
            assert third.used(NOW + 70)["acme"]["tokens a minute"] == (200, 1000)


@dataclass
class Tally:
    """What was let in, by time, less what was given back."""

    booked: list[tuple[float, int]] = field(default_factory=list)

    def within(self, now: float, seconds: float) -> int:
        return sum(tokens for at, tokens in self.booked if now - seconds < at <= now)


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_conductors_do_no_window_holds_more_than_the_quota(seed: int) -> None:
    """Three of them on one state; they admit, give back, die and start anew."""
    dice, now, tally = random.Random(seed), NOW, Tally()
    limits = {"acme": Limits(1000, 5000)}
    async with memory() as state:
        conductors = [SharedQuotas(limits, state) for _ in range(3)]
        running: list[tuple[int, float, int]] = []
        for _ in range(300):
            now += dice.choice([0.0, 0.01, 0.3, 1.0, 7.0])
            who = dice.randrange(3)
            match dice.choice(["ask", "ask", "ask", "end", "die"]):
                case "ask":
                    tokens = dice.randrange(1, 300)
                    if await admitted(conductors[who], tokens, now):
                        tally.booked.append((now, tokens))
                        running.append((who, now, tokens))
                case "end" if running:
                    owner, at, tokens = running.pop(dice.randrange(len(running)))
                    unused = dice.randrange(tokens + 1)
                    conductors[owner].give_back("acme", unused, at)
                    tally.booked.append((at, -unused))
                case "die" if dice.random() < 0.3:
                    conductors[who] = SharedQuotas(limits, state)
                    running = [one for one in running if one[0] != who]
            assert tally.within(now, MINUTE - LEASE_SECONDS) <= 1000
            assert tally.within(now, DAY - DAY / SLOTS - LEASE_SECONDS) <= 5000
