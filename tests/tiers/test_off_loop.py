"""Work in threads for coroutines that may be cancelled."""

import asyncio
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tier_doubles import HeldExecutor

from mooncask.tiers.off_loop import INLINE_BYTES, run_off_loop, run_sized


async def test_it_gives_the_result() -> None:
    with ThreadPoolExecutor(1) as pool:
        assert await run_off_loop(pool, lambda: 42) == 42


async def test_it_raises_what_the_work_raised() -> None:
    def work() -> None:
        raise ValueError("no")

    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="no"):
        await run_off_loop(pool, work)


async def test_a_cancelled_caller_waits_for_work_that_has_begun() -> None:
    started, finish, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert finish.wait(60)
        done.set()

    with ThreadPoolExecutor(1) as pool:
        task = asyncio.create_task(run_off_loop(pool, work))
        assert await asyncio.to_thread(started.wait, 60)
        for _ in range(3):
            task.cancel()
            for _ in range(10):
                await asyncio.sleep(0)
            assert not task.done()
        finish.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done.is_set()


async def test_a_cancelled_caller_withdraws_work_that_has_not_begun() -> None:
    executor = HeldExecutor()
    task = asyncio.create_task(run_off_loop(executor, lambda: pytest.fail("the work was withdrawn")))
    await asyncio.sleep(0)
    assert len(executor) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not executor.run_next()


async def test_an_error_behind_a_cancelled_caller_is_not_reported_as_lost() -> None:
    started, finish = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        assert finish.wait(60)
        raise ValueError("nobody waits for this")

    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
    with ThreadPoolExecutor(1) as pool:
        task = asyncio.create_task(run_off_loop(pool, work))
        assert await asyncio.to_thread(started.wait, 60)
        task.cancel()
        finish.set()
        await asyncio.wait((task,))
        assert task.cancelled()
    del task
    gc.collect()  # a lost exception is reported when its future dies
    assert reported == []


@pytest.mark.parametrize(("size", "is_inline"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_little_work_is_done_in_the_callers_thread(size: int, is_inline: bool) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert (await run_sized(pool, size, threading.current_thread) is threading.current_thread()) == is_inline
