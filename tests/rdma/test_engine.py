"""The thread between the event loop and a device, with a device that a test moves by hand: what is posted, what ends, what is destroyed."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest
from child_processes import until

from mooncask.daemon.transport.rdma import engine as engine_module
from mooncask.daemon.transport.rdma.engine import Engine, Pair, PairLost
from mooncask.daemon.transport.rdma.exchange import End
from mooncask.daemon.transport.rdma.regions import WorkRequest
from mooncask.daemon.transport.rdma.verbs import Completion, VerbsError

END = End("ethernet", "::ffff:10.0.0.5", 0, 3, 17, 1, 4)
WINDOW = 4


class HandPair:
    """A queue pair that ends what it is told to."""

    def __init__(self) -> None:
        self.reads = WINDOW
        self.end = END
        self.posted: list[int] = []
        self.ended: list[Completion] = []
        self.most = 0
        self.closed = False
        self.posts_left = 1000

    def connect(self, theirs: End) -> None:
        assert theirs == END

    def post_read(self, number: int, request: WorkRequest) -> None:
        assert not self.closed
        if not self.posts_left:
            raise VerbsError("a read cannot be posted")
        self.posts_left -= 1
        self.posted.append(number)
        self.most = max(self.most, len(self.posted))

    def finish(self, count: int, status: int = 0) -> None:
        """The oldest that are posted end."""
        for _ in range(count):
            self.ended.append(Completion(self.posted.pop(0), status))

    def poll(self) -> list[Completion]:
        found, self.ended = self.ended, []
        return found

    def close(self) -> None:
        self.closed = True


class HandDevice:
    def __init__(self) -> None:
        self.pairs: list[HandPair] = []
        self.closed_in = ""

    def queue_pair(self, *, readable: bool) -> HandPair:
        self.pairs.append(HandPair())
        return self.pairs[-1]

    def close(self) -> None:
        assert all(pair.closed for pair in self.pairs), "the device is closed before its queue pairs"
        self.closed_in = threading.current_thread().name


class World:
    """An engine, one pair, and the device beneath."""

    def __init__(self) -> None:
        self.device = HandDevice()
        self.engine = Engine(self.device)
        self.pair = Pair(self.engine, readable=False)

    @property
    def hand(self) -> HandPair:
        return self.device.pairs[0]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    assert await world.pair.open() == END
    await world.pair.connect(END)
    yield world
    await world.pair.close()
    await world.engine.close()
    assert world.device.closed_in == "mooncask-rdma"


def requests(count: int) -> list[WorkRequest]:
    return [WorkRequest(n, 1, n, 2, 100) for n in range(count)]


def soon(seconds: float = 20.0) -> float:
    return time.monotonic() + seconds


async def test_a_read_of_many_requests_goes_through_a_window_of_few(world: World) -> None:
    read = asyncio.create_task(world.pair.read(requests(50), soon()))
    for _ in range(50):
        await until(lambda: world.hand.posted)
        world.hand.finish(1)
    await read
    assert world.hand.most == WINDOW and not world.hand.closed


async def test_reads_share_the_window_and_each_ends_with_its_own_last_request(world: World) -> None:
    first = asyncio.create_task(world.pair.read(requests(2), soon()))
    await until(lambda: len(world.hand.posted) == 2)
    second = asyncio.create_task(world.pair.read(requests(3), soon()))
    await until(lambda: len(world.hand.posted) == WINDOW)
    world.hand.finish(2)
    await first
    await until(lambda: len(world.hand.posted) == 3)
    assert not second.done()
    world.hand.finish(3)
    await second


async def test_a_deadline_destroys_the_pair_before_the_reader_is_told_and_others_are_blameless(world: World) -> None:
    other = asyncio.create_task(world.pair.read(requests(1), soon()))
    await until(lambda: world.hand.posted)
    with pytest.raises(TimeoutError):
        await world.pair.read(requests(1), soon(0.05))
    assert world.hand.closed
    with pytest.raises(PairLost) as lost:
        await other
    assert lost.value.blameless


async def test_a_read_that_the_device_has_nothing_of_is_given_up_without_a_loss(world: World) -> None:
    full = asyncio.create_task(world.pair.read(requests(WINDOW), soon()))
    await until(lambda: len(world.hand.posted) == WINDOW)
    with pytest.raises(TimeoutError):
        await world.pair.read(requests(3), soon(0.05))
    assert not world.hand.closed
    world.hand.finish(WINDOW)
    await full


async def test_a_cancelled_read_writes_nothing_once_its_cancellation_is_over(world: World) -> None:
    read = asyncio.create_task(world.pair.read(requests(9), soon()))
    await until(lambda: world.hand.posted)
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert world.hand.closed


@pytest.mark.parametrize(("status", "why"), [(12, "does not answer"), (10, "cannot be read"), (99, "status 99")])
async def test_a_bad_completion_ends_the_pair_and_all_its_reads_with_the_reason(
    world: World, status: int, why: str
) -> None:
    reads = [asyncio.create_task(world.pair.read(requests(3), soon())) for _ in range(2)]
    await until(lambda: len(world.hand.posted) == WINDOW)
    world.hand.finish(1, status)
    for read in reads:
        with pytest.raises(PairLost, match=why) as lost:
            await read
        assert not lost.value.blameless
    assert world.hand.closed
    with pytest.raises(PairLost, match=why):
        await world.pair.read(requests(1), soon())


async def test_a_request_that_the_device_does_not_take_ends_the_pair(world: World) -> None:
    world.hand.posts_left = 2
    with pytest.raises(PairLost, match="cannot be posted"):
        await world.pair.read(requests(3), soon())
    assert world.hand.closed


async def test_a_device_that_ends_nothing_is_not_waited_for(world: World) -> None:
    began = time.monotonic()
    with pytest.raises(PairLost, match="has ended nothing"):
        await world.pair.read(requests(1), soon())
    assert engine_module.SILENCE_SECONDS <= time.monotonic() - began < engine_module.SILENCE_SECONDS + 2


async def test_a_pair_that_is_closed_before_it_is_connected_never_is(world: World) -> None:
    pair = Pair(world.engine, readable=True)
    await pair.open()
    await pair.close()
    with pytest.raises(PairLost):
        await pair.connect(END)
    assert world.device.pairs[1].closed
