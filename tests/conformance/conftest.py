"""`pytest tests/conformance --socket PATH` tries the server there; without it, a daemon of this tree is started."""

from collections.abc import Iterator

import pytest
from daemon_process import DaemonProcess
from raw_protocol import RawConnection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--socket", metavar="PATH", help="the local socket of a running server")


@pytest.fixture(scope="module")
def socket_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    given = request.config.getoption("--socket", None)
    if given:
        yield given
        return
    settings: dict[str, str | int | float | bool | list[str] | list[int]] = {"http.enabled": False}
    with DaemonProcess.start(tmp_path_factory.mktemp("conformance"), settings) as daemon:
        yield daemon.socket_path


@pytest.fixture
def connection(socket_path: str) -> Iterator[RawConnection]:
    with RawConnection.greeted(socket_path) as greeted:
        yield greeted


@pytest.fixture
def handle(connection: RawConnection) -> int:
    """A KV namespace that nobody else uses."""
    return connection.open()
