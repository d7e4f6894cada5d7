"""The lease table against a naive oracle: every extent it was given comes back exactly once, and never too early."""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mooncask.daemon.leases import OFFER_SECONDS, Ids, LeaseTable
from mooncask.errors import AccessDenied, BadRequest, UnknownLease
from mooncask.tiers.block import Extent, TierName

PROCESSES = [b"p" * 16, b"q" * 16, b"r" * 16]
LEASE_SECONDS_MAX = 20.0
PICKS = st.lists(st.integers(0, 999), max_size=4)


def extent(number: int) -> Extent:
    return Extent(TierName.DRAM, number * 4096, 4096, generation=1000 + number, size=100)


def granted(table: LeaseTable, process: bytes, connection: int, count: int, now: float = 0.0) -> list[int]:
    extents = [extent(i) for i in range(count)]
    return table.grant(process, connection, [b"k"] * count, extents, now)


@dataclass
class Held:
    """What the oracle knows of one lease."""

    process: bytes
    connection: int
    extent: Extent
    granted: float
    overstayed: bool = False


class Leases(RuleBasedStateMachine):
    """The oracle is a dict of leases; connections are numbers that belong to a process. Rules pick among all ids ever given."""

    def __init__(self) -> None:
        super().__init__()
        self.table = LeaseTable(Ids(1 << 40))
        self.held: dict[int, Held] = {}
        self.given: list[int] = []
        self.open: dict[int, bytes] = {}
        self.connections = 0
        self.extents = 0
        self.now = 0.0

    def came_back(self, found: list[Extent], wanted: list[int]) -> None:
        assert sorted(e.generation for e in found) == sorted(self.held[n].extent.generation for n in wanted)
        for number in wanted:
            del self.held[number]

    def picked(self, picks: list[int]) -> list[int]:
        """Ids that were given at some time, each once; recent ones are picked as often as all older ones together."""
        recent = self.given[-6:]
        pool = recent + self.given
        return list(dict.fromkeys(pool[pick % len(pool)] for pick in picks)) if pool else []

    @initialize()
    def begin(self) -> None:
        self.connect(PROCESSES[0], [])

    @rule(process=st.sampled_from(PROCESSES), picks=PICKS)
    def connect(self, process: bytes, picks: list[int]) -> None:
        named = self.picked(picks)
        self.connections += 1
        orphans = {n: h for n, h in self.held.items() if h.process == process and h.connection == 0}
        resumed = self.table.resume(process, self.connections, named)
        assert set(resumed.ids) == {n for n, h in orphans.items() if n in named and not h.overstayed}
        for number in resumed.ids:
            self.held[number].connection = self.connections
        self.came_back(resumed.freed, [n for n in orphans if n not in named])
        self.open[self.connections] = process

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9), count=st.integers(1, 3))
    def grant(self, which: int, count: int) -> None:
        connection = sorted(self.open)[which % len(self.open)]
        extents = [extent(self.extents + i) for i in range(count)]
        self.extents += count
        ids = self.table.grant(self.open[connection], connection, [b"k"] * count, extents, self.now)
        assert not set(ids) & set(self.held), "ids are never reused"
        for number, place in zip(ids, extents, strict=True):
            self.held[number] = Held(self.open[connection], connection, place, self.now)
        self.given += ids

    @rule(process=st.sampled_from(PROCESSES), picks=PICKS, wrong=st.booleans())
    def release(self, process: bytes, picks: list[int], wrong: bool) -> None:
        numbers = self.picked(picks)
        generations = [self.held[n].extent.generation if n in self.held else 7 for n in numbers]
        if wrong and generations:
            generations[0] += 1
        good = [
            n
            for n, g in zip(numbers, generations, strict=True)
            if n in self.held and self.held[n].process == process and self.held[n].extent.generation == g
        ]
        if len(good) < len(numbers):
            with pytest.raises(UnknownLease):
                self.table.release(process, numbers, generations)
            self.came_back(self.table.release_known(process, numbers, generations), good)
        else:
            self.came_back(self.table.release(process, numbers, generations), good)

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 9))
    def cut(self, which: int) -> None:
        connection = sorted(self.open)[which % len(self.open)]
        process = self.open.pop(connection)
        self.table.cut(process, connection)
        for lease in self.held.values():
            if lease.connection == connection:
                lease.connection = 0

    @rule(seconds=st.floats(0.1, 30))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        late = [h for h in self.held.values() if self.now - h.granted > LEASE_SECONDS_MAX and not h.overstayed]
        cut = self.table.overstayed(self.now, LEASE_SECONDS_MAX)
        assert cut == {h.connection for h in late} - {0}
        for lease in late:
            lease.overstayed = True
        for connection in cut:
            process = self.open.pop(connection)
            self.table.cut(process, connection)
            for lease in self.held.values():
                if lease.connection == connection:
                    lease.connection = 0

    @precondition(lambda self: self.open and self.held)
    @rule(pick=st.integers(0, 999), which=st.integers(0, 9))
    def hand_on(self, pick: int, which: int) -> None:
        number = sorted(self.held)[pick % len(self.held)]
        lease = self.held[number]
        connection = sorted(self.open)[which % len(self.open)]
        token = self.table.offer(lease.process, [number], 5, "t", self.now, number.to_bytes(24, "big"))
        (moved,) = self.table.adopt(token, self.open[connection], connection, 5, "t", self.now)
        assert moved.id == number and moved.extent is lease.extent
        self.held[number] = Held(self.open[connection], connection, lease.extent, self.now)

    @rule(process=st.sampled_from(PROCESSES))
    def die(self, process: bytes) -> None:
        self.open = {connection: owner for connection, owner in self.open.items() if owner != process}
        self.came_back(self.table.end(process), [n for n, h in self.held.items() if h.process == process])

    @invariant()
    def sums_agree(self) -> None:
        assert len(self.table) == len(self.held)
        for process in PROCESSES:
            mine = [h for h in self.held.values() if h.process == process]
            assert self.table.count(process) == len(mine)
            assert self.table.leased_bytes(process) == 4096 * len(mine)
        parked = [h for h in self.held.values() if h.connection == 0 or h.overstayed]
        assert self.table.parked_bytes() == 4096 * len(parked)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


def test_ids_run_on_from_a_random_start_and_fit_64_bits() -> None:
    ids = Ids((1 << 63) - 1)
    assert list(ids.take(2)) == [(1 << 63) - 1, 1 << 63]
    assert list(ids.take(1)) == [(1 << 63) + 1]


def test_a_batch_that_names_a_lease_twice_releases_nothing() -> None:
    table = LeaseTable(Ids(1))
    (number,) = granted(table, PROCESSES[0], 1, 1)
    with pytest.raises(UnknownLease):
        table.release(PROCESSES[0], [number, number], [1000, 1000])
    assert table.count(PROCESSES[0]) == 1


def test_another_process_can_not_release() -> None:
    table = LeaseTable(Ids(1))
    (number,) = granted(table, PROCESSES[0], 1, 1)
    with pytest.raises(UnknownLease):
        table.release(PROCESSES[1], [number], [1000])
    assert table.release(PROCESSES[0], [number], [1000])


def test_a_lease_that_overstayed_is_not_resumed_but_stays_out_of_use_while_it_is_named() -> None:
    table = LeaseTable(Ids(1))
    ids = granted(table, PROCESSES[0], 1, 2)
    assert table.overstayed(LEASE_SECONDS_MAX, LEASE_SECONDS_MAX) == set(), "not a moment too early"
    assert table.overstayed(LEASE_SECONDS_MAX + 0.1, LEASE_SECONDS_MAX) == {1}
    assert table.overstayed(LEASE_SECONDS_MAX + 0.2, LEASE_SECONDS_MAX) == set(), "a connection is cut once"
    table.cut(PROCESSES[0], 1)
    resumed = table.resume(PROCESSES[0], 2, ids[:1])
    assert resumed.ids == [] and [e.generation for e in resumed.freed] == [1001]
    assert table.parked_bytes() == 4096
    assert table.release(PROCESSES[0], ids[:1], [1000])


def test_a_token_is_good_for_five_seconds() -> None:
    table = LeaseTable(Ids(1))
    ids = granted(table, PROCESSES[0], 1, 2)
    token = table.offer(PROCESSES[0], ids, 0, "t", 10.0, bytes(range(24)))
    with pytest.raises(BadRequest):
        table.adopt(token, PROCESSES[1], 2, 0, "t", 10.0 + OFFER_SECONDS)
    token = table.offer(PROCESSES[0], ids, 0, "t", 20.0, bytes(range(24)))
    assert len(table.adopt(token, PROCESSES[1], 2, 0, "t", 19.9 + OFFER_SECONDS)) == 2


def test_a_guessed_token_moves_nothing() -> None:
    table = LeaseTable(Ids(1))
    token = table.offer(PROCESSES[0], granted(table, PROCESSES[0], 1, 1), 0, "t", 0.0, bytes(range(24)))
    for wrong in (b"", token[:8], token[:-1] + b"x", b"x" + token[1:]):
        with pytest.raises(BadRequest):
            table.adopt(wrong, PROCESSES[1], 2, 0, "t", 0.0)
    with pytest.raises(AccessDenied):
        table.adopt(token, PROCESSES[1], 2, 1, "t", 0.0)
    assert table.count(PROCESSES[0]) == 1


def test_released_leases_are_not_adopted() -> None:
    table = LeaseTable(Ids(1))
    ids = granted(table, PROCESSES[0], 1, 2)
    token = table.offer(PROCESSES[0], ids, 0, "t", 0.0, bytes(range(24)))
    table.release(PROCESSES[0], ids[:1], [1000])
    assert [lease.id for lease in table.adopt(token, PROCESSES[1], 2, 0, "t", 0.0)] == ids[1:]
