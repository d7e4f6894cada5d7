"""A real daemon for all tests of a module, and clients on it."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from daemon_process import DaemonProcess, Setting

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    folder: Path = tmp_path_factory.mktemp("daemon")
    settings: dict[str, Setting] = {"http.enabled": False, "limits.batch_max": 64, "socket.staging": "4 MiB"}
    with DaemonProcess.start(folder, settings) as process:
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[LocalClient]:
    with LocalClient.connect(daemon.socket_path, "test", deadline_seconds=10.0) as connected:
        yield connected


@pytest.fixture
def namespace(client: LocalClient, request: pytest.FixtureRequest) -> NamespaceHandle:
    """One for each test, so that tests find no blocks of others."""
    return client.open_namespace(family={"model": request.node.nodeid, "block_tokens": "4"})


@pytest.fixture
def volatile(client: LocalClient, request: pytest.FixtureRequest) -> NamespaceHandle:
    """One that is never written to NVMe, so that nobody but clients refers to its blocks."""
    return client.open_namespace(family={"model": request.node.nodeid, "block_tokens": "4"}, mode="memory")
