"""Nodes that were too slow or did not answer: left alone for a while, so that one that hangs does not cost every look-up its time.

Pure: times come in as arguments.
"""

from dataclasses import dataclass

SECONDS = 1.0
SECONDS_MAX = 30.0
NAMES_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Suspicion:
    until_seconds: float
    seconds: float


class Suspects:
    """By whatever name the caller uses. The time out grows with each failure, and is over with the first success."""

    def __init__(self) -> None:
        self._suspicions: dict[str | bytes, _Suspicion] = {}

    def failed(self, name: str | bytes, now_seconds: float) -> None:
        before = self._suspicions.pop(name, None)
        if before is not None and before.until_seconds > now_seconds:  # calls that began before say nothing new
            self._suspicions[name] = before
            return
        seconds = SECONDS if before is None else min(SECONDS_MAX, before.seconds * 2)
        self._suspicions[name] = _Suspicion(now_seconds + seconds, seconds)
        if len(self._suspicions) > NAMES_MAX:
            del self._suspicions[next(iter(self._suspicions))]

    def answered(self, name: str | bytes) -> None:
        self._suspicions.pop(name, None)

    def avoids(self, name: str | bytes, now_seconds: float) -> bool:
        found = self._suspicions.get(name)
        return found is not None and found.until_seconds > now_seconds
