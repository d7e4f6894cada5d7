"""Several processes write parts of the same places; no place is another block's while one of them could still write there."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from daemon_process import DaemonProcess, Setting

from mooncask.client.local import LocalClient
from mooncask.client.namespace import NamespaceHandle
from mooncask.client.operations import NewBlocks
from mooncask.client.shared_places import SharedReservations, join, reserve_shared
from mooncask.client.wire import CommitState, Tier
from mooncask.errors import AccessDenied, BadRequest

SIZE = 8192
HALF = SIZE // 2
SECONDS = 10.0

WRITER = """
import sys
from mooncask.client.local import LocalClient
from mooncask.client.shared_places import join
with LocalClient.connect(sys.argv[1], "second writer", 10.0) as client:
    places = join(client, bytes.fromhex(sys.argv[2]), 10.0)
    views = [place.memory for place in places]
    places.close()
    for view in views:
        view[4096:] = b"2" * 4096
    print("written", flush=True)
    sys.stdin.readline()
    for view in views:
        view[4096:] = b"3" * 4096
    print("written again", flush=True)
    sys.stdin.readline()
"""


OWNER = """
import sys
from mooncask.client.local import LocalClient
from mooncask.client.operations import NewBlocks
from mooncask.client.shared_places import reserve_shared
with LocalClient.connect(sys.argv[1], "owner", 10.0) as client:
    namespace = client.open_namespace(family={"model": sys.argv[2], "block_tokens": "4"}, mode="memory")
    keys = [bytes([i]) * 16 for i in range(4)]
    made = reserve_shared(client, namespace, NewBlocks(keys, [8192] * 4), 10.0)
    print(made.token.hex(), flush=True)
    sys.stdin.readline()
"""


class Writer:
    """A second process that joins, writes the second halves, and waits for a word before it writes them again."""

    def __init__(self, socket_path: str, token: bytes) -> None:
        command = [sys.executable, "-c", WRITER, socket_path, token.hex()]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "written\n"

    def write_again(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        assert self._line() == "written again\n"

    def end(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.communicate(timeout=SECONDS)

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()


def keys_of(count: int, first: int = 0) -> list[bytes]:
    return [(first + i).to_bytes(16, "big") for i in range(count)]


def shared(client: LocalClient, namespace: NamespaceHandle, keys: list[bytes]) -> SharedReservations:
    return reserve_shared(client, namespace, NewBlocks(keys, [SIZE] * len(keys)), SECONDS)


def leased_bytes(client: LocalClient) -> int:
    return next(tier.leased_bytes for tier in client.status().tiers if tier.tier == Tier.DRAM)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_a_block_is_written_by_two_processes_and_committed_by_one(
    daemon: DaemonProcess, client: LocalClient, namespace: NamespaceHandle
) -> None:
    keys = keys_of(3)
    client.put(namespace, keys[1:2], [b"x" * SIZE])
    made = shared(client, namespace, keys)
    for slot in made.reservations.to_write:
        slot.memory[:HALF] = b"1" * HALF
    writer = Writer(daemon.socket_path, made.token)
    states = made.reservations.commit()
    writer.end()
    assert states == [CommitState.PUBLISHED, CommitState.HAVE_IT, CommitState.PUBLISHED]
    with client.acquire(namespace, keys) as blocks:
        assert [bytes(block.memory) for block in blocks if block] == [
            b"1" * HALF + b"2" * HALF,
            b"x" * SIZE,
            b"1" * HALF + b"2" * HALF,
        ]


def test_a_token_is_good_for_several_writers_until_the_reservation_ends(
    daemon: DaemonProcess, client: LocalClient, namespace: NamespaceHandle
) -> None:
    made = shared(client, namespace, keys_of(1))
    with LocalClient.connect(daemon.socket_path, "one", SECONDS) as one:
        assert len(join(one, made.token, SECONDS)) == len(join(one, made.token, SECONDS)) == 1
        made.reservations.abort()
        client.status()  # is answered after the abort that went before it
        with pytest.raises(BadRequest, match="have ended"):
            join(one, made.token, SECONDS)
        with pytest.raises(BadRequest, match="unknown"):
            join(one, made.token[:-1] + b"?", SECONDS)


def test_where_everything_is_there_already_nothing_is_shared(client: LocalClient, namespace: NamespaceHandle) -> None:
    client.put(namespace, keys_of(1), [b"x" * SIZE])
    made = shared(client, namespace, keys_of(1))
    assert made.token == b""
    assert made.reservations.commit() == [CommitState.HAVE_IT]


def test_the_place_of_a_reservation_whose_owner_was_killed_is_nobodys_while_another_writer_lives(
    daemon: DaemonProcess, client: LocalClient, volatile: NamespaceHandle
) -> None:
    """The child reserves and is killed; a second writer goes on writing into a place that must not be a new block's by then."""
    before = leased_bytes(client)
    command = [sys.executable, "-c", OWNER, daemon.socket_path, volatile.request.family["model"]]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    writer = Writer(daemon.socket_path, bytes.fromhex(owner.stdout.readline()))
    owner.kill()
    owner.communicate(timeout=SECONDS)
    until(lambda: client.status().clients == 2, "the daemon learns of the owner's death")
    fresh = keys_of(256, first=1000)  # enough to come to every free place near by
    client.put(volatile, fresh, [b"f" * SIZE] * len(fresh))
    writer.write_again()
    with client.acquire(volatile, fresh) as blocks:
        assert {bytes(block.memory) for block in blocks if block} == {b"f" * SIZE}
        assert leased_bytes(client) > before
    assert all(client.verify(volatile, fresh))
    writer.end()
    until(lambda: leased_bytes(client) == before, "the places come back with the last writer")


def test_a_writer_with_a_staging_area_can_neither_share_nor_join(tmp_path: Path, client: LocalClient) -> None:
    settings: dict[str, Setting] = {"http.enabled": False, "socket.trusted_writers": [], "socket.staging": "4 MiB"}
    with (
        DaemonProcess.start(tmp_path, settings) as other,
        LocalClient.connect(other.socket_path, "untrusted", SECONDS) as untrusted,
    ):
        namespace = untrusted.open_namespace(family={"model": "m", "block_tokens": "4"})
        with pytest.raises(AccessDenied, match="trusted_writers"):
            shared(untrusted, namespace, keys_of(1))
