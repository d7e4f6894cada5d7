"""Frames that are wrong close their connection; the server and all other connections go on."""

import struct
from typing import Any

import msgspec
import pytest
from raw_protocol import ACQUIRE, DONE, FAILED, HELLO, MATCH, MATCHED, PIN, RELEASE, STAT, STATUS, RawConnection, frame

MALFORMED = {
    "empty": struct.pack("<I", 0),
    "not MessagePack": struct.pack("<I", 3) + b"\xc1\xc1\xc1",
    "cut off inside": struct.pack("<I", 2) + b"\x93\x03",
    "a map": frame({"tag": MATCH}),
    "a number": frame(7),
    "empty array": frame([]),
    "unknown tag": frame([77, 1]),
    "a reply's tag": frame([DONE, 1, 0]),
    "a negative tag": frame([-3, 1, 1, []]),
    "no id": frame([MATCH]),
    "id of a wrong type": frame([MATCH, "one", 1, []]),
    "a field missing": frame([MATCH, 1, 1]),
    "a field of a wrong type": frame([MATCH, 1, 1, "keys"]),
    "a key of a wrong type": frame([MATCH, 1, 1, [1, 2]]),
    "bytes behind the message": struct.pack("<I", 9) + msgspec.msgpack.encode([STAT, 1]) + b"\xc0" * 6,
    "too long": struct.pack("<I", (4 << 20) + 1),
    "as long as can be": b"\xff" * 4,
    "a second Hello": frame([HELLO, 1, 1, "x", bytes(16)]),
    "deeply nested": frame([MATCH, 1, 1, msgspec.Raw(b"\x91" * 1000 + b"\xc0")]),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_frame_closes_the_connection_and_nothing_else(
    socket_path: str, connection: RawConnection, data: bytes
) -> None:
    with RawConnection.greeted(socket_path) as victim:
        victim.send_bytes(data)
        assert victim.is_closed()
    assert connection.ask(STAT)[0] == STATUS


def test_a_frame_may_come_byte_by_byte_and_many_may_come_at_once(connection: RawConnection, handle: int) -> None:
    for byte in frame([MATCH, 1000, handle, [b"k"]]):
        connection.send_bytes(bytes([byte]))
    assert connection.receive() == [MATCHED, 1000, b"", []]
    connection.send_bytes(b"".join(frame([MATCH, i, handle, [b"k"]]) for i in range(500)))
    assert sorted(connection.receive()[1] for _ in range(500)) == list(range(500))


def test_the_largest_batch_of_the_longest_keys_is_answered(connection: RawConnection, handle: int) -> None:
    count = min(connection.welcome[11], ((4 << 20) - 100) // 1030)
    keys = [i.to_bytes(4, "big") + bytes(1020) for i in range(count)]
    assert connection.ask(MATCH, handle, keys)[0] == MATCHED


def test_a_frame_of_four_mebibytes_is_not_too_long(connection: RawConnection, handle: int) -> None:
    """It is refused for what it asks, with an answer."""
    answer = connection.ask(MATCH, handle, [bytes((4 << 20) - 100)])
    assert answer[::2][:2] == [FAILED, "BadRequest"]


def test_half_a_frame_and_a_hang_up_harm_nobody(socket_path: str, connection: RawConnection) -> None:
    with RawConnection.greeted(socket_path) as victim:
        victim.send_bytes(struct.pack("<I", 1000) + b"\x93")
    assert connection.ask(STAT)[0] == STATUS


def test_a_client_that_reads_no_answers_is_not_served_without_end(socket_path: str, connection: RawConnection) -> None:
    """Its requests stop being read; others are served; the server buffers a bounded amount."""
    with RawConnection.greeted(socket_path) as deaf:
        deaf.sock.settimeout(1.0)
        request = frame([STAT, 1]) * 1000
        with pytest.raises(TimeoutError):
            for _ in range(10_000):
                deaf.send_bytes(request)
        assert connection.ask(STAT)[0] == STATUS


def test_requests_that_are_wrong_are_answered_and_the_connection_goes_on(
    connection: RawConnection, handle: int
) -> None:
    too_many = [i.to_bytes(4, "big") for i in range(connection.welcome[11] + 1)]
    wrong: list[tuple[tuple[Any, ...], str]] = [
        ((MATCH, 999_999, [b"k"]), "NoSuchNamespace"),
        ((MATCH, handle, too_many), "BadRequest"),
        ((MATCH, handle, []), "BadRequest"),
        ((ACQUIRE, handle, [b""], 100), "BadRequest"),
        ((ACQUIRE, handle, [bytes(1025)], 100), "BadRequest"),
        ((PIN, -1, [b"k"]), "NoSuchNamespace"),
        ((RELEASE, [1, 2], [1]), "BadRequest"),
        ((RELEASE, [77], [1]), "UnknownLease"),
    ]
    for request, error in wrong:
        answer = connection.ask(*request)
        assert (answer[0], answer[2]) == (FAILED, error), request[:2]
        assert answer[3], "a message for people"
    assert connection.ask(STAT)[0] == STATUS
