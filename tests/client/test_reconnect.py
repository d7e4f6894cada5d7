"""A worker outlives daemons, connections and forks: the next call works, and no view ever shows other bytes."""

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from client_checks import keys_of, leases_on, payload_of, until
from daemon_process import DaemonProcess

from mooncask.client import calls
from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.wire import CommitState
from mooncask.errors import DaemonUnavailable, DeadlineExceeded, UnknownReservation

FAMILY = {"model": "m", "block_tokens": "4"}


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with DaemonProcess.start(tmp_path, {"http.enabled": False}) as process:
        yield process


@pytest.fixture
def client(daemon: DaemonProcess) -> Iterator[LocalClient]:
    with LocalClient.connect(daemon.socket_path, "test", deadline_seconds=10.0) as connected:
        yield connected


def cut(client: LocalClient) -> None:
    """As when the daemon cuts the connection."""
    assert client._link is not None
    client._link.close("cut by the test")


def put(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes]) -> None:
    assert client.put(namespace, keys, [payload_of(key) for key in keys], durable=namespace.mode != "memory")


def right(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes]) -> bool:
    blocks = client.acquire(namespace, keys)
    return [bytes(block.memory) if block else None for block in blocks] == [payload_of(key) for key in keys]


def test_the_next_call_after_a_restart_works_and_finds_what_was_durable(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY), keys_of(3)
    put(client, namespace, keys)
    daemon.restart()
    assert len(client.match(namespace, keys)) == 3
    assert right(client, namespace, keys)


def test_a_view_of_the_old_daemon_stays_readable_and_ends_no_lease_of_the_new_one(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, (key,) = client.open_namespace(family=FAMILY), keys_of(1)
    put(client, namespace, [key])
    (old,) = client.acquire(namespace, [key])
    daemon.restart()
    (new,) = client.acquire(namespace, [key])
    assert old is not None and new is not None
    assert bytes(old.memory) == bytes(new.memory) == payload_of(key)
    assert not np.shares_memory(old.numpy(), new.numpy())
    del old
    gc.collect()
    assert client.status().counters.get("releases_unknown", 0) == 0
    assert bytes(new.memory) == payload_of(key)


def test_while_there_is_no_daemon_every_call_says_so_at_once(daemon: DaemonProcess, client: LocalClient) -> None:
    namespace = client.open_namespace(family=FAMILY)
    daemon.kill()
    for _ in range(3):
        with pytest.raises(DaemonUnavailable, match="mooncask serve"):
            client.match(namespace, keys_of(1))
    daemon.run()
    assert len(client.match(namespace, keys_of(1))) == 0


def test_calls_under_way_fail_when_the_daemon_dies(daemon: DaemonProcess, client: LocalClient) -> None:
    namespace = client.open_namespace(family=FAMILY)
    client.expect(namespace, keys_of(3), ttl_seconds=60.0)
    errors: list[Exception] = []

    def wait(key: bytes) -> None:
        try:
            client.acquire(namespace, [key], deadline_seconds=60.0, wait=True)
        except DaemonUnavailable as exc:
            errors.append(exc)

    threads = [threading.Thread(target=wait, args=(key,)) for key in keys_of(3)]
    for thread in threads:
        thread.start()
    until(lambda: len(client._link.session._waiting) == 3 if client._link else False, "three calls are under way")
    daemon.kill()
    for thread in threads:
        thread.join()
    assert len(errors) == 3
    assert len({id(error) for error in errors}) == 3, "each caller has an error of its own"


def test_leases_survive_a_cut_connection_for_as_long_as_their_views_live(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY, mode="memory"), keys_of(2)
    put(client, namespace, keys)
    kept, dropped = client.acquire(namespace, keys)
    assert kept is not None and dropped is not None
    cut(client)
    del dropped
    assert leases_on(client, namespace, keys[0]) == 1
    assert leases_on(client, namespace, keys[1]) == 0
    client.evict(namespace, keys)
    put(client, namespace, keys_of(20, "others"))
    assert bytes(kept.memory) == payload_of(keys[0])
    del kept
    client.flush()
    assert client.status().counters.get("releases_unknown", 0) == 0
    assert sum(tier.leased_bytes for tier in client.status().tiers) == 0


def test_a_reservation_ends_with_its_connection_but_its_place_waits_for_the_last_view(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    def reserved_bytes() -> int:
        client.flush()
        return sum(tier.reserved_bytes for tier in client.status().tiers)

    namespace, keys = client.open_namespace(family=FAMILY, mode="memory"), keys_of(2)
    reservations = client.reserve(namespace, keys, [4096] * 2)
    view = reservations.to_write[0].numpy()
    cut(client)
    with pytest.raises(UnknownReservation):
        reservations.advance(0)
    assert reserved_bytes() == 8192, "somebody may still be writing there"
    reservations.close()
    assert reserved_bytes() == 4096
    view[:] = 1
    del view
    assert reserved_bytes() == 0


def test_a_daemon_that_does_not_answer_is_given_up_at_the_deadline_and_used_again_later(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY, mode="memory"), keys_of(4)
    put(client, namespace, keys)
    daemon.freeze()
    with pytest.raises(DeadlineExceeded, match=r"match: no answer within 0\.050 s"):
        client.match(namespace, keys, deadline_seconds=0.05)
    with pytest.raises(DeadlineExceeded, match="acquire"):
        client.acquire(namespace, keys, deadline_seconds=0.05)
    with pytest.raises(DeadlineExceeded, match="reserve"):
        client.reserve(namespace, keys_of(1, "new"), [4096], deadline_seconds=0.05)
    daemon.thaw()
    assert len(client.match(namespace, keys)) == 4
    # The answers that came too late held leases and a place; both were given back.
    for key in keys:
        assert leases_on(client, namespace, key) == 0
    until(lambda: not sum(t.reserved_bytes for t in client.status().tiers) and client.flush() in (0, 1), "no place")


def in_child(run: Callable[[], bool]) -> int:
    """Exit status of a forked child: 0 if `run` gave True."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if run() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_child_uses_an_inherited_client_over_a_connection_of_its_own(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY, mode="memory"), keys_of(2)
    put(client, namespace, keys)
    held = client.acquire(namespace, keys)

    def child() -> bool:
        held.close()  # copies of the parent's blocks: their end is none of the child's business
        gc.collect()
        client.flush()
        return right(client, namespace, keys)

    assert in_child(child) == 0
    assert leases_on(client, namespace, keys[0]) == 1
    assert right(client, namespace, keys)


def test_a_forked_child_that_closes_its_copy_leaves_the_parents_connection_alone(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    def child() -> bool:
        client.close()
        return True

    assert in_child(child) == 0
    connection = client._link
    client.status()
    assert client._link is connection


def test_a_put_that_is_repeated_after_a_restart_is_harmless(daemon: DaemonProcess, client: LocalClient) -> None:
    namespace, keys = client.open_namespace(family=FAMILY), keys_of(2)
    put(client, namespace, keys)
    daemon.restart()
    again = client.put(namespace, keys, [payload_of(key) for key in keys])
    assert again == [CommitState.HAVE_IT] * 2


def test_many_threads_that_meet_a_restarted_daemon_share_one_new_connection(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY), keys_of(2)
    put(client, namespace, keys)
    daemon.restart()
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(right(client, namespace, keys))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert client.status().clients == 1


def test_a_put_that_is_cut_between_reserve_and_commit_says_that_the_daemon_went_away(
    daemon: DaemonProcess, client: LocalClient
) -> None:
    namespace, keys = client.open_namespace(family=FAMILY, mode="memory"), keys_of(1)
    limits = client._limits()
    put_flow = calls.put(namespace, keys, [b"x" * 4096], (), (), (), False, (), None, 10.0, limits)
    copy = put_flow.send(client._step(next(put_flow)))
    commit = put_flow.send(client._step(copy))
    cut(client)
    with pytest.raises(UnknownReservation) as unknown:
        client._step(commit)
    with pytest.raises(DaemonUnavailable, match="in the middle of a put"):
        put_flow.throw(unknown.value)
    assert client.put(namespace, keys, [b"x" * 4096]) == [CommitState.PUBLISHED]
    assert sum(tier.reserved_bytes for tier in client.status().tiers) == 0
