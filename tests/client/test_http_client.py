"""The HTTP client against a real daemon; what one door stores, the other reads."""

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash
from client_checks import keys_of, payload_of
from daemon_process import DaemonProcess, Setting

from mooncask.client.http import HttpClient
from mooncask.client.local import LocalClient
from mooncask.client.wire import NamespaceKind
from mooncask.errors import (
    BadRequest,
    BlockTooLarge,
    DaemonUnavailable,
    DeadlineExceeded,
    EmptyBlock,
    LengthMismatch,
    NoSuchBlock,
    NoSuchNamespace,
    OutOfBounds,
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path_factory.mktemp("daemon")) as process:
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[HttpClient]:
    with HttpClient(daemon.http_address) as connected:
        yield connected


@pytest.fixture
def bucket(client: HttpClient, request: pytest.FixtureRequest) -> str:
    name = f"b-{xxhash.xxh3_64_hexdigest(request.node.nodeid.encode())}"
    client.create_namespace(name)
    return name


@pytest.mark.parametrize("name", ["plain", "with/slashes and spaces", "Größe?&=%2F#+", "a" * 1024, "//", ".."])
def test_an_object_of_any_name_comes_back_byte_for_byte(client: HttpClient, bucket: str, name: str) -> None:
    payload = payload_of(name.encode(), 100_000)
    assert client.put(bucket, name, payload) == hashlib.md5(payload).hexdigest()
    assert client.get(bucket, name) == payload
    assert client.head(bucket, name).size == 100_000
    assert [block.key for block in client.list_blocks(bucket).blocks] == [name]
    client.delete(bucket, name)
    client.delete(bucket, name)
    with pytest.raises(NoSuchBlock):
        client.get(bucket, name)


def test_kv_blocks_are_the_same_through_both_doors(daemon: DaemonProcess, client: HttpClient) -> None:
    keys = keys_of(3)
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as local:
        namespace = local.open_namespace(family={"model": "both doors", "block_tokens": "4"})
        local.put(namespace, keys[:2], [payload_of(key) for key in keys[:2]])
        client.put(namespace.name, keys[2], payload_of(keys[2]))
        assert [client.get(namespace.name, key) for key in keys] == [payload_of(key) for key in keys]
        with local.acquire(namespace, keys) as blocks:
            assert [bytes(block.memory) for block in blocks if block] == [payload_of(key) for key in keys]
        assert [block.key for block in client.list_blocks(namespace.name).blocks] == sorted(key.hex() for key in keys)


def test_a_block_is_streamed_into_a_buffer_and_ranges_are_cut_out(client: HttpClient, bucket: str) -> None:
    payload = payload_of(b"large", 5 << 20)
    client.put(bucket, "large", payload)
    buffer = bytearray(6 << 20)
    assert client.get_into(bucket, "large", buffer) == 5 << 20
    assert buffer[: 5 << 20] == payload and not any(buffer[5 << 20 :])
    assert client.get(bucket, "large", 10, 20) == payload[10:20]
    assert client.get(bucket, "large", (5 << 20) - 3) == payload[-3:]
    assert client.get(bucket, "large", 7, 7) == b""
    with pytest.raises(OutOfBounds):
        client.get_into(bucket, "large", bytearray(100))
    with pytest.raises(OutOfBounds):
        client.get(bucket, "large", 6 << 20)
    assert client.get(bucket, "large", 0, 1) == payload[:1], "the client is still good"


def test_a_listing_goes_on_with_its_token(client: HttpClient, bucket: str) -> None:
    names = [f"n{i:02}" for i in range(7)]
    for name in names:
        client.put(bucket, name, b"x")
    seen, token = [], ""
    while True:
        page = client.list_blocks(bucket, prefix="n", limit=3, token=token)
        seen += [block.key for block in page.blocks]
        token = page.next_token
        if not token:
            break
    assert seen == names


def test_errors_come_as_the_classes_they_are(daemon: DaemonProcess, client: HttpClient, bucket: str) -> None:
    with pytest.raises(NoSuchNamespace, match="nowhere"):
        client.get("nowhere", "x")
    with pytest.raises(NoSuchBlock, match="missing") as caught:
        client.get(bucket, "missing")
    assert caught.value.key == "missing"
    with pytest.raises(NoSuchBlock):
        client.head(bucket, "missing")
    (key,) = keys_of(1)
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as local:
        kv = local.open_namespace(family={"model": "http errors", "block_tokens": "4"}).name
    with pytest.raises(BlockTooLarge):
        client.put(kv, key, bytes(60 << 20))
    client.put(kv, key, b"abc")
    with pytest.raises(LengthMismatch):
        client.put(kv, key, b"ab")
    with pytest.raises(EmptyBlock):
        client.put(kv, b"other key of 16b", b"")


def test_an_empty_object_is_an_object(daemon: DaemonProcess, client: HttpClient, bucket: str) -> None:
    client.put(bucket, "empty", b"")
    assert client.get(bucket, "empty") == b""
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as local:
        same = local.open_namespace(bucket, kind=NamespaceKind.OBJECT)
        assert local.acquire(same, [b"empty"]).prefix == 1


def test_a_client_outlives_a_restart(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings: dict[str, Setting] = {"http.listen": f"127.0.0.1:{port}"}
    with DaemonProcess.start(tmp_path, settings) as daemon, HttpClient(daemon.http_address) as client:
        client.create_namespace("bucket")
        client.put("bucket", "key", b"value")
        daemon.restart()
        assert client.get("bucket", "key") == b"value"
        daemon.kill()
        with pytest.raises(DaemonUnavailable, match="mooncask serve"):
            client.get("bucket", "key")


def test_a_daemon_that_does_not_answer_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with DaemonProcess.start(tmp_path) as daemon, HttpClient(daemon.http_address) as client:
        client.create_namespace("bucket")
        daemon.freeze()
        with pytest.raises(DeadlineExceeded, match=r"within 0\.050 s"):
            client.get("bucket", "key", deadline_seconds=0.05)
        daemon.thaw()
        with pytest.raises(NoSuchBlock):
            client.get("bucket", "key")


@pytest.mark.parametrize("address", ["https://localhost:1", "http://", "ftp://x", "http://host/path"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadRequest, match="http://host:port"):
        HttpClient(address)


def test_a_port_where_nobody_listens_is_named() -> None:
    with pytest.raises(DaemonUnavailable, match=r"127\.0\.0\.1:9"):
        HttpClient("127.0.0.1:9").get("bucket", "key")
