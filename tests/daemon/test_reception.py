"""How long a body may take: by its pace, not as a whole."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from mooncask.daemon.config import HttpSection
from mooncask.daemon.http.bodies.body import BodyPlan, IncomingBody
from mooncask.daemon.http.bodies.reception import STRIDE_BYTES, receive
from mooncask.errors import DeadlineExceeded

CONFIG = HttpSection(grace=1.0, rate_min=1 << 40)
STRIDE = memoryview(bytes(STRIDE_BYTES))


class Sink:
    received = 0

    async def write(self, piece: memoryview) -> None:
        self.received += piece.nbytes


def incoming(strides: int, pause_seconds: float) -> IncomingBody:
    async def source() -> AsyncIterator[bytes]:
        for _ in range(strides):
            await asyncio.sleep(pause_seconds)
            yield STRIDE  # type: ignore[misc]  # what aiohttp gives are bytes; a view of them will do

    return IncomingBody(BodyPlan(strides * STRIDE_BYTES, ""), source())


async def test_a_long_body_may_take_as_long_as_its_pace_allows() -> None:
    sink = Sink()
    await receive(incoming(4, pause_seconds=0.4), sink, (), CONFIG)
    assert sink.received == 4 * STRIDE_BYTES


async def test_a_body_that_falls_behind_its_pace_is_cut_off_wherever_it_is() -> None:
    with pytest.raises(DeadlineExceeded):
        await receive(incoming(2, pause_seconds=1.1), Sink(), (), CONFIG)
