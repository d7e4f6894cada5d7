"""Many blocks that come from far away for one request: one wait, and nothing left to do for it when its time is over."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from local_daemon import running_daemon

from mooncask.daemon.flights import STARTS_MAX, Answer, Flight, Flights
from mooncask.tiers.namespace import Namespace, NamespaceSpec

NAMESPACE = Namespace(1, NamespaceSpec("kv-far"))
KEYS = [number.to_bytes(16, "big") for number in range(20_000)]


class Source:
    """Whoever fetches: `begun` is what it was asked for."""

    def __init__(self) -> None:
        self.begun: list[Flight] = []
        self.turns = 0
        self.answers: list[Answer] = []
        self.calls = 0
        self.joined = 0

    def begin(self, namespace: Namespace, flights: list[Flight]) -> None:
        self.begun += flights
        self.turns += 1

    def answered(self, answers: list[Answer]) -> None:
        self.answers += answers
        self.calls += 1

    def join(self) -> None:
        self.joined += 1


@pytest.fixture
async def source() -> Source:
    return Source()


@pytest.fixture
async def flights(source: Source) -> AsyncIterator[Flights[None]]:
    async with running_daemon() as daemon:
        flights: Flights[None] = Flights(daemon.store, source.begin)
        yield flights
        await flights.close()


def wanted(flights: Flights[None], source: Source, keys: list[bytes], deadline: float) -> "asyncio.Task[None]":
    def take_off(key: bytes) -> Flight | None:
        flight = flights.new(NAMESPACE, b"n" * 16, key, deadline)
        if flight is not None:
            flights.want(flight)
        return flight

    work = flights.bring_many(NAMESPACE, keys, deadline, take_off, source.answered, source.join)
    return asyncio.create_task(work)


async def turns(count: int = 100) -> None:
    """What is ready gets its turn."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_thousands_of_blocks_are_one_task_and_what_did_not_come_by_the_deadline_is_nobodys_work_afterwards(
    flights: Flights[None], source: Source
) -> None:
    before = len(asyncio.all_tasks())
    deadline = time.monotonic() + 1.0
    task = wanted(flights, source, KEYS, deadline)
    await turns()
    assert len(source.begun) == len(KEYS) and source.turns <= len(KEYS) // STARTS_MAX + 1
    assert len(asyncio.all_tasks()) - before == 1
    for flight in source.begun[:5000]:
        flights.end(flight, here=True)
    await turns()
    assert source.calls == 1 and {answer.place for answer in source.answers} == set(range(5000))
    await task
    assert time.monotonic() >= deadline and len(source.answers) == 5000
    for flight in source.begun[5000:]:
        flights.end(flight, here=False)
    await turns()
    assert source.calls == 1 and not len(flights)


async def test_a_block_that_was_given_up_for_somebody_with_less_time_is_asked_for_again(
    flights: Flights[None], source: Source
) -> None:
    now = time.monotonic()
    hurried = wanted(flights, source, KEYS[:3], now + 30.0)
    await turns()
    patient, same = Source(), Source()
    waiting = wanted(flights, patient, KEYS[:3], now + 60.0)
    alike = wanted(flights, same, KEYS[:3], now + 30.0)
    await turns()
    assert (len(source.begun), patient.joined, same.joined) == (3, 3, 3)
    for flight in source.begun[:3]:
        flights.end(flight, here=False)
    await asyncio.gather(hurried, alike)
    assert same.answers == source.answers == [Answer(place, False) for place in range(3)]
    await turns()
    assert len(source.begun) == 6 and not patient.answers
    for flight in source.begun[3:]:
        flights.end(flight, here=True)
    await waiting
    assert patient.answers == [Answer(place, True) for place in range(3)]


async def test_a_key_that_is_asked_for_twice_is_fetched_once_and_answered_twice(
    flights: Flights[None], source: Source
) -> None:
    task = wanted(flights, source, [KEYS[0], KEYS[1], KEYS[0]], time.monotonic() + 30.0)
    await turns()
    assert [flight.key for flight in source.begun] == KEYS[:2]
    for flight in source.begun:
        flights.end(flight, here=True)
    await task
    assert sorted(answer.place for answer in source.answers) == [0, 1, 2]
