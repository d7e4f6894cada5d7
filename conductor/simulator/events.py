"""The clock of the simulation: a heap of (time, order, action). Equal times run in the order they were scheduled."""

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Runs actions in order of time. `now` never runs backwards; scheduling in the past is a programming error."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = 0
        self._heap: list[tuple[float, int, Action]] = []

    def at(self, time: float, action: Action) -> None:
        assert time >= self.now, f"event at {time} scheduled at {self.now}"
        self._order += 1
        heapq.heappush(self._heap, (time, self._order, action))

    def run(self) -> None:
        """Run until nothing is left."""
        while self._heap:
            self.now, _, action = heapq.heappop(self._heap)
            action()
