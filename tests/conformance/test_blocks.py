"""Putting, getting and holding blocks, and every way to get it wrong."""

import secrets

import pytest
import xxhash
from raw_protocol import (
    ABORT,
    ACQUIRE,
    ACQUIRED,
    ADOPT,
    ADOPTED,
    ADVANCE,
    BLOCKS,
    COMMIT,
    COMMITTED,
    DONE,
    EVICT,
    EXPECT,
    FAILED,
    LIST_BLOCKS,
    MATCH,
    MATCHED,
    OPEN,
    PIN,
    PROGRESS,
    RELEASE,
    RESERVE,
    SET_TTL,
    STAT,
    UNPIN,
    VERIFY,
    RawConnection,
)

FAILED_STATE, PUBLISHED, DURABLE, HAVE_IT = range(4)
KEYS = [bytes([i]) * 16 for i in range(8)]


def error(answer: list[object]) -> object:
    assert answer[0] == FAILED, answer
    return answer[2]


def read(connection: RawConnection, acquired: list[list[int]], item: int) -> bytes:
    offset, size = acquired[5][item], acquired[6][item]
    return connection.memory["arena"][offset : offset + size]


# --- put and get ---


def test_a_committed_block_can_be_matched_acquired_and_read(connection: RawConnection, handle: int) -> None:
    assert connection.put(handle, KEYS[:3], [b"one", b"two", b"three"])[::2] == [COMMITTED, bytes([PUBLISHED] * 3)]
    tiers, seconds = connection.ask(MATCH, handle, KEYS)[2:4]
    assert tiers == b"\2\2\2" and len(seconds) == 3 and sorted(seconds) == seconds
    acquired = connection.ask(ACQUIRE, handle, [KEYS[2], KEYS[7], KEYS[0]], 1000)
    assert acquired[2] == [0, 2] and acquired[8] == [1] and acquired[9] is False
    assert [read(connection, acquired, i) for i in (0, 1)] == [b"three", b"one"]
    assert connection.ask(RELEASE, acquired[3], acquired[4])[::2] == [DONE, 2]


def test_nothing_is_visible_before_commit_or_after_abort(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [10])
    assert connection.ask(MATCH, handle, KEYS[:1])[2] == b""
    assert connection.ask(ACQUIRE, handle, KEYS[:1], 0)[8] == [0]
    assert connection.ask(ABORT, reserved[2], reserved[3])[::2] == [DONE, 1]
    assert connection.ask(MATCH, handle, KEYS[:1])[2] == b""
    assert error(connection.ask(COMMIT, reserved[2], reserved[3], 1000)) == "UnknownReservation"


def test_a_block_that_is_there_needs_no_place_and_the_first_commit_wins(connection: RawConnection, handle: int) -> None:
    first, second = (connection.reserve(handle, KEYS[:1], [3]) for _ in range(2))
    for reserved, content in ((first, b"one"), (second, b"two")):
        connection.write_memory[reserved[4][0] : reserved[4][0] + 3] = content
    assert connection.ask(COMMIT, first[2], first[3], 1000)[2] == bytes([PUBLISHED])
    assert connection.ask(COMMIT, second[2], second[3], 1000)[2] == bytes([HAVE_IT])
    assert connection.reserve(handle, KEYS[:1], [3])[2] == [0]
    assert read(connection, connection.ask(ACQUIRE, handle, KEYS[:1], 1000), 0) == b"one"


def test_reservations_are_all_or_nothing(connection: RawConnection, handle: int) -> None:
    most = connection.welcome[10]
    connection.put(handle, KEYS[:1], [b"abc"])
    for keys, sizes, wrong in [
        (KEYS[:2], [4, 4], "LengthMismatch"),
        (KEYS[1:3], [4, most + 1], "BlockTooLarge"),
        (KEYS[1:3], [4, 0], "EmptyBlock"),
        (KEYS[1:3], [4, -1], "BadRequest"),
        (KEYS[1:3], [4], "BadRequest"),
        ([KEYS[1], KEYS[1]], [4, 4], "BadRequest"),
    ]:
        assert error(connection.reserve(handle, keys, sizes)) == wrong
    assert error(connection.reserve(handle, KEYS[1:3], [4, 4], [b""])) == "BadRequest"
    assert error(connection.reserve(handle, KEYS[1:3], [4, 4], [], [0])) == "BadRequest"
    status = connection.ask(STAT)
    assert [tier[6] for tier in status[6] if tier[0] == 2] == [0], "bytes that are reserved in DRAM"


def test_more_than_the_arena_holds_is_refused_or_busy_by_the_deadline(connection: RawConnection, handle: int) -> None:
    size = connection.welcome[10]
    count = connection.welcome[5] // size + 2
    keys = [secrets.token_bytes(16) for _ in range(count)]
    answer = connection.ask(RESERVE, handle, keys, [size] * count, 50)
    assert error(answer) in ("Busy", "PinLimitExceeded", "BadRequest")


# --- commit ---


def test_a_reservation_is_committed_once(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [10])
    connection.ask(COMMIT, reserved[2], reserved[3], 1000)
    assert error(connection.ask(COMMIT, reserved[2], reserved[3], 1000)) == "UnknownReservation"
    assert error(connection.ask(ABORT, reserved[2], reserved[3])) == "UnknownReservation"


def test_an_unknown_reservation_in_a_commit_commits_nothing(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [10])
    (number,), (generation,) = reserved[2:4]
    for numbers, generations in (
        ([number, 77], [generation, 1]),
        ([number], [generation + 1]),
        ([number] * 2, [generation] * 2),
    ):
        assert error(connection.ask(COMMIT, numbers, generations, 1000)) == "UnknownReservation"
    assert error(connection.ask(COMMIT, [number], [], 1000)) == "BadRequest"
    assert error(connection.ask(COMMIT, [number], [generation], 1000, [b"short"])) == "BadRequest"
    assert connection.ask(COMMIT, [number], [generation], 1000)[2] == bytes([PUBLISHED])


def test_a_commit_on_another_connection_of_the_process_is_unknown(
    socket_path: str, connection: RawConnection, handle: int
) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [10])
    with RawConnection.greeted(socket_path, connection.process) as other:
        assert error(other.ask(COMMIT, reserved[2], reserved[3], 1000)) == "UnknownReservation"


def test_a_commit_after_the_connection_was_cut_is_unknown(socket_path: str) -> None:
    first = RawConnection.greeted(socket_path)
    handle = first.open(model="cut")
    reserved = first.reserve(handle, KEYS[:1], [10])
    first.close()
    with RawConnection.greeted(socket_path, first.process, reserved[2]) as second:
        assert error(second.ask(COMMIT, reserved[2], reserved[3], 1000)) == "UnknownReservation"
        assert second.ask(MATCH, second.open(model="cut"), KEYS[:1])[2] == b""


def test_digests_are_compared(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:3], [4] * 3)
    for offset in reserved[4]:
        connection.write_memory[offset : offset + 4] = b"data"
    digests = [xxhash.xxh3_128_digest(b"data"), bytes(16), b""]
    committed = connection.ask(COMMIT, reserved[2], reserved[3], 1000, digests)
    assert committed[2] == bytes([PUBLISHED, FAILED_STATE, PUBLISHED])
    ((index, name, message, data),) = committed[3]
    assert (index, name) == (1, "DigestMismatch") and message and data["got"] == digests[0].hex()
    stats = connection.ask(STAT, handle, KEYS[:3])[2]
    assert [stat[3] if stat else None for stat in stats] == [digests[0], None, digests[0]]


def test_what_is_kept_in_memory_cannot_be_promised_to_be_durable(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [10])
    assert error(connection.ask(COMMIT, reserved[2], reserved[3], 1000, [], True)) == "BadRequest"
    assert connection.ask(COMMIT, reserved[2], reserved[3], 1000)[2] == bytes([PUBLISHED])


# --- leases ---


def test_a_lease_is_released_once_and_by_its_generation(connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:2], [b"one", b"two"])
    acquired = connection.ask(ACQUIRE, handle, KEYS[:2], 1000)
    numbers, generations = acquired[3:5]
    assert error(connection.ask(RELEASE, numbers, [generations[0], generations[1] + 1])) == "UnknownLease"
    assert error(connection.ask(RELEASE, [*numbers, 77], [*generations, 1])) == "UnknownLease"
    assert connection.ask(RELEASE, numbers, generations)[::2] == [DONE, 2], "nothing was released before"
    assert error(connection.ask(RELEASE, numbers, generations)) == "UnknownLease"


def test_a_release_with_id_0_is_not_answered_not_even_when_it_is_wrong(connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:1], [b"one"])
    acquired = connection.ask(ACQUIRE, handle, KEYS[:1], 1000)
    connection.send([RELEASE, 0, [*acquired[3], 77], [*acquired[4], 1]])
    assert error(connection.ask(RELEASE, acquired[3], acquired[4])) == "UnknownLease"


def test_leases_of_another_process_cannot_be_released(socket_path: str, connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:1], [b"one"])
    acquired = connection.ask(ACQUIRE, handle, KEYS[:1], 1000)
    with RawConnection.greeted(socket_path) as stranger:
        assert error(stranger.ask(RELEASE, acquired[3], acquired[4])) == "UnknownLease"


def test_a_leased_block_keeps_its_bytes_whatever_happens_to_it(connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:1], [b"kept" * 1024])
    acquired = connection.ask(ACQUIRE, handle, KEYS[:1], 1000)
    assert connection.ask(EVICT, handle, KEYS[:2])[::2] == [DONE, 1]
    assert connection.ask(MATCH, handle, KEYS[:1])[2] == b""
    connection.put(handle, KEYS[:1], [b"anew" * 1024])
    for _ in range(20):
        connection.put(handle, [secrets.token_bytes(16)], [b"else" * 1024])
    assert read(connection, acquired, 0) == b"kept" * 1024
    assert read(connection, connection.ask(ACQUIRE, handle, KEYS[:1], 1000), 0) == b"anew" * 1024


def test_a_token_moves_leases_once(socket_path: str, connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:2], [b"one", b"two"])
    acquired = connection.ask(ACQUIRE, handle, KEYS[:2], 1000, False, False, True)
    token = acquired[10]
    with RawConnection.greeted(socket_path) as other:
        assert error(other.ask(ADOPT, bytes(len(token)))) == "BadRequest"
        adopted = other.ask(ADOPT, token)
        assert adopted[0] == ADOPTED and adopted[2] == KEYS[:2]
        assert other.memory["arena"][adopted[5][0] : adopted[5][0] + adopted[6][0]] == b"one"
        assert error(other.ask(ADOPT, token)) == "BadRequest"
        assert error(connection.ask(RELEASE, acquired[3], acquired[4])) == "UnknownLease"
        assert other.ask(RELEASE, adopted[3], adopted[4])[0] == DONE


# --- waiting ---


def test_a_waiting_acquire_hears_of_layers_and_ends_with_the_block(socket_path: str, connection: RawConnection) -> None:
    handle = connection.open(model="waiting")
    connection.put(handle, KEYS[:1], [b"here"])
    with RawConnection.greeted(socket_path) as producer:
        reserved = producer.reserve(producer.open(model="waiting"), [KEYS[1]], [4], [], [], [], 3)
        connection.send([ACQUIRE, 500, handle, KEYS[:3], 10_000, True])
        early = connection.receive()
        assert early[0] == ACQUIRED and early[2] == [0] and early[9] is True
        producer.ask(ADVANCE, reserved[2], 2)
        answers = [connection.receive()]
        producer.write_memory[reserved[4][0] : reserved[4][0] + 4] = b"late"
        producer.ask(COMMIT, reserved[2], reserved[3], 1000)
        while answers[-1][0] != ACQUIRED or answers[-1][9]:
            answers.append(connection.receive())
    assert [PROGRESS, 500, 1, 2, 3] in answers
    replies = [early, *(answer for answer in answers if answer[0] == ACQUIRED)]
    assert sorted(i for reply in replies for i in reply[2] + reply[8]) == [0, 1, 2]
    assert [i for reply in replies for i in reply[8]] == [2], "nobody puts the third"


def test_the_end_of_a_producer_ends_the_wait(socket_path: str, connection: RawConnection) -> None:
    handle = connection.open(model="producer's end")
    with RawConnection.greeted(socket_path) as producer:
        producer.reserve(producer.open(model="producer's end"), KEYS[:1], [4])
        connection.send([ACQUIRE, 500, handle, KEYS[:1], 10_000, True])
    answers = [connection.receive()]
    while answers[-1][9]:
        answers.append(connection.receive())
    assert {answer[0] for answer in answers} == {ACQUIRED}
    assert [i for answer in answers for i in answer[8]] == [0]
    assert not any(answer[2] for answer in answers)


def test_an_expected_block_is_waited_for_until_the_deadline(connection: RawConnection, handle: int) -> None:
    assert connection.ask(EXPECT, handle, KEYS[:1], 60_000)[0] == DONE
    assert connection.ask(ACQUIRE, handle, KEYS[:1], 30, True)[8:10] == [[0], False]
    assert error(connection.ask(EXPECT, handle, KEYS[:1], 0)) == "BadRequest"


def test_layers_beyond_those_announced_are_refused(connection: RawConnection, handle: int) -> None:
    reserved = connection.reserve(handle, KEYS[:1], [4], [], [], [], 3)
    assert connection.ask(ADVANCE, reserved[2], 3)[0] == DONE
    assert error(connection.ask(ADVANCE, reserved[2], 4)) == "BadRequest"
    assert error(connection.ask(ADVANCE, [77], 1)) == "UnknownReservation"


# --- namespaces and housekeeping ---


@pytest.mark.parametrize("name", ["a", "UPPER", "white space", "x" * 64, "-x-", "../etc"])
def test_names_that_no_namespace_may_have_are_refused(connection: RawConnection, name: str) -> None:
    assert error(connection.ask(OPEN, name, "kv", {"model": "m"})) == "BadBucketName"


def test_a_namespace_is_opened_again_under_its_name_and_not_with_another_family(connection: RawConnection) -> None:
    name = f"mine-{secrets.token_hex(4)}"
    assert error(connection.ask(OPEN, name, "kv", {"m": "1"}, "", "", "sha256", False)) == "NoSuchNamespace"
    first = connection.ask(OPEN, name, "kv", {"m": "1"}, "", "memory")
    again = connection.ask(OPEN, name, "kv", {"m": "1"})
    assert first[2:] == again[2:]
    refused = connection.ask(OPEN, name, "kv", {"m": "2"})
    assert error(refused) == "FamilyMismatch"
    assert (refused[4]["field"], refused[4]["have"], refused[4]["got"]) == ("m", "1", "2")


def test_handles_belong_to_their_connection(socket_path: str, handle: int) -> None:
    with RawConnection.greeted(socket_path) as stranger:
        assert error(stranger.ask(MATCH, handle, KEYS[:1])) == "NoSuchNamespace"


def test_pins_count_and_ttl_is_told(connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:1], [b"one"])
    for _ in range(2):
        assert connection.ask(PIN, handle, KEYS[:2])[::2] == [DONE, 1]
    connection.ask(UNPIN, handle, KEYS[:1])
    assert connection.ask(SET_TTL, handle, KEYS[:2], 60_000)[::2] == [DONE, 1]
    (stat, missing) = connection.ask(STAT, handle, KEYS[:2])[2]
    assert missing is None
    assert (stat[0], stat[1], stat[2], stat[8]) == (KEYS[0], 3, [2], 1)
    assert 50 < stat[10] <= 60
    assert connection.ask(SET_TTL, handle, KEYS[:1], 0)[::2] == [DONE, 1]
    assert connection.ask(STAT, handle, KEYS[:1])[2][0][10] == 0
    assert error(connection.ask(SET_TTL, handle, KEYS[:1], -1)) == "BadRequest"


def test_a_listing_is_in_byte_order_and_goes_on_where_it_stopped(connection: RawConnection, handle: int) -> None:
    names = [b"a", b"ab", b"b", b"a\xff", b"\0"]
    connection.put(handle, names, [b"x"] * 5)
    assert [stat[0] for stat in connection.ask(LIST_BLOCKS, handle)[2]] == sorted(names)
    page = connection.ask(LIST_BLOCKS, handle, b"a", b"", 2)
    assert ([stat[0] for stat in page[2]], page[3]) == ([b"a", b"ab"], True)
    page = connection.ask(LIST_BLOCKS, handle, b"a", b"ab", 2)
    assert ([stat[0] for stat in page[2]], page[3]) == ([b"a\xff"], False)
    assert error(connection.ask(LIST_BLOCKS, handle, b"", b"", 0)) == "BadRequest"


def test_verify_tells_right_blocks_from_missing_ones(connection: RawConnection, handle: int) -> None:
    connection.put(handle, KEYS[:1], [b"one"])
    answer = connection.ask(VERIFY, handle, KEYS[:2], 5000)
    assert answer[0] == BLOCKS
    assert [stat[0] if stat else None for stat in answer[2]] == [KEYS[0], None]


def test_requests_run_side_by_side_and_are_answered_under_their_ids(connection: RawConnection, handle: int) -> None:
    connection.ask(EXPECT, handle, KEYS[:1], 60_000)
    connection.send([ACQUIRE, 900, handle, KEYS[:1], 300, True])
    connection.send([MATCH, 901, handle, KEYS[:1]])
    assert connection.receive()[:2] == [MATCHED, 901]
    assert connection.receive()[:2] == [ACQUIRED, 900]
