"""Leases against a real daemon: held exactly as long as a view lives, handed on, and waited for."""

import os

import numpy as np
import pytest
from client_checks import keys_of, leases_on, payload_of, until
from daemon_process import DaemonProcess

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle


def put(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes], size: int = 10_000) -> list[bytes]:
    payloads = [payload_of(key, size) for key in keys]
    client.put(namespace, keys, payloads)
    return payloads


# --- leases ---


def test_a_lease_is_held_exactly_as_long_as_a_view_of_its_block_lives(
    client: LocalClient, volatile: NamespaceHandle
) -> None:
    (key,) = keys_of(1)
    put(client, volatile, [key])
    with client.acquire(volatile, [key]) as blocks:
        block = blocks[0]
        assert block is not None
        view = block.numpy(np.uint8)[5:]
        assert leases_on(client, volatile, key) == 1
    assert leases_on(client, volatile, key) == 1
    del view, block, blocks
    assert leases_on(client, volatile, key) == 0


def test_a_leased_block_stays_readable_after_it_was_evicted(client: LocalClient, volatile: NamespaceHandle) -> None:
    keys = keys_of(1)
    (payload,) = put(client, volatile, keys)
    blocks = client.acquire(volatile, keys)
    assert client.evict(volatile, keys) == 1
    assert len(client.match(volatile, keys)) == 0
    others = keys_of(40, "others")
    put(client, volatile, others, 1 << 20)  # what would be put in its place if it were free
    (block,) = blocks
    assert block is not None and bytes(block.memory) == payload


def test_leases_end_by_themselves_when_no_call_follows(
    daemon: DaemonProcess, client: LocalClient, volatile: NamespaceHandle
) -> None:
    keys = keys_of(1)
    put(client, volatile, keys)
    with LocalClient.connect(daemon.socket_path, "other", 10.0) as other:
        same = other.open_namespace(family=volatile.request.family, mode="memory")
        client.acquire(volatile, keys).close()

        def released() -> bool:
            (stat,) = other.stat(same, keys)
            return stat is not None and stat.leases == 0

        until(released, "the lease ends")


def test_views_outlive_the_client_and_their_leases_too(daemon: DaemonProcess, request: pytest.FixtureRequest) -> None:
    family = {"model": request.node.nodeid, "block_tokens": "4"}
    keys = keys_of(1)
    with LocalClient.connect(daemon.socket_path, "first", 10.0) as first:
        namespace = first.open_namespace(family=family, mode="memory")
        (payload,) = put(first, namespace, keys)
        (block,) = first.acquire(namespace, keys)
    assert block is not None
    with LocalClient.connect(daemon.socket_path, "second", 10.0) as second:
        namespace = second.open_namespace(family=family, mode="memory")
        assert leases_on(second, namespace, keys[0]) == 1
        assert bytes(block.memory) == payload
        del block
        assert leases_on(second, namespace, keys[0]) == 0


def test_a_lease_can_be_handed_to_another_process(daemon: DaemonProcess, client: LocalClient) -> None:
    """Two processes: the second is a forked child with a connection of its own."""
    namespace = client.open_namespace(family={"model": "handed", "block_tokens": "4"}, mode="memory")
    keys = keys_of(2)
    payloads = put(client, namespace, keys)
    token = client.acquire(namespace, keys, want_token=True).hand_over()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            with LocalClient.connect(daemon.socket_path, "child", 10.0) as child:
                blocks = child.adopt(token)
                right = [bytes(block.memory) for block in blocks if block] == payloads
                same = child.open_namespace(family=namespace.request.family, mode="memory")
                held = [stat.leases for stat in child.stat(same, keys) if stat] == [1, 1]
                status = 0 if right and held else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    until(lambda: leases_on(client, namespace, keys[0]) == 0, "the child's leases end with it")


# --- waiting for others ---


def test_a_waiting_acquire_is_told_of_layers_and_gets_the_block(
    daemon: DaemonProcess, client: LocalClient, namespace: NamespaceHandle
) -> None:
    keys = keys_of(2)
    with LocalClient.connect(daemon.socket_path, "producer", 10.0) as producer:
        same = producer.open_namespace(family=namespace.request.family)
        reservations = producer.reserve(same, keys, [64, 64], layers=4)
        told: list[tuple[int, int, int]] = []

        def produce(index: int, layer: int, layers: int) -> None:
            told.append((index, layer, layers))
            if len(told) == 2:  # both blocks' first half is known: write the rest
                for slot in reservations.to_write:
                    slot.memory[:] = payload_of(slot.key, 64)
                reservations.commit()

        reservations.advance(2)
        blocks = client.acquire(namespace, keys, wait=True, progress=produce)
    assert sorted(told[:2]) == [(0, 2, 4), (1, 2, 4)]
    assert [bytes(block.memory) for block in blocks if block] == [payload_of(key, 64) for key in keys]


def test_a_waiting_acquire_ends_at_its_deadline_with_a_miss(client: LocalClient, namespace: NamespaceHandle) -> None:
    keys = keys_of(1)
    client.expect(namespace, keys, ttl_seconds=60.0)
    assert client.acquire(namespace, keys, deadline_seconds=0.05, wait=True).prefix == 0
