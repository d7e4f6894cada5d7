"""Traces survive a round trip, and a broken one is refused with file, line and field."""

from pathlib import Path

import pytest
from public_trace import conversation_trace

from mooncask.conductor.traces.jsonl import LINE_BYTES_MAX, read_trace, write_trace
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadTrace

GOOD = '{"timestamp": 5, "input_length": 700, "output_length": 3, "hash_ids": [1, 2]}'


def refusal(path: Path, *lines: str) -> str:
    path.write_text("".join(line + "\n" for line in lines))
    with pytest.raises(BadTrace) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


def test_requests_come_back_as_they_were_written(path: Path) -> None:
    requests = [Request(0, 600, 10, (0, 1)), Request(7, 1200, 0, (0, 1, 2), conversation=9, turn=1)]
    assert write_trace(path, requests) == 2
    assert list(read_trace(path)) == requests


def test_the_written_form_is_the_public_one(path: Path) -> None:
    write_trace(path, [Request(5, 700, 3, (1, 2))])
    assert path.read_text().replace(" ", "") == GOOD.replace(" ", "") + "\n"


def test_unknown_fields_and_empty_lines_are_ignored(path: Path) -> None:
    path.write_text(GOOD[:-1] + ', "type": "chat"}\n\n' + GOOD)
    assert [request.hash_ids for request in read_trace(path)] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (GOOD.replace('"output_length": 3, ', ""), "field output_length: missing"),
        (GOOD.replace("700", '"many"'), "field input_length: Expected `int`, got `str`"),
        (GOOD.replace("700", "0"), "field input_length: Expected `int` >= 1"),
        (GOOD.replace("2]", '"x"]'), "field hash_ids[1]: Expected `int`, got `str`"),
        (GOOD.replace("[1, 2]", "[]"), "field hash_ids: Expected `array` of length >= 1"),
        (GOOD.replace("5,", "-5,", 1), "field timestamp: Expected `int` >= 0"),
        (GOOD.replace("5,", "4,", 1), "field timestamp: 4 is before the line above (5)"),
        (GOOD[:-9], "not a JSON object"),
        ("[1]", "Expected `object`"),
    ],
)
def test_a_broken_line_is_refused_with_file_line_and_field(path: Path, line: str, complaint: str) -> None:
    assert refusal(path, GOOD, line, GOOD).startswith(f"{path}:2: {complaint}")


def test_requests_before_a_broken_line_are_still_delivered(path: Path) -> None:
    path.write_text(GOOD + "\nbroken\n")
    reading = read_trace(path)
    assert next(reading).timestamp_ms == 5
    with pytest.raises(BadTrace):
        next(reading)


def test_bytes_that_are_no_text_are_refused(path: Path) -> None:
    path.write_bytes(b'{"timestamp": 1, "x": "\xff"}\n')
    with pytest.raises(BadTrace, match=":1:"):
        list(read_trace(path))


def test_a_line_of_any_length_does_not_fill_the_memory(path: Path) -> None:
    path.write_bytes(b"[" + b"1," * (LINE_BYTES_MAX // 2 + 1))
    with pytest.raises(BadTrace, match="longer than"):
        list(read_trace(path))


def test_an_empty_trace_is_refused(path: Path) -> None:
    assert "holds no request" in refusal(path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be read: No such file"):
        list(read_trace(tmp_path / "absent.jsonl"))


def test_a_failure_while_writing_leaves_the_old_file_alone(path: Path) -> None:
    path.write_text("old")

    def breaks_off() -> object:
        yield Request(0, 1, 1, (0,))
        raise ValueError

    with pytest.raises(ValueError):
        write_trace(path, breaks_off())  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_the_public_trace_has_the_published_numbers() -> None:
    """FAST'25 table 2: 12,031 requests, 12,035 input and 343 output tokens in the mean."""
    requests = list(read_trace(conversation_trace()))
    assert len(requests) == 12_031
    assert round(sum(request.input_length for request in requests) / len(requests)) == 12_035
    assert round(sum(request.output_length for request in requests) / len(requests)) == 343
    assert all(len(request.hash_ids) == -(-request.input_length // 512) for request in requests)
