"""Times of repeated actions and what is said about them; competitors take turns, so that a busy machine slows all alike.

Not here: what is measured (the other modules of this folder) and how it is shown (`report.py`).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

Runner = Callable[[int], Mapping[str, float]]
"""Does round i of something and returns seconds by the name of what took them; preparing and tidying up stay uncounted."""


def percentile(values: list[float], share: float) -> float:
    """The smallest value that at least `share` (0 to 1) of `values` do not exceed; `values` must not be empty."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(slots=True)
class Stopwatch:
    """Seconds between the two ends of a `with`."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    watch = Stopwatch()
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start


@dataclass(slots=True)
class Samples:
    """The rounds of one action in seconds, in the order they were run. Round 0 is the cold one and counts apart."""

    seconds: list[float] = field(default_factory=list)

    @property
    def cold_seconds(self) -> float:
        return self.seconds[0]

    @property
    def warm(self) -> list[float]:
        """All rounds but the first; with one round only, that one."""
        return self.seconds[1:] or self.seconds

    @property
    def p50_seconds(self) -> float:
        return percentile(self.warm, 0.50)

    @property
    def p99_seconds(self) -> float:
        return percentile(self.warm, 0.99)


def take_turns(runners: list[Runner], rounds: int, done: Callable[[], None] = lambda: None) -> dict[str, Samples]:
    """Runs round 0 of every runner, then round 1 of every runner, and so on; `done` is called after each round."""
    found: dict[str, Samples] = {}
    for i in range(rounds):
        for runner in runners:
            for name, seconds in runner(i).items():
                found.setdefault(name, Samples()).seconds.append(seconds)
        done()
    return found
