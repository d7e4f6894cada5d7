"""Learns online when what was used will be used again, and ranks by expected hits per block-second.

Uses fall into classes (`UseClass`). For each class and each range of age the model counts returns and the time at risk,
and so knows the hazard: the chance of a return in the next instant, given none so far. From the hazards follows the rank
of something of that class and age: the best ratio, over all times it could be kept from now on, of the chance that it
returns within that time to the time it is expected to stay (a Gittins index for one return).

Few observations are pulled towards the class of the turn before or a coarser one, and the coarsest towards a hazard
that falls as 1/age, under which the ranking is plain recency. Ages are in bins that grow by a constant factor, so no time scale is preferred. Old
observations fade: all counts are halved now and then.

Not here: what is counted as a use, and who asks for ranks (`foresight.py`).
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EDGES_SECONDS: Array = np.concatenate([[0.0], 2.0 ** (np.arange(-2, 35) / 2)])
"""Bounds of the age bins: 0, 0.5 s, then a factor of the square root of 2 up to a day and a half."""

BINS = len(EDGES_SECONDS) - 1
RETURNS_KEPT = 20_000
"""Above so many counted returns all counts are halved."""

PRIOR_RETURNS = 2.0
"""How many observed returns weigh as much as what the nearest class says, for a class as a whole and for each bin."""

ROWS_AT_ONCE = 128
"""How many classes one part of a refresh ranks."""

PRIOR_HAZARD = 0.25
"""The first guess of hazard times age. Only its being constant matters: it makes the first ranking plain recency."""

_WIDTHS: Array = np.diff(EDGES_SECONDS)
_MIDDLES: Array = (EDGES_SECONDS[:-1] + EDGES_SECONDS[1:]) / 2


class Kind(IntEnum):
    """What a segment of a chain is to the requests that use it."""

    LINE = 1
    """Continued by one line of requests: a conversation, or a document that one after the other asks about."""
    HUB = 2
    """Continued by lines that live at the same time: a system prompt."""
    SHARED = 3
    """Continued by several requests that went different ways, one after the other: a document, a prompt that is rewritten."""
    TAIL = 4
    """The one block, mostly half full, that a request ended with."""
    LEFT_BEHIND = 5
    """A request went another way at its beginning."""


UNKNOWN = -1


class UseClass(NamedTuple):
    """What is known when something is used, coarsest first; logarithms where it counts or measures."""

    kind: int
    turn: int = UNKNOWN
    """How many uses its line has seen."""
    fresh: int = UNKNOWN
    """How many new blocks the use brought."""
    again: int = UNKNOWN
    """1 when it was there before the use, 0 when the use brought it."""
    gap: int = UNKNOWN
    """How long ago the use before was; 0 when there was none."""

    def coarser(self) -> "UseClass | None":
        """The class without the last thing that is known; None above the coarsest."""
        known = next((field for field in reversed(self._fields) if getattr(self, field) != UNKNOWN), None)
        return self._replace(**{known: UNKNOWN}) if known else None

    def nearest(self) -> "UseClass | None":
        """The class to learn from where there is little to know of this one: the turn before, or what is coarser."""
        if self.turn > 2 or (self.turn == 2 and self.fresh == self.again == self.gap == UNKNOWN):
            return self._replace(turn=self.turn - 1)
        return self.coarser()

    def unfinished(self) -> "UseClass":
        """The class without what is only known at the end of the use."""
        return self._replace(
            kind=Kind.LINE if self.kind == Kind.TAIL else self.kind, fresh=UNKNOWN, again=UNKNOWN, gap=UNKNOWN
        )


class ReuseModel:
    """Returns and time at risk by class and age; ranks as of the last `refresh`. Memory: 1 KB a class seen."""

    def __init__(self) -> None:
        self._rows: dict[UseClass, int] = {}
        self._lines: list[list[int]] = []
        self._parents: list[int] = []
        self._levels: list[int] = []
        self._returns = np.zeros((0, BINS))
        self._at_risk = np.zeros((0, BINS))
        self._ranks: list[list[float]] = []
        self._hazards_now: Array | None = None
        self._next_ranks: list[list[float]] = []
        self.returns_counted = 0.0

    def row(self, use_class: UseClass) -> int:
        """The number by which the other methods know a class."""
        row = self._rows.get(use_class)
        return self._add(use_class) if row is None else row

    def survived(self, row: int, bin_number: int, seconds: float, weight: float) -> None:
        """Something of that class was at risk for `seconds` within the age bin."""
        for line in self._lines[row]:
            self._at_risk[line, bin_number] += seconds * weight

    def returned(self, row: int, bin_number: int, seconds: float, weight: float) -> None:
        """Something of that class came back after `seconds` within the age bin."""
        self.survived(row, bin_number, seconds, weight)
        for line in self._lines[row]:
            self._returns[line, bin_number] += weight
        self.returns_counted += weight

    def rank(self, row: int, bin_number: int) -> float:
        """Expected returns per second kept, for something whose age has just reached the bin."""
        return self._ranks[row][bin_number]

    def refresh(self) -> None:
        """Bring the ranks up to date with what was counted."""
        while not self.refresh_some():
            pass

    def refresh_some(self) -> bool:
        """Do a part of a refresh, a millisecond or two of work; whether it is complete, which shows only then."""
        if self._hazards_now is None:
            self._fade()
            self._hazards_now = self._hazards()
            return False
        self._next_ranks += _ranks(self._hazards_now[len(self._next_ranks) :][:ROWS_AT_ONCE]).tolist()
        if len(self._next_ranks) < len(self._hazards_now):
            return False
        self._ranks[: len(self._next_ranks)] = self._next_ranks
        self._hazards_now, self._next_ranks = None, []
        return True

    def _fade(self) -> None:
        if self.returns_counted > RETURNS_KEPT:
            self._returns /= 2
            self._at_risk /= 2
            self.returns_counted /= 2

    def _add(self, use_class: UseClass) -> int:
        nearest, coarser = use_class.nearest(), use_class.coarser()
        parent = self.row(nearest) if nearest else -1
        above = self._lines[self.row(coarser)] if coarser else []
        row = self._rows[use_class] = len(self._parents)
        self._parents.append(parent)
        self._lines.append([row, *above])
        self._levels.append(self._levels[parent] + 1 if parent >= 0 else 0)
        if row >= len(self._returns):
            more = np.zeros((max(16, row), BINS))
            self._returns = np.concatenate([self._returns, more])
            self._at_risk = np.concatenate([self._at_risk, more])
        self._ranks.append(self._ranks[parent] if parent >= 0 else _FIRST_RANKS)
        return row

    def _hazards(self) -> Array:
        """Level by level, each row shrunk to its parent: first as a whole, then bin by bin."""
        parents = np.array(self._parents)
        levels = np.array(self._levels)
        hazards = np.broadcast_to(_FIRST_HAZARDS, (len(parents), BINS)).copy()
        for level in range(1 + max(self._levels, default=0)):
            rows = np.flatnonzero(levels == level)
            base = hazards[parents[rows]] if level else hazards[rows]
            returns, at_risk = self._returns[rows], self._at_risk[rows]
            whole = (returns.sum(1) + PRIOR_RETURNS) / ((at_risk * base).sum(1) + PRIOR_RETURNS)
            base *= whole[:, None]
            hazards[rows] = (returns + PRIOR_RETURNS) / (at_risk + PRIOR_RETURNS / base)
        return hazards


def _ranks(hazards: Array) -> Array:
    """For each class and bin: the best (chance to return by then) / (time expected to be kept) over later bin ends."""
    survival = np.concatenate([np.ones((len(hazards), 1)), np.exp(-np.cumsum(hazards * _WIDTHS, axis=1))], axis=1)
    kept = np.concatenate(
        [np.zeros((len(hazards), 1)), np.cumsum((survival[:, :-1] - survival[:, 1:]) / hazards, 1)], 1
    )
    best = np.zeros_like(hazards)
    for start in range(BINS):
        gained = survival[:, start, None] - survival[:, start + 1 :]
        time = kept[:, start + 1 :] - kept[:, start, None]
        best[:, start] = (gained / np.maximum(time, 1e-300)).max(axis=1)
    return best


_FIRST_HAZARDS: Array = PRIOR_HAZARD / _MIDDLES
_FIRST_RANKS: list[float] = _ranks(_FIRST_HAZARDS[None])[0].tolist()
