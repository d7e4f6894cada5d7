"""Introductions: who gets in, with what, and what a Hello frees."""

import secrets
import struct

import pytest
from raw_protocol import (
    ABORT,
    ACQUIRE,
    ACQUIRED,
    DONE,
    FAILED,
    HELLO,
    MATCH,
    RELEASE,
    RESERVED,
    STAT,
    STATUS,
    RawConnection,
    frame,
)


def test_a_welcome_tells_the_limits_and_hands_over_the_arena(connection: RawConnection) -> None:
    welcome = connection.welcome
    assert welcome[2] == 1
    assert len(welcome[4]) == 16
    assert welcome[7][0] == "arena" and len(connection.memory["arena"]) == welcome[5] > 0
    assert 1 <= welcome[11] <= 4096 and welcome[10] > 0 and welcome[12] > 0
    assert ("arena-writable" in connection.memory) != ("staging" in connection.memory)


def test_a_reader_gets_no_memory_to_write(socket_path: str) -> None:
    with RawConnection.greeted(socket_path, want_write=False) as reader:
        assert list(reader.memory) == ["arena"]


def test_two_connections_meet_the_same_start_of_the_server(socket_path: str, connection: RawConnection) -> None:
    with RawConnection.greeted(socket_path) as other:
        assert other.welcome[4] == connection.welcome[4]


@pytest.mark.parametrize(
    ("hello", "error"),
    [
        ([HELLO, 1, 2, "x", bytes(16)], "ProtocolMismatch"),
        ([HELLO, 1, 1, "x", b"short"], "BadRequest"),
        ([MATCH, 1, 1, []], "BadRequest"),
        ([HELLO, 1, "one", "x", bytes(16)], "BadRequest"),
    ],
    ids=["another protocol", "short token", "not a Hello", "wrong type"],
)
def test_a_wrong_hello_is_refused_with_a_reason_and_the_connection_closed(
    socket_path: str, hello: list[object], error: str
) -> None:
    with RawConnection(socket_path) as connection:
        connection.send(hello)
        answer = connection.receive()
        assert answer[:3] == [FAILED, 0, error]
        assert connection.is_closed()


def test_a_protocol_mismatch_names_both_versions(socket_path: str) -> None:
    with RawConnection(socket_path) as connection:
        connection.send([HELLO, 1, 99, "x", bytes(16)])
        assert connection.receive()[4] == {"ours": 1, "theirs": 99}


def test_a_hello_may_come_in_pieces_and_with_requests_behind_it(socket_path: str) -> None:
    with RawConnection(socket_path) as connection:
        data = frame([HELLO, 1, 1, "x", secrets.token_bytes(16)]) + frame([STAT, 2])
        for byte in data[:40]:
            connection.send_bytes(bytes([byte]))
        connection.send_bytes(data[40:])
        connection.be_welcomed()
        assert connection.receive()[:2] == [STATUS, 2]


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", struct.pack("<I", 5 << 20), b"GET / HTTP/1.1\r\n\r\n"], ids=repr)
def test_what_is_no_hello_at_all_closes_the_connection(socket_path: str, data: bytes) -> None:
    with RawConnection(socket_path) as connection:
        connection.send_bytes(data)
        try:
            assert connection.receive()[0] == FAILED
        except EOFError:
            return
        assert connection.is_closed()


def test_unknown_fields_at_the_end_are_ignored(socket_path: str) -> None:
    with RawConnection(socket_path) as connection:
        connection.send([HELLO, 1, 1, "x", secrets.token_bytes(16), True, [], "from the future"])
        connection.be_welcomed()


def lease(connection: RawConnection, handle: int, key: bytes) -> tuple[int, int]:
    connection.put(handle, [key], [b"x" * 100])
    acquired = connection.ask(ACQUIRE, handle, [key], 1000)
    assert acquired[0] == ACQUIRED
    return acquired[3][0], acquired[4][0]


def test_a_reconnect_keeps_the_leases_it_names_and_frees_the_others(socket_path: str) -> None:
    first = RawConnection.greeted(socket_path)
    handle = first.open()
    kept, freed = lease(first, handle, b"kept"), lease(first, handle, b"freed")
    first.close()
    with RawConnection.greeted(socket_path, first.process, [kept[0], 12345]) as second:
        assert second.welcome[9] == [kept[0]]
        unknown = second.ask(RELEASE, [freed[0]], [freed[1]])
        assert unknown[:1] + unknown[2:3] == [FAILED, "UnknownLease"]
        assert second.ask(RELEASE, [kept[0]], [kept[1]])[::2] == [DONE, 1]


def test_leases_of_a_live_connection_are_not_freed_by_another_ones_hello(
    socket_path: str, connection: RawConnection, handle: int
) -> None:
    number, generation = lease(connection, handle, b"a key")
    with RawConnection.greeted(socket_path, connection.process) as second:
        assert second.welcome[9] == []
        assert second.ask(RELEASE, [number], [generation])[0] == DONE, "leases belong to the process"
    assert connection.ask(RELEASE, [number], [generation])[2] == "UnknownLease"


def test_places_of_a_cut_connection_can_be_named_and_aborted_over_another(socket_path: str) -> None:
    first = RawConnection.greeted(socket_path)
    reserved = first.reserve(first.open(), [b"k1", b"k2"], [4096, 4096])
    assert reserved[0] == RESERVED
    staged = "staging" in first.memory
    first.close()
    with RawConnection.greeted(socket_path, first.process, [reserved[2][0]]) as second:
        answers = [second.ask(ABORT, [reserved[2][i]], [reserved[3][i]]) for i in (0, 1)]
    assert answers[1][2] == "UnknownReservation", "it was not named"
    assert answers[0][0] == (FAILED if staged else DONE)
