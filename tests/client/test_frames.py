"""Bytes become replies however the stream is cut."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.client import wire
from mooncask.client.frames import ReplyReader
from mooncask.errors import BadRequest

ENCODER = msgspec.msgpack.Encoder()
REPLIES: list[wire.Reply] = [
    wire.Done(1, 5),
    wire.Matched(2, bytes([2, 3, 2]), [0.25, 0.5, 0.75]),
    wire.Acquired(3, [0], [2**63], [1], [4096], [10], b"\2", [1], True),
    wire.Failed(4, "NoSuchBlock", "text", {"key": "ab", "size": 1, "seconds": 0.5}),
    wire.Blocks(5, [None]),
]
STREAM = b"".join(wire.frame(ENCODER, reply) for reply in REPLIES)


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cut_of_a_stream_gives_the_same_replies_in_order(cuts: list[int]) -> None:
    reader, found = ReplyReader(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for start, stop in pairwise(edges):
        found += reader.feed(memoryview(STREAM)[start:stop])
    assert found == REPLIES


def test_replies_do_not_refer_to_the_buffer_they_came_in() -> None:
    buffer = bytearray(STREAM)
    found = ReplyReader().feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert found == REPLIES


def test_an_oversized_frame_is_refused_before_its_bytes_arrive() -> None:
    with pytest.raises(BadRequest, match=str(wire.FRAME_BYTES_MAX)):
        ReplyReader().feed(wire.HEADER.pack(wire.FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x92\xcd\xff\xff\x01", ENCODER.encode(wire.Match(1, 1, []))])
def test_what_is_no_reply_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest, match="malformed"):
        ReplyReader().feed(wire.HEADER.pack(len(body)) + body)
