"""Frames and messages between peers: bounded, and whatever does not fit is an error of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.daemon.transport import messages
from mooncask.errors import BadRequest, Busy, MooncaskError, PeerChanged, UnknownLease

COLUMNS = len(messages.Leased.__struct_fields__) - 1
"""All fields but the request's number."""


@pytest.mark.parametrize(
    "message",
    [
        messages.Lease(1, b"n" * 16, [b"k"], 100),
        messages.Release(0, [1, 1 << 63]),
        messages.Ask(3, "have", b"payload", 5),
        messages.Cancel(4),
        messages.Ping(5),
    ],
)
def test_a_request_is_what_it_was_on_the_other_side(message: messages.Request) -> None:
    data = messages.frame(message)
    assert messages.frame_length(data[:4]) == len(data) - 4
    assert messages.parse_request(data[4:]) == message


@pytest.mark.parametrize("error", [Busy("no room", 1.5), UnknownLease(1 << 63), PeerChanged("n2", "aa", "bb")])
def test_an_error_arrives_as_it_was_raised(error: MooncaskError) -> None:
    reply = messages.parse_reply(messages.frame(messages.failed(7, error))[4:])
    assert isinstance(reply, messages.Failed)
    back = messages.error_of(reply)
    assert (type(back), back.message, vars(back)) == (type(error), error.message, vars(error))


@pytest.mark.parametrize("length", range(1, 200, 13))
def test_a_refused_read_keeps_what_follows_at_multiples_of_64_bytes(length: int) -> None:
    error = Busy("x" * length)
    answer = messages.refused_read(error)
    size = messages.refusal_length(answer[: messages.ANSWER_BYTES])
    body = answer[messages.ANSWER_BYTES :]
    assert len(answer) % 64 == 0 and len(body) == messages.padded(size)
    assert messages.error_of(messages.parse_failed(body[:size])).message == error.message
    assert messages.refusal_length(messages.BYTES_FOLLOW) == 0 and len(messages.BYTES_FOLLOW) == 64


def test_a_frame_that_is_too_long_is_neither_sent_nor_read() -> None:
    with pytest.raises(BadRequest):
        messages.frame(messages.Ask(1, "have", bytes(messages.FRAME_BYTES_MAX), 1))
    with pytest.raises(BadRequest):
        messages.frame_length(messages.HEADER.pack(messages.FRAME_BYTES_MAX + 1))


def test_columns_of_different_lengths_are_no_answer() -> None:
    wrong = messages.Leased(1, [0], *([[]] * (COLUMNS - 1)))
    with pytest.raises(BadRequest):
        messages.parse_reply(messages.frame(wrong)[4:])
    empty = messages.Leased(1, *([[]] * COLUMNS))
    assert messages.parse_reply(messages.frame(empty)[4:]) == empty


@pytest.mark.parametrize(
    "wrong",
    [
        messages.ReadPieces([], [], []),
        messages.ReadPieces([1], [0, 1], [1]),
        messages.ReadPieces([1], [-1], [1]),
        messages.ReadPieces([1], [0], [0]),
        messages.ReadPieces([1], [0], [-5]),
        messages.ReadPieces([1] * 4097, [0] * 4097, [1] * 4097),
    ],
)
def test_a_read_without_sense_is_refused(wrong: messages.ReadPieces) -> None:
    with pytest.raises(BadRequest):
        messages.parse_read(messages.frame(wrong)[4:])


@given(st.binary(max_size=300))
def test_whatever_comes_is_parsed_or_refused(said: bytes) -> None:
    for parse in (messages.parse_request, messages.parse_reply, messages.parse_read, messages.parse_failed):
        try:
            parse(said)
        except BadRequest:
            continue
