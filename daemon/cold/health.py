"""How the bucket does: whether it is asked at all, and how long a read may be expected to take. Pure; the clock is the caller's."""

from dataclasses import dataclass

FAULTS_MAX = 3
"""One after the other, until it is left alone for a while."""
PAUSE_FIRST_SECONDS = 1.0
PAUSE_SECONDS_MAX = 10.0
_WEIGHT = 0.2
"""Of the last read in the means."""
LATENCY_UNKNOWN_SECONDS = 0.05
PACE_UNKNOWN = 100e6


@dataclass(slots=True)
class Health:
    """Of one bucket. Times are of the monotonic clock."""

    faults: int = 0
    """Since the last thing that went well."""
    why: str = ""
    down_since: float = 0.0
    """Wall clock; 0 = it is well."""
    _pause_seconds: float = 0.0
    _until: float = 0.0

    def usable(self, now: float) -> bool:
        """Whether it is worth asking. After a pause one question is let through, and tells."""
        return now >= self._until

    def worked(self) -> None:
        self.faults, self.why, self.down_since = 0, "", 0.0
        self._pause_seconds = self._until = 0.0

    def failed(self, why: str, now: float, wall: float) -> bool:
        """Whether this is what makes it down."""
        self.faults += 1
        self.why = why
        if self.faults < FAULTS_MAX or now < self._until:
            return False
        first = not self.down_since
        self.down_since = self.down_since or wall
        self._pause_seconds = min(PAUSE_SECONDS_MAX, 2 * self._pause_seconds or PAUSE_FIRST_SECONDS)
        self._until = now + self._pause_seconds
        return first


@dataclass(slots=True)
class Pace:
    """Of reads: seconds until the first byte or so, and bytes a second, as means of those that were."""

    latency_seconds: float = LATENCY_UNKNOWN_SECONDS
    bytes_per_second: float = PACE_UNKNOWN
    known: bool = False

    def read(self, size_bytes: int, seconds: float) -> None:
        """Small reads tell of the latency, large ones of the pace."""
        weight = _WEIGHT if self.known else 1.0
        if size_bytes < self.bytes_per_second * self.latency_seconds:
            self.latency_seconds += weight * (seconds - self.latency_seconds)
        else:
            pace = size_bytes / max(1e-4, seconds - self.latency_seconds, seconds / 2)
            self.bytes_per_second += weight * (pace - self.bytes_per_second)
        self.known = True

    def seconds(self, size_bytes: int) -> float:
        return size_bytes / self.bytes_per_second
