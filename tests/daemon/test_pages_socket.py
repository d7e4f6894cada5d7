"""HTTP on the Unix socket beside the daemon's own: who may, whose tenant it is, and that it costs nothing until used."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from daemon_process import DaemonProcess
from local_daemon import running_daemon

from mooncask.client.control_client import ControlClient
from mooncask.client.socket_path import http_socket_path
from mooncask.errors import NoSuchNamespace


async def ask(path: str, target: str, method: str = "GET") -> tuple[int, bytes]:
    connector = aiohttp.UnixConnector(path)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.request(method, f"http://x{target}") as got,
    ):
        return got.status, await got.read()


def mode_of(path: str) -> int:
    return Path(path).stat().st_mode & 0o777


def exists(path: str) -> bool:
    return Path(path).exists()


@pytest.mark.parametrize("enabled", [True, False])
async def test_http_is_answered_on_the_unix_socket_whether_or_not_it_is_on_the_network(enabled: bool) -> None:
    async with running_daemon({"http.enabled": enabled}) as daemon:
        path = http_socket_path(daemon.path)
        assert mode_of(path) == 0o600
        assert await asyncio.gather(*(ask(path, "/-/healthz") for _ in range(4))) == [(200, b"ok\n")] * 4
    assert not exists(path)


async def test_the_unix_socket_has_the_mode_of_the_daemons_own() -> None:
    async with running_daemon({"socket.mode": "0660"}) as daemon:
        assert mode_of(http_socket_path(daemon.path)) == 0o660


async def test_a_local_callers_tenant_is_that_of_its_uid() -> None:
    async with running_daemon({"tenants.astro.uids": [os.getuid()]}) as daemon:
        path = http_socket_path(daemon.path)
        assert (await ask(path, "/photos", "PUT"))[0] == 200
        namespace = daemon.store.namespace("photos")
        assert namespace is not None and namespace.spec.tenant == "astro"


def test_a_stale_socket_is_taken_over_and_a_live_one_is_not(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"http.enabled": False}) as daemon:
        path = http_socket_path(daemon.socket_path)
        daemon.kill()
        assert exists(path), "what a crash leaves"
        daemon.run()
        assert asyncio.run(ask(path, "/-/healthz")) == (200, b"ok\n")
        daemon.stop()
        assert not exists(path)
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(path)
            other.listen()
            with pytest.raises(RuntimeError, match="in use"):
                daemon.run()
        Path(path).unlink()


def test_starting_without_http_imports_no_http_server() -> None:
    code = "import sys, mooncask.daemon.main as m; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_configuration_page_names_the_file_that_was_read(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path, {"http.enabled": False}) as daemon, ControlClient(daemon.socket_path) as control:
        page = control.config()
        assert page.file == str(daemon.config_path) and page.sections["dram"]["capacity"] == 64 << 20
        with pytest.raises(NoSuchNamespace):
            control.block("nowhere", "00")
        daemon.restart()
        assert control.config().file, "the connection of the killed one is dropped by itself"
