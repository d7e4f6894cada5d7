"""The question about blocks that are being written: what is no question and no answer, and how far a payload is."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from mooncask.daemon.peers.following import (
    BLOCKS_MAX,
    Coming,
    Followed,
    Following,
    parse_followed,
    parse_following,
    written_bytes,
)
from mooncask.daemon.peers.progressive import BRINGS_MAX, bring_all
from mooncask.errors import BadRequest

NS = bytes(16)
encode = msgspec.msgpack.encode
HERE, WRITING = bytes([Coming.HERE]), bytes([Coming.WRITING])


@pytest.mark.parametrize(
    "question",
    [
        Following(NS, [], b"", [], []),
        Following(NS, [b"k"] * (BLOCKS_MAX + 1), bytes(BLOCKS_MAX + 1), [], []),
        Following(NS, [b"k"], b"", [], []),
        Following(NS, [], b"", [7], []),
    ],
)
def test_a_question_about_nothing_or_too_much_or_with_gaps_is_none(question: Following) -> None:
    with pytest.raises(BadRequest):
        parse_following(encode(question))
    with pytest.raises(BadRequest):
        parse_following(encode(question)[:-1] + b"\xc1")


def test_an_answer_is_understood_as_it_was_sent() -> None:
    answer = Followed(WRITING, [8], HERE, [8], [8], [b"c" * 16])
    assert parse_followed(encode(answer), 1, 1) == answer


@pytest.mark.parametrize(
    "answer",
    [
        Followed(WRITING, [8], b"", [], [], []),
        Followed(b"", [8], WRITING, [1], [8], [b""]),
        Followed(WRITING, [8], WRITING, [], [8], [b""]),
        Followed(b"\x07", [8], WRITING, [1], [8], [b""]),
        Followed(WRITING, [8], b"\x07", [1], [8], [b""]),
        Followed(WRITING, [8], HERE, [8], [8], [b""]),
        Followed(WRITING, [8], HERE, [8], [8], [b"c" * 15]),
    ],
)
def test_an_answer_about_others_or_without_the_checksum_that_bytes_are_held_against_is_none(answer: Followed) -> None:
    with pytest.raises(BadRequest):
        parse_followed(encode(answer), 1, 1)


@pytest.mark.parametrize(
    ("size", "done", "of", "written"),
    [
        (800, 0, 8, 0),
        (800, 3, 8, 300),
        (800, 8, 8, 800),
        (801, 3, 8, 0),
        (800, 3, 0, 0),
        (800, 9, 8, 0),
        (800, -1, 8, 0),
    ],
)
def test_a_payload_that_can_not_be_divided_by_its_layers_is_written_only_when_it_is_whole(
    size: int, done: int, of: int, written: int
) -> None:
    assert written_bytes(size, done, of) == written


@pytest.mark.parametrize(
    ("fruitless", "problem", "asked"),
    [
        (0, "", [[b"a", b"b"]]),
        (2, "", [[b"a", b"b"], [b"b"], [b"b"]]),
        (2, "no room", [[b"a", b"b"]]),
        (BRINGS_MAX, "", [[b"a", b"b"]] + [[b"b"]] * (BRINGS_MAX - 1)),
    ],
)
def test_a_block_that_others_look_for_in_vain_is_fetched_after_them_and_not_for_ever(
    fruitless: int, problem: str, asked: list[list[bytes]]
) -> None:
    here: set[bytes] = set()
    found: list[list[bytes]] = []

    async def bring(keys: Sequence[bytes]) -> str:
        found.append(list(keys))
        here.update(keys if len(found) > fruitless else {b"a"})
        return problem

    asyncio.run(bring_all([b"a", b"b"], here.__contains__, bring))
    assert found == asked
