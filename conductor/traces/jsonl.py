"""Traces in the Mooncake JSONL form: one object a line.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 2353]}

`timestamp` is in milliseconds and never runs backwards. Further fields are ignored but `conversation` and `turn`, which
this project's generators add. Not here: other log formats (`csv_log.py`).
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from mooncask.conductor.traces.request import Request
from mooncask.errors import BadTrace

LINE_BYTES_MAX = 16 << 20
"""A longer line is refused instead of filling the memory; a prompt of a million tokens needs about 20 KB."""

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class _Line(msgspec.Struct):
    timestamp: _Count
    input_length: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=2**31)]
    hash_ids: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)]
    conversation: Annotated[int, msgspec.Meta(ge=0)] = 0
    turn: _Count = 0


def read_trace(path: Path) -> Iterator[Request]:
    """The requests of a trace in order, read as they are asked for.

    Raises BadTrace with file, line and field at the first line that is broken or whose time runs backwards, and when the
    file can't be read or holds no request. Empty lines are skipped.
    """
    decoder = msgspec.json.Decoder(_Line)
    before_ms = count = 0
    for number, text in _lines(path):
        line = _parse(decoder, path, number, text)
        if line.timestamp < before_ms:
            raise BadTrace(str(path), number, "timestamp", f"{line.timestamp} is before the line above ({before_ms})")
        before_ms = line.timestamp
        count += 1
        yield Request(
            line.timestamp, line.input_length, line.output_length, line.hash_ids, line.conversation, line.turn
        )
    if not count:
        raise BadTrace(str(path), 1, "", "the trace holds no request")


def write_trace(path: Path, requests: Iterable[Request]) -> int:
    """Write `requests` and return how many there were. A failure leaves no file, or the one that was there."""
    unfinished = path.with_name(path.name + ".unfinished")
    count = 0
    try:
        with unfinished.open("wb") as file:
            for count, request in enumerate(requests, start=1):  # noqa: B007  (the last value is the result)
                file.write(msgspec.json.encode(_fields(request)) + b"\n")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while text := file.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(text) > LINE_BYTES_MAX:
                    raise BadTrace(str(path), number, "", f"the line is longer than {LINE_BYTES_MAX} bytes")
                if text.strip():
                    yield number, text
    except OSError as error:
        raise BadTrace(str(path), 0, "", f"cannot be read: {error.strerror}") from error


def _parse(decoder: "msgspec.json.Decoder[_Line]", path: Path, number: int, text: bytes) -> _Line:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        field, why = _field(str(error))
        raise BadTrace(str(path), number, field, why) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadTrace(str(path), number, "", f"not a JSON object: {error}") from error


def _field(message: str) -> tuple[str, str]:
    """The field that msgspec complains about, and its complaint without the path."""
    if missing := re.search(r"missing required field `(\w+)`", message):
        return missing[1], "missing"
    why, _, where = message.partition(" - at `$")
    return where.strip(".`"), why


def _fields(request: Request) -> dict[str, object]:
    fields: dict[str, object] = {
        "timestamp": request.timestamp_ms,
        "input_length": request.input_length,
        "output_length": request.output_length,
        "hash_ids": request.hash_ids,
    }
    if request.conversation:
        fields |= {"conversation": request.conversation, "turn": request.turn}
    return fields
