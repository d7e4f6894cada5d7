"""CSV logs with token counts become traces; sessions share the prefix that a chat shares."""

from pathlib import Path

import pytest

from mooncask.conductor.traces.csv_log import AZURE, CsvColumns, read_csv
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadTrace

COLUMNS = CsvColumns("time", "in", "out", session="chat")


def converted(path: Path, text: str, columns: CsvColumns = COLUMNS) -> list[Request]:
    path.write_text(text)
    return list(read_csv(path, columns, block_tokens=10))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.csv"


def test_a_session_shares_its_full_blocks_and_others_share_nothing(path: Path) -> None:
    first, other, second = converted(path, "time,in,out,chat\n3,25,4,a\n4.5,10,4,b\n6,41,4,a\n")
    assert (first.timestamp_ms, other.timestamp_ms, second.timestamp_ms) == (0, 1500, 3000)
    assert (len(first.hash_ids), len(other.hash_ids), len(second.hash_ids)) == (3, 1, 5)
    assert second.hash_ids[:2] == first.hash_ids[:2]
    assert not set(second.hash_ids[2:]) & set(first.hash_ids)
    assert not set(other.hash_ids) & {*first.hash_ids, *second.hash_ids}
    assert (first.conversation, first.turn) == (second.conversation, 0)
    assert second.turn == 1


def test_without_a_session_every_prompt_is_new(path: Path) -> None:
    one, two = converted(path, "time,in,out\n0,30,1\n0,30,1\n", CsvColumns("time", "in", "out"))
    assert not set(one.hash_ids) & set(two.hash_ids)
    assert one.conversation == 0


def test_dates_are_read_as_times(path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,12,5\n2023-11-16 18:17:04.0319600,9,5\n"
    )
    assert [request.timestamp_ms for request in converted(path, text, AZURE)] == [0, 52]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("x,1,1,a", ":3: field time: 'x': neither a number nor an ISO 8601 date"),
        ("inf,1,1,a", ":3: field time: 'inf': not a finite time"),
        ("1,1,1,a", ":3: field time: '1': is before the line above; sort the file by time"),
        ("5,,1,a", ":3: field in: '': not a number of tokens"),
        ("5,0,1,a", ":3: field in: '0': a prompt has at least one token"),
        ("5,1,-3,a", ":3: field out: '-3': not a number of tokens"),
        ("5,1", ":3: field out: None: not a number of tokens"),
    ],
)
def test_a_broken_row_is_refused_with_file_line_and_column(path: Path, row: str, complaint: str) -> None:
    with pytest.raises(BadTrace) as caught:
        converted(path, f"time,in,out,chat\n2,5,1,a\n{row}\n")
    assert str(caught.value) == f"{path}{complaint}"


def test_a_missing_column_is_named_beside_those_that_exist(path: Path) -> None:
    with pytest.raises(BadTrace, match=r":1: field out: no such column; there are time, in, chat"):
        converted(path, "time,in,chat\n")


def test_a_log_without_rows_is_refused(path: Path) -> None:
    with pytest.raises(BadTrace, match="holds no request"):
        converted(path, "time,in,out,chat\n")
