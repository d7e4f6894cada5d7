"""A daemon and a mount of it, shared by all tests of this folder but those that end a daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import DaemonProcess
from mount_process import MountProcess, why_no_mount
from mounted_store import SETTINGS, Mounted

from mooncask.client.local import LocalClient


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test that asks for a mount needs one."""
    why = why_no_mount()
    for item in items:
        if {"mounted", "daemon"} & set(getattr(item, "fixturenames", ())) and "fuse_mount" in item.path.parts:
            item.add_marker(pytest.mark.fuse)
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="package")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    folder = tmp_path_factory.mktemp("mount")
    with (
        DaemonProcess.start(folder, SETTINGS) as daemon,
        MountProcess.start(daemon.socket_path, folder / "mnt") as mount,
        LocalClient.connect(daemon.socket_path, deadline_seconds=10) as client,
    ):
        mounted = Mounted(mount, daemon, client)
        mounted.objects().stored(b"nothing")  # starts the client's thread, which is no leak of the test that would
        yield mounted


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    """One of the test's own, for those that end it."""
    with DaemonProcess.start(tmp_path, SETTINGS) as process:
        yield process
