"""POST /-/v1/coming: who waits for a block hears when somebody has begun to make it, and no later than he wanted to wait."""

import asyncio
import time

import aiohttp
import msgspec
import pytest
from child_processes import until
from control_pages import PagesOf, open_kv, put_chain, running_pages
from raw_client import key

from mooncask.client import wire
from mooncask.client.coming import ComingAnswer, ComingRequest, ComingState
from mooncask.daemon.http.pages.coming import WAITING_MAX


async def ask(pages: PagesOf, number: int, seconds: float, namespace: str = "kv-a") -> tuple[int, ComingState | None]:
    assert pages.daemon.http is not None
    url = f"http://{pages.daemon.http.address}/-/v1/coming"
    body = msgspec.json.encode(ComingRequest(namespace=namespace, key=key(number).hex(), seconds=seconds))
    async with aiohttp.ClientSession() as session, session.post(url, data=body) as response:
        answer = await response.read()
        told = msgspec.json.decode(answer, type=ComingAnswer).state if response.status == 200 else None
        return response.status, told


async def test_a_block_is_here_written_expected_or_nobody_s_and_that_is_said_at_once() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1)])
        await pages.client.reserve(namespace, {key(2): b"x" * 64})
        await pages.client.ask(wire.Done, wire.Expect, namespace, [key(3)], 60_000)
        began = time.monotonic()
        told = [await ask(pages, number, 20.0) for number in (1, 2, 3)] + [await ask(pages, 4, 0.0)]
        assert told == [(200, state) for state in ("here", "writing", "expected", "nobody")]
        assert time.monotonic() - began < 15


async def test_who_waits_hears_as_soon_as_it_is_announced_or_when_his_time_is_over() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        waiting = [asyncio.create_task(ask(pages, number, 30.0)) for number in (1, 2)]
        await until(lambda: len(pages.daemon.service.watches._events) == 2)
        assert not any(task.done() for task in waiting)
        await pages.client.ask(wire.Done, wire.Expect, namespace, [key(1)], 60_000)
        assert await waiting[0] == (200, ComingState.EXPECTED)
        await put_chain(pages.client, namespace, [key(2)])
        assert (await waiting[1])[1] in (ComingState.WRITING, ComingState.HERE)
        assert await ask(pages, 3, 0.2) == (200, ComingState.NOBODY)
        assert not pages.daemon.service.watches._events


async def test_questions_that_wait_are_bounded() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        events = pages.daemon.service.watches._events
        waiting = [asyncio.create_task(ask(pages, 1, 30.0)) for _ in range(WAITING_MAX)]
        await until(lambda: sum(map(len, events.values())) == WAITING_MAX)
        assert await ask(pages, 1, 1.0) == (503, None)
        assert await ask(pages, 1, 0.0) == (200, ComingState.NOBODY)
        await pages.client.ask(wire.Done, wire.Expect, namespace, [key(1)], 60_000)
        assert await asyncio.gather(*waiting) == [(200, ComingState.EXPECTED)] * WAITING_MAX


async def test_who_goes_away_does_not_keep_his_place() -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        events = pages.daemon.service.watches._events
        waiting = asyncio.create_task(ask(pages, 1, 60.0))
        await until(lambda: bool(events))
        waiting.cancel()
        await asyncio.wait([waiting])
        await until(lambda: not events)


@pytest.mark.parametrize(
    ("namespace", "seconds", "status"), [("kv-none", 0.0, 404), ("kv-a", 61.0, 400), ("kv-a", -1.0, 400)]
)
async def test_a_namespace_that_is_none_and_times_that_are_none_are_refused(
    namespace: str, seconds: float, status: int
) -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        assert await ask(pages, 1, seconds, namespace) == (status, None)


async def test_a_daemon_that_stops_does_not_wait_for_those_who_wait() -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        waiting = asyncio.create_task(ask(pages, 1, 60.0))
        await until(lambda: pages.daemon.service.watches._events)
        began = time.monotonic()
    assert time.monotonic() - began < 20
    await asyncio.gather(waiting, return_exceptions=True)
