"""A worker's loop on plain byte streams: bad lines are refused, failures answered, and the worker lives on."""

import io
import logging

import msgspec
import pytest

from mooncask.engine_adapter.transformers import serving
from mooncask.engine_adapter.transformers.messages import LINE_BYTES_MAX, Line, Ready, Refusal, Request
from mooncask.engine_adapter.transformers.serving import bounded_lines, serve
from mooncask.errors import BadRequest

READY = Ready("decode", "m", 1, "float32", 16, 1024, "", {}, 1.0)


def answers_to(*lines: bytes) -> list[Line]:
    def run(request: Request) -> Refusal:
        if request.id == "bug":
            raise ZeroDivisionError("not expected")
        if request.id == "refused":
            raise BadRequest("too many tokens")
        return Refusal(request.id, "", "this stands for a result")

    out = io.BytesIO()
    serve(run, READY, io.BytesIO(b"\n".join(lines) + b"\n"), out)
    return [msgspec.json.decode(line, type=Line) for line in out.getvalue().splitlines()]


def refusals(*lines: bytes) -> list[Refusal]:
    return [answer for answer in answers_to(*lines) if isinstance(answer, Refusal)]


def test_the_first_line_says_that_the_worker_is_ready() -> None:
    assert answers_to(b"") == [READY]


def test_requests_are_answered_in_order() -> None:
    assert [answer.id for answer in refusals(b'{"id":"a","tokens":[1]}', b'{"id":"b","tokens":[2]}')] == ["a", "b"]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"[]",
        b'{"id":"a"}',
        b'{"id":"a","tokens":[]}',
        b'{"id":"a","tokens":[-1]}',
        b'{"id":"a","tokens":[4294967296]}',
        b'{"id":"a","tokens":[1],"max_tokens":0}',
        b'{"id":"a","tokens":[1],"temperature":-1}',
        b'{"id":"a","tokens":[1],"unknown":1}',
    ],
)
def test_a_line_that_is_no_request_is_refused_and_the_next_is_answered(line: bytes) -> None:
    bad, good = refusals(line, b'{"id":"next","tokens":[1]}')
    assert (bad.error, good.id) == ("BadRequest", "next")


def test_what_the_worker_refuses_is_answered_by_name() -> None:
    (answer,) = refusals(b'{"id":"refused","tokens":[1]}')
    assert (answer.id, answer.error, answer.message) == ("refused", "BadRequest", "too many tokens")


def test_a_bug_in_one_request_is_logged_and_answered(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, logger=serving.__name__):
        bug, good = refusals(b'{"id":"bug","tokens":[1]}', b'{"id":"next","tokens":[1]}')
    assert (bug.error, good.id) == ("InternalError", "next")


def test_a_line_without_end_is_skipped_without_being_kept() -> None:
    endless = b"x" * (2 * LINE_BYTES_MAX + 5)
    assert list(bounded_lines(io.BytesIO(endless + b"\nnext\n"))) == [None, b"next\n"]
