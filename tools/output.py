"""What commands print: a table for people or one JSON document, errors on stderr. Nothing else of tools/ prints tables."""

import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mooncask.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; numbers stand to the right."""

    heading: str
    right: bool = False


TABLE_WIDTH = 4096
"""Wider than any terminal: a key is never cut, since people copy it; the terminal wraps what is too long."""
_UNSHOWN = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is and a terminal acts on."""
PIPE_WIDTH = 160
"""Where no terminal says how wide it is."""


def console() -> Console:
    """stdout as it is now."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)


def error_console() -> Console:
    return Console(stderr=True, highlight=False)


@contextmanager
def stages() -> Iterator[Callable[[str], None]]:
    """Says on stderr what is being done: on a terminal in one line that changes, elsewhere in a line a stage."""
    found = error_console()
    if not found.is_terminal:
        yield lambda stage: found.print(stage, markup=False)
        return
    with found.status("starting") as status:
        yield status.update


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]], title: str | None = None) -> None:
    """`rows` under their headings; cells are shown as they are, whatever brackets they contain."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column.heading, justify="right" if column.right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    print_aligned(table, wrap=False)


def print_aligned(table: Table, wrap: bool) -> None:
    """On a terminal as wide as that if it is to wrap; elsewhere never wrapped, and no line ends in blanks."""
    if sys.stdout.isatty():
        Console(highlight=False, width=None if wrap else TABLE_WIDTH).print(table)
        return
    wide = Console(highlight=False, width=TABLE_WIDTH, file=io.StringIO())
    with wide.capture() as captured:
        wide.print(table)
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def stdout_bytes() -> IO[bytes]:
    """stdout for bytes, which takes all it is given. Unbuffered (PYTHONUNBUFFERED) it may take a part and say nothing."""
    found = sys.stdout.buffer
    return open(found.fileno(), "wb", closefd=False) if isinstance(found, io.RawIOBase) else found


def print_json(document: object) -> None:
    """One document on stdout, keys in the order given."""
    text = json.dumps(document, indent=2, ensure_ascii=False)
    sys.stdout.write(_UNSHOWN.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def printable(text: str) -> str:
    """Without control characters: a key may contain anything, and a terminal should not act on it."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)


def complain(text: str) -> None:
    """One line on stderr, as all errors of the command line are."""
    sys.stderr.write("mooncask: " + printable(" ".join(text.split())) + "\n")


def counted(number: int, noun: str, plural: str = "") -> str:
    """ "1 block", "2 blocks", "1,000 branches"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def confirmed(what: str, yes: bool) -> None:
    """Asks on a terminal; elsewhere only --yes will do. Raises BadRequest when the answer is not yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest(f"would {what}, and nobody is there to ask: say --yes")
    if not typer.confirm(f"{what}?", err=True):
        raise BadRequest("nothing was done")
