"""Requests from CSV logs that hold token counts and no content.

Such a log does not say which prompts share a prefix. With a column that names sessions, each request of a session is
taken to continue the one before it: it shares the full blocks of that prompt (as far as it is as long), which is what a
chat log means. Without one, no two requests share anything. Neither sees prefixes that sessions share.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from mooncask.conductor.traces.request import Request
from mooncask.errors import BadTrace


@dataclass(frozen=True, slots=True)
class CsvColumns:
    """Which column holds what. Times are numbers of `time_unit_seconds`, or ISO 8601 dates."""

    timestamp: str
    input_tokens: str
    output_tokens: str
    session: str | None = None
    time_unit_seconds: float = 1.0


AZURE = CsvColumns("TIMESTAMP", "ContextTokens", "GeneratedTokens")
"""The columns of the public Azure LLM inference traces."""


def read_csv(path: Path, columns: CsvColumns, block_tokens: int = 512) -> Iterator[Request]:
    """The requests of a CSV file with a heading line, in order; the first one's time becomes 0.

    Memory grows with the number of sessions only. Raises BadTrace with file, line and column.
    """
    blocks = _Blocks(block_tokens)
    first = before = None
    for row in _rows(path, columns):
        seconds = row.seconds(columns.timestamp, columns.time_unit_seconds)
        if before is not None and seconds < before:
            raise row.wrong(columns.timestamp, "is before the line above; sort the file by time")
        first, before = seconds if first is None else first, seconds
        tokens = row.count(columns.input_tokens)
        if tokens < 1:
            raise row.wrong(columns.input_tokens, "a prompt has at least one token")
        session = row.text(columns.session) if columns.session else ""
        conversation, turn, ids = blocks.prompt(session, tokens)
        milliseconds = round((seconds - first) * 1000)
        yield Request(milliseconds, tokens, row.count(columns.output_tokens), ids, conversation, turn)
    if first is None:
        raise BadTrace(str(path), 1, "", "the file holds no request")


@dataclass(frozen=True, slots=True)
class _Row:
    path: Path
    line: int
    cells: dict[str, str | None]

    def wrong(self, column: str, why: str) -> BadTrace:
        return BadTrace(str(self.path), self.line, column, f"{self.cells.get(column)!r}: {why}")

    def text(self, column: str) -> str:
        return (self.cells.get(column) or "").strip()

    def count(self, column: str) -> int:
        try:
            number = float(self.text(column))
        except ValueError as error:
            raise self.wrong(column, "not a number of tokens") from error
        if not number.is_integer() or number < 0:
            raise self.wrong(column, "not a number of tokens")
        return int(number)

    def seconds(self, column: str, unit_seconds: float) -> float:
        text = self.text(column)
        try:
            seconds = float(text) * unit_seconds
        except ValueError:
            try:
                seconds = _utc_seconds(text)
            except ValueError as error:
                raise self.wrong(column, "neither a number nor an ISO 8601 date") from error
        if not math.isfinite(seconds):
            raise self.wrong(column, "not a finite time")
        return seconds


def _utc_seconds(text: str) -> float:
    """An ISO 8601 date as seconds; without an offset it is UTC, since local time would run backwards once a year."""
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


class _Blocks:
    """Makes up block ids: a session's prompts share their full blocks, everything else is new."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._next_id = count()
        self._full: dict[str, list[int]] = {}
        self._numbers: dict[str, int] = {}
        self._turns: dict[str, int] = {}

    def prompt(self, session: str, tokens: int) -> tuple[int, int, tuple[int, ...]]:
        """Conversation number, turn and block ids of the next prompt of `session` ("" = none)."""
        full = self._full.setdefault(session, []) if session else []
        while len(full) < tokens // self._block_tokens:
            full.append(next(self._next_id))
        ids = full[: tokens // self._block_tokens]
        if tokens % self._block_tokens:
            ids.append(next(self._next_id))
        if not session:
            return 0, 0, tuple(ids)
        turn = self._turns[session] = self._turns.get(session, -1) + 1
        return self._numbers.setdefault(session, len(self._numbers) + 1), turn, tuple(ids)


def _rows(path: Path, columns: CsvColumns) -> Iterator[_Row]:
    needed = [columns.timestamp, columns.input_tokens, columns.output_tokens]
    needed += [columns.session] if columns.session else []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            for column in needed:
                if column not in (reader.fieldnames or ()):
                    raise BadTrace(
                        str(path), 1, column, f"no such column; there are {', '.join(reader.fieldnames or ())}"
                    )
            for cells in reader:
                yield _Row(path, reader.line_num, cells)
    except OSError as error:
        raise BadTrace(str(path), 0, "", f"cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise BadTrace(str(path), 0, "", f"not a CSV file: {error}") from error
