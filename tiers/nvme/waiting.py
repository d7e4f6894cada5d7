"""Waiting for what must end before its memory may be reused, whether or not the one who waits is cancelled."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


async def outlast(future: "asyncio.Future[Result]", withdraw: Callable[[], None]) -> Result:
    """The future's result. Cancelling calls `withdraw` and goes on waiting; CancelledError is raised at the end."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError as error:
        cancelled = error
    withdraw()
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            cancelled = error
    if not future.cancelled():
        future.exception()  # seen: asyncio would log it as never retrieved
    raise cancelled
