"""Many small pieces of work for one request: a few at a time, so that others get their turn in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AT_A_TIME = 32
"""The loop runs everything that is ready before it looks for I/O again: 32 small commits are about 2 ms."""


async def windowed(
    items: Sequence[Item], work: Callable[[Item], Awaitable[Result]], at_a_time: int = AT_A_TIME
) -> list[Result]:
    """The results of `work` on each item, in order. The first exception ends it once what runs beside it has ended."""
    results: dict[int, Result] = {}
    numbered = iter(enumerate(items))
    failed = False

    async def take(source: Iterator[tuple[int, Item]]) -> None:
        nonlocal failed
        for index, item in source:
            if failed:
                return
            try:
                results[index] = await work(item)
            except BaseException:
                failed = True
                raise
            await asyncio.sleep(0)

    outcomes = await asyncio.gather(
        *(take(numbered) for _ in range(min(at_a_time, len(items)))), return_exceptions=True
    )
    for outcome in outcomes:
        if outcome is not None:
            raise outcome
    return [results[index] for index in range(len(items))]
