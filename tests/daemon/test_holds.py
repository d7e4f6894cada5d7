"""Named holds: blocks that stay for somebody who may vanish, through the daemon's page and in its store."""

import asyncio
import time
from pathlib import Path

import pytest
from control_pages import PagesOf, open_kv, running_pages
from daemon_process import DaemonProcess
from raw_client import key

from mooncask.client.control_client import ControlClient
from mooncask.client.hold import Holding, HoldRequest
from mooncask.client.local import LocalClient
from mooncask.errors import BadRequest, PinLimitExceeded


async def hold(
    pages: PagesOf, name: str, numbers: list[int], seconds: float = 60.0, share: float = 1.0, renew: bool = False
) -> Holding:
    keys = tuple(key(number).hex() for number in numbers)
    request = HoldRequest(namespace="kv-a", name=name, keys=keys, seconds=seconds, share=share, renew=renew)
    return await pages.ask(ControlClient.hold, request)


async def pins(pages: PagesOf, number: int) -> int:
    return (await pages.ask(ControlClient.block, "kv-a", key(number))).pins


async def test_a_hold_pins_what_is_here_once_however_often_it_is_told() -> None:
    async with running_pages() as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), [key(1), key(2)])
        for _ in range(3):
            assert await hold(pages, "c1", [1, 2, 3]) == Holding(held_blocks=2, missing=(2,))
        assert [await pins(pages, number) for number in (1, 2)] == [1, 1]


async def test_holds_and_pins_of_one_block_end_each_by_itself() -> None:
    async with running_pages() as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), [key(1)])
        await hold(pages, "c1", [1])
        await hold(pages, "c2", [1])
        await pages.ask(ControlClient.pin, "kv-a", key(1))
        assert await pins(pages, 1) == 3
        await hold(pages, "c1", [1], seconds=0)
        await pages.ask(ControlClient.unpin, "kv-a", key(1))
        assert (await pages.ask(ControlClient.unpin, "kv-a", key(1))).pins == 1  # a hold is not somebody's pin
        await hold(pages, "c2", [])
        assert await pins(pages, 1) == 0


async def test_a_hold_ends_by_its_time() -> None:
    async with running_pages() as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), [key(1)])
        await hold(pages, "c1", [1], seconds=0.05)
        until = time.monotonic() + 5
        while await pins(pages, 1):
            assert time.monotonic() < until
            await asyncio.sleep(0.01)


async def test_a_hold_that_was_ended_is_not_renewed_and_one_that_is_there_takes_more() -> None:
    async with running_pages() as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), [key(1), key(2)])
        await hold(pages, "c1", [1])
        assert await hold(pages, "c1", [1, 2], renew=True) == Holding(held_blocks=2)
        assert [await pins(pages, number) for number in (1, 2)] == [1, 1]
        await hold(pages, "c1", [], seconds=0)
        assert await hold(pages, "c1", [1, 2], renew=True) == Holding(held_blocks=0, missing=(0, 1))
        assert [await pins(pages, number) for number in (1, 2)] == [0, 0]


async def test_a_block_that_came_anew_is_not_let_go_by_a_hold_of_the_old_one() -> None:
    async with running_pages() as pages:
        namespace = await open_kv(pages.client, "kv-a")
        await pages.put_chain(namespace, [key(1)])
        await hold(pages, "c1", [1])
        await pages.ask(ControlClient.evict, "kv-a", key(1))
        await pages.put_chain(namespace, [key(1)])
        await hold(pages, "c2", [1])
        await hold(pages, "c1", [], seconds=0)
        assert await pins(pages, 1) == 1


async def test_beyond_the_share_nothing_is_held_and_the_hold_is_as_it_was() -> None:
    async with running_pages({"dram.capacity": "1MiB"}) as pages:
        await pages.put_chain(await open_kv(pages.client, "kv-a"), [key(1), key(2), key(3)])
        await hold(pages, "c1", [1])
        with pytest.raises(PinLimitExceeded):
            await hold(pages, "c1", [1, 2, 3], share=0.018)
        assert [await pins(pages, number) for number in (1, 2, 3)] == [1, 0, 0]


@pytest.mark.parametrize(("name", "seconds"), [("", 1.0), ("x" * 300, 1.0), ("c1", 1e6)])
async def test_what_is_no_hold_is_refused(name: str, seconds: float) -> None:
    async with running_pages() as pages:
        await open_kv(pages.client, "kv-a")
        with pytest.raises(BadRequest, match="characters" if len(name) != 2 else "seconds"):
            await hold(pages, name, [1], seconds)


def test_a_killed_daemon_leaves_no_pins_of_holds_and_those_that_last(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon:
        with LocalClient.connect(daemon.socket_path) as client, ControlClient(daemon.socket_path) as pages:
            namespace = client.open_namespace("kv-a", {"block_tokens": "16"}, mode="write_through")
            client.put(namespace, [key(1), key(2)], [b"x" * 4096, b"y" * 4096], durable=True)
            pages.pin("kv-a", key(1))
            keys = (key(1).hex(), key(2).hex())
            assert pages.hold(HoldRequest(namespace="kv-a", name="c", keys=keys)).held_blocks == 2
            pages.pin("kv-a", key(2))
            pages.unpin("kv-a", key(2))  # tells the disk how it stands, while the hold is there
        daemon.kill()
        daemon.run()
        with ControlClient(daemon.socket_path) as pages:
            assert [pages.block("kv-a", key(number)).pins for number in (1, 2)] == [1, 0]
