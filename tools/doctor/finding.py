"""What a check found, and the words for how bad it is. Pure."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """OK; NOTE: something that is optional is missing or could be better; WRONG: the store will not work well until it is mended."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """`what` was looked at, what was `found`, and what `to_do`: empty when nothing need be done."""

    what: str
    state: State
    found: str
    to_do: str = ""


def ok(what: str, found: str) -> Finding:
    return Finding(what, State.OK, found)


def note(what: str, found: str, to_do: str) -> Finding:
    return Finding(what, State.NOTE, found, to_do)


def wrong(what: str, found: str, to_do: str) -> Finding:
    return Finding(what, State.WRONG, found, to_do)
