"""What a mount needs of the clients: HTTP over the daemon's Unix socket, one version of an object, leases with descriptions."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import DaemonProcess

from mooncask.client.http import UNIX, HttpClient
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import NamespaceKind
from mooncask.errors import DaemonUnavailable, NamespaceNotEmpty, NoSuchBlock, NoSuchNamespace, PreconditionFailed


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon")) as process:
        yield process


@pytest.fixture
def http(daemon: DaemonProcess) -> Iterator[HttpClient]:
    with HttpClient.beside(daemon.socket_path) as connected:
        yield connected


@pytest.fixture
def local(daemon: DaemonProcess) -> Iterator[LocalClient]:
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10) as connected:
        yield connected


@pytest.fixture
def objects(local: LocalClient, request: pytest.FixtureRequest) -> NamespaceHandle:
    return local.open_namespace(request.node.name.replace("_", "-")[:60], kind=NamespaceKind.OBJECT)


def test_objects_go_in_and_out_over_the_unix_socket(http: HttpClient, objects: NamespaceHandle) -> None:
    http.put(objects.name, "a b/c", content := os.urandom(3000))
    assert http.get(objects.name, "a b/c") == content
    assert http.get(objects.name, "a b/c", 100, 200) == content[100:200]
    http.copy(objects.name, "copied", "a b/c")
    assert http.get(objects.name, "copied") == content
    with pytest.raises(NoSuchBlock):
        http.copy(objects.name, "copied", "nothing")


def test_only_the_version_that_was_asked_for_is_read(http: HttpClient, objects: NamespaceHandle) -> None:
    http.put(objects.name, "a", b"one")
    tag = http.head(objects.name, "a").checksum
    assert http.get(objects.name, "a", 0, 2, checksum=tag) == b"on"
    http.put(objects.name, "a", b"two")
    with pytest.raises(PreconditionFailed):
        http.get(objects.name, "a", 0, 2, checksum=tag)


def test_a_namespace_is_dropped_when_it_is_empty(http: HttpClient, objects: NamespaceHandle) -> None:
    http.put(objects.name, "a", b"one")
    with pytest.raises(NamespaceNotEmpty):
        http.delete_namespace(objects.name)
    http.delete(objects.name, "a")
    http.delete_namespace(objects.name)
    with pytest.raises(NoSuchNamespace):
        http.delete_namespace(objects.name)


def test_a_socket_with_nobody_behind_it_is_no_daemon(tmp_path: Path) -> None:
    with HttpClient(f"{UNIX}{tmp_path}/nobody") as http, pytest.raises(DaemonUnavailable):
        http.head("ns", "a")


def test_leases_come_with_descriptions_of_the_same_versions(local: LocalClient, objects: NamespaceHandle) -> None:
    local.put(objects, [b"a"], [b"one"])
    blocks, (known, missing) = local.acquire_described(objects, [b"a", b"b"])
    with blocks:
        assert bytes(blocks[0].memory) == b"one" and blocks[1] is None
    assert known.checksum == local.stat(objects, [b"a"])[0].checksum
    assert known.size == 3 and missing is None
