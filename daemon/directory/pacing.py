"""How much of its news a node has under way to a directory at a time: as much as is answered soon. Pure; who sends is `valkey.py`.

A server carries out one call after the other, and all nodes tell it everything at once when it starts anew. What lies before it then
is what every look-up waits for, so each node keeps its share small while answers are slow:

    answered within QUICK_SECONDS --> twice as much      later than SLOW_SECONDS --> half as much
"""

KEYS_MAX = 4096
KEYS_MIN = 32
KEYS_FIRST = 512
QUICK_SECONDS = 0.05
SLOW_SECONDS = 0.15


class Pace:
    """`keys`: that may be under way together."""

    def __init__(self) -> None:
        self.keys = KEYS_FIRST

    def took(self, keys: int, seconds: float) -> None:
        """So many were answered after so long."""
        if seconds > SLOW_SECONDS:
            self.keys = max(KEYS_MIN, self.keys // 2)
        elif seconds < QUICK_SECONDS and 2 * keys >= self.keys:
            self.keys = min(KEYS_MAX, self.keys * 2)

    def failed(self) -> None:
        self.keys = min(self.keys, KEYS_FIRST)
