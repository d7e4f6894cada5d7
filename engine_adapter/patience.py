"""When not to ask a daemon that is not there: a pure decision, so that an engine does not wait for it in each request.

After a fault that says the daemon is gone or refuses us, callers are told not to ask for a while; the while doubles with
each such fault, up to a limit, and any answer ends it. One that is merely late is asked again, but not after several
late answers in a row. Not here: clocks, connections.
"""

from dataclasses import dataclass

from mooncask.errors import (
    AccessDenied,
    DaemonUnavailable,
    DeadlineExceeded,
    FamilyMismatch,
    MooncaskError,
    ProtocolMismatch,
)

GONE = (DaemonUnavailable, AccessDenied, FamilyMismatch, ProtocolMismatch)
"""What asking again at once can't change."""
LATE_MAX = 3
"""So many late answers in a row count as gone."""
FIRST_SECONDS = 0.5
SECONDS_MAX = 8.0


@dataclass(slots=True)
class Patience:
    """Not thread-safe; two threads that race lose at most a pause."""

    until: float = 0.0
    """Nobody asks before this moment."""
    pause: float = FIRST_SECONDS
    late: int = 0

    def may_ask(self, now: float) -> bool:
        return now >= self.until

    def worked(self) -> None:
        self.until, self.pause, self.late = 0.0, FIRST_SECONDS, 0

    def failed(self, error: MooncaskError, now: float) -> None:
        """Takes note of a fault; of one that has nothing to do with the daemon's being there it makes nothing."""
        if isinstance(error, DeadlineExceeded):
            self.late += 1
        if isinstance(error, GONE) or self.late >= LATE_MAX:
            self.until = now + self.pause
            self.pause = min(2 * self.pause, SECONDS_MAX)
            self.late = 0
