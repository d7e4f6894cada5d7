"""A worker's loop: JSON lines from stdin, JSON lines to stdout, until stdin ends. Nothing here knows a model."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from typing import BinaryIO

import msgspec

from mooncask.engine_adapter.transformers.messages import LINE_BYTES_MAX, Answer, Ready, Refusal, Request
from mooncask.errors import BadRequest, MooncaskError

log = logging.getLogger(__name__)


def take_stdout() -> BinaryIO:
    """The real stdout, for answers alone: whatever else writes to stdout (libraries do) goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return answers


def serve(run: Callable[[Request], Answer], ready: Ready, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answers every request line in order. A bad line or a failed request gets a Refusal, and the worker lives on."""
    encoder = msgspec.json.Encoder()
    decoder = msgspec.json.Decoder(Request)
    _write(answers, encoder.encode(ready))
    for line in bounded_lines(lines):
        _write(answers, encoder.encode(_answer(run, decoder, line)))


def bounded_lines(lines: BinaryIO) -> Iterator[bytes | None]:
    """The lines that are not empty; None for one longer than LINE_BYTES_MAX, which is skipped to its end."""
    while line := lines.readline(LINE_BYTES_MAX + 1):
        if len(line) <= LINE_BYTES_MAX:
            if line.strip():
                yield line
            continue
        while line and not line.endswith(b"\n"):
            line = lines.readline(LINE_BYTES_MAX)
        yield None


def _answer(run: Callable[[Request], Answer], decoder: msgspec.json.Decoder[Request], line: bytes | None) -> Answer:
    request_id = ""
    try:
        request = _read(decoder, line)
        request_id = request.id
        return run(request)
    except MooncaskError as exc:
        return Refusal(request_id, type(exc).__name__, str(exc))
    except Exception as exc:  # the top of a request: logged, answered, over
        log.exception("request %s failed", request_id)
        return Refusal(request_id, "InternalError", f"{type(exc).__name__}: {exc}; the worker's log has more")


def _read(decoder: msgspec.json.Decoder[Request], line: bytes | None) -> Request:
    if line is None:
        raise BadRequest(f"a request line has at most {LINE_BYTES_MAX} bytes")
    try:
        return decoder.decode(line)
    except msgspec.DecodeError as exc:
        raise BadRequest(f"not a request: {exc}") from exc


def _write(answers: BinaryIO, line: bytes) -> None:
    answers.write(line + b"\n")
    answers.flush()
