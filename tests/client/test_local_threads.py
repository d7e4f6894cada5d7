"""Many threads on one client, and daemons that are absent, silent or gone."""

import gc
import socket
import threading
from pathlib import Path

import pytest
from client_checks import keys_of, payload_of
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.errors import (
    BadRequest,
    DaemonUnavailable,
    UnknownReservation,
)


def put(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes], size: int = 10_000) -> list[bytes]:
    payloads = [payload_of(key, size) for key in keys]
    client.put(namespace, keys, payloads)
    return payloads


# --- several threads ---


def test_calls_of_many_threads_run_side_by_side_on_one_connection(
    client: LocalClient, volatile: NamespaceHandle
) -> None:
    wrong: list[object] = []

    def work(label: str) -> None:
        try:
            for turn in range(20):
                keys = keys_of(7, f"{label} {turn}")
                payloads = put(client, volatile, keys, 500)
                with client.acquire(volatile, keys) as blocks:
                    if [bytes(block.memory) for block in blocks if block] != payloads:
                        wrong.append(keys)
                if len(client.match(volatile, keys)) != 7:
                    wrong.append(keys)
        except Exception as exc:  # noqa: BLE001  # whatever it is, the test shall show it
            wrong.append(exc)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    client.flush()
    assert sum(tier.leased_bytes for tier in client.status().tiers) == 0


def test_a_call_that_waits_long_does_not_hold_up_others(client: LocalClient, namespace: NamespaceHandle) -> None:
    slow, fast = keys_of(1, "slow"), keys_of(1, "fast")
    client.expect(namespace, slow, ttl_seconds=60.0)
    found: list[int] = []
    waiter = threading.Thread(
        target=lambda: found.append(client.acquire(namespace, slow, deadline_seconds=20.0, wait=True).prefix)
    )
    waiter.start()
    put(client, namespace, fast)
    assert len(client.match(namespace, fast)) == 1
    assert waiter.is_alive()
    put(client, namespace, slow)
    waiter.join()
    assert found == [1]


# --- absent and odd daemons ---


def test_an_absent_daemon_is_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DaemonUnavailable, match=r"nothing.*mooncask serve"):
        LocalClient.connect(tmp_path / "nothing")


def test_a_listener_that_says_nothing_is_given_up_at_the_deadline(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with pytest.raises(DaemonUnavailable, match="in time"):
            LocalClient.connect(tmp_path / "s", deadline_seconds=0.1)


def test_a_closed_client_says_so(daemon: DaemonProcess) -> None:
    client = LocalClient.connect(daemon.socket_path)
    client.close()
    client.close()
    with pytest.raises(DaemonUnavailable, match="was closed"):
        client.status()


def test_a_client_that_only_reads_cannot_reserve(daemon: DaemonProcess, namespace: NamespaceHandle) -> None:
    with LocalClient.connect(daemon.socket_path, want_write=False) as reader:
        same = reader.open_namespace(family=namespace.request.family)
        with pytest.raises(BadRequest, match="want_write"):
            reader.put(same, keys_of(1), [b"x"])


def test_clients_leave_no_threads_and_no_descriptors(daemon: DaemonProcess, namespace: NamespaceHandle) -> None:
    def descriptors() -> set[str]:
        return {path.name for path in Path("/proc/self/fd").iterdir()}

    def use() -> None:
        with LocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as client:
            same = client.open_namespace(family=namespace.request.family)
            put(client, same, keys_of(3))
            client.acquire(same, keys_of(3)).close()
        dropped = LocalClient.connect(daemon.socket_path, deadline_seconds=10.0)
        dropped.acquire(dropped.open_namespace(family=namespace.request.family), keys_of(3))

    use()
    threads, before = threading.active_count(), descriptors()
    use()
    gc.collect()
    assert threading.active_count() == threads
    assert len(descriptors()) == len(before)


def test_a_reservation_of_an_earlier_connection_is_unknown(daemon: DaemonProcess, namespace: NamespaceHandle) -> None:
    with LocalClient.connect(daemon.socket_path, deadline_seconds=10.0) as client:
        same = client.open_namespace(family=namespace.request.family)
        reservations = client.reserve(same, keys_of(1), [10])
        assert client._link is not None
        client._link.close("cut by the test")
        with pytest.raises(UnknownReservation):
            reservations.commit()
