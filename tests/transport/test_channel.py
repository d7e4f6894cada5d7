"""Frames of a control connection: in order, all of them before its end, and none that would pile up without limit."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mooncask.daemon.transport.messages import Ask, Ending, Release, parse_request
from mooncask.daemon.transport.tcp.channel import UNSENT_BYTES_MAX, Channel
from mooncask.errors import PeerUnavailable


@asynccontextmanager
async def two_ends() -> AsyncIterator[tuple[Channel, Channel]]:
    accepted: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set_result(Channel(reader, writer, "there"))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    here, there = Channel(reader, writer, "here"), await accepted
    try:
        yield here, there
    finally:
        for end in (here, there):
            end.abort()
            await end.closed()
        server.close()
        await server.wait_closed()


async def test_what_is_sent_in_one_turn_or_in_several_comes_in_order_and_before_the_end() -> None:
    async with two_ends() as (here, there):
        for number in range(5):
            here.send(Release(0, [number]))
            if number % 2:
                await asyncio.sleep(0)
        here.finish()
        for number in range(5):
            assert parse_request(await there.receive()) == Release(0, [number])
        with pytest.raises(PeerUnavailable):
            await there.receive()


async def test_who_does_not_read_is_not_sent_to_without_limit() -> None:
    """Also within one turn of the loop, in which nothing goes out."""
    async with two_ends() as (here, _):
        sent = 0
        with pytest.raises(PeerUnavailable, match="does not read"):
            for number in itertools.count(1):
                here.send(Ask(number, "x", bytes(1 << 20), 1000))
                sent += 1 << 20
        assert UNSENT_BYTES_MAX <= sent <= UNSENT_BYTES_MAX + (2 << 20)


async def test_after_the_end_nothing_is_sent() -> None:
    async with two_ends() as (here, there):
        here.send(Release(0, [1]))
        here.abort()
        with pytest.raises(PeerUnavailable):
            here.send(Ending(0, "no more"))
        with pytest.raises(PeerUnavailable):
            await there.receive()
