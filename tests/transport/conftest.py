"""Every test of a link runs over every transport, on the daemon's loop."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from peer_world import TRANSPORTS, World


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(params=TRANSPORTS)
def certificates(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where the cluster's certificates are to lie; None without TLS."""
    return tmp_path if request.param == "tcp+tls" else None


@pytest.fixture
async def world(certificates: Path | None) -> AsyncIterator[World]:
    world = World(certificates)
    yield world
    await world.close()


@pytest.fixture(autouse=True)
def no_fault_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Tracebacks, and what the loop itself reports."""
    yield
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    faults = [r for r in records if r.levelno >= logging.ERROR and (r.exc_info or r.name == "asyncio")]
    assert [record.getMessage() for record in faults] == []
