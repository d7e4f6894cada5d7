"""The daemon's tests run on the loop that the daemon runs on, and a fault that only the log tells of fails them."""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def no_fault_in_the_log(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Tracebacks, and what the loop itself reports; a test that means to cause one clears `caplog`."""
    yield
    records = [*caplog.get_records("setup"), *caplog.get_records("call")]
    faults = [r for r in records if r.levelno >= logging.ERROR and (r.exc_info or r.name == "asyncio")]
    assert [record.getMessage() for record in faults] == []
