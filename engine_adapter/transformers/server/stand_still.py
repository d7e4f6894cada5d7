"""When a decode batch stands still on demand, and how long at most between two steps. Pure: the caller tells the time.

Whoever asks may ask again and again, and several may: a step always comes within PAUSE_SECONDS_MAX. Not here: who waits.
"""

from dataclasses import dataclass

from mooncask.client.worker_api import PAUSE_SECONDS_MAX


@dataclass(slots=True)
class StandStill:
    """Seconds, on one clock. Not safe for concurrent use."""

    _until: float = 0.0
    _since: float | None = None
    """When it was first asked after the last step."""
    _stands_since: float | None = None
    _stood_seconds: float = 0.0

    def ask(self, seconds: float, now: float) -> float:
        """From now on for so long, in place of what was asked before; 0: no longer. Returns what of it is done."""
        if not seconds:
            self._until = now
            return 0.0
        self._since = now if self._since is None else self._since
        self._until = min(now + seconds, self._since + PAUSE_SECONDS_MAX)
        return self.left_seconds(now)

    def left_seconds(self, now: float) -> float:
        """0.0: go on."""
        return max(0.0, self._until - now)

    def stands(self, now: float) -> None:
        """It does as asked, until it `goes_on`."""
        self._stands_since = now

    def goes_on(self, now: float) -> None:
        self._stood_seconds, self._stands_since = self.stood_seconds(now), None

    def stood_seconds(self, now: float) -> float:
        """All of it so far."""
        return self._stood_seconds + (now - self._stands_since if self._stands_since is not None else 0.0)

    def stepped(self) -> None:
        """Something was computed: the next pause may be a whole one again."""
        self._since = None
