"""Many pieces of work, a few at a time."""

import asyncio

import pytest

from mooncask.daemon.windowed import windowed


async def test_results_come_in_the_order_of_the_items_and_few_run_at_a_time() -> None:
    running, most = 0, 0

    async def work(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(1 + number % 5):
            await asyncio.sleep(0)
        running -= 1
        return number * number

    assert await windowed(range(100), work, 7) == [number * number for number in range(100)]
    assert most == 7
    assert await windowed([], work) == []


async def test_after_a_failure_nothing_new_begins_and_what_runs_ends() -> None:
    ended: list[int] = []

    async def work(number: int) -> None:
        await asyncio.sleep(0)
        if number == 3:
            raise ValueError("three")
        for _ in range(5):
            await asyncio.sleep(0)
        ended.append(number)

    with pytest.raises(ValueError, match="three"):
        await windowed(range(100), work, 5)
    assert sorted(ended) == [0, 1, 2, 4]


async def test_others_get_their_turn_between_pieces_that_never_wait() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def work(number: int) -> int:
        return number

    other = asyncio.create_task(count_turns())
    await windowed(range(320), work)
    other.cancel()
    assert turns >= 10
