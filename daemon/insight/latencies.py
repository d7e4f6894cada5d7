"""How long requests take, by operation, from when the daemon takes one up until its last answer is on its way.

Time in the socket before that, and in the client, is not in it.
"""

from mooncask.client import wire
from mooncask.tiers.histogram import Histogram

OTHER = "other"
_AT_ONCE: dict[type, str] = {wire.Match: "match", wire.Acquire: "acquire_memory", wire.Release: "release"}
_LATER: dict[type, str] = {
    wire.Acquire: "acquire_wait",
    wire.Reserve: "reserve",
    wire.Commit: "commit",
    wire.Verify: "verify",
}
DURABLE = "commit_durable"
OPERATIONS = (*_AT_ONCE.values(), *_LATER.values(), DURABLE, OTHER)
"""acquire_memory: all that was asked for was in DRAM, or could not come. acquire_wait: something was loaded or waited for."""
HTTP_OPERATIONS_MAX = 64


class Latencies:
    """One histogram an operation. Observing one costs less than a microsecond."""

    def __init__(self) -> None:
        self.local = {operation: Histogram() for operation in OPERATIONS}
        self.http: dict[str, Histogram] = {}
        self._at_once = {kind: self.local[name] for kind, name in _AT_ONCE.items()}
        self._later = {kind: self.local[name] for kind, name in _LATER.items()}
        self._other = self.local[OTHER]

    def answered_at_once(self, request: wire.Message, seconds: float) -> None:
        self._at_once.get(type(request), self._other).observe(seconds)

    def answered_later(self, request: wire.Message, seconds: float) -> None:
        if isinstance(request, wire.Commit) and request.durable:
            self.local[DURABLE].observe(seconds)
        else:
            self._later.get(type(request), self._other).observe(seconds)

    def answered_http(self, operation: str, seconds: float) -> None:
        """`operation` is one of a fixed few; names beyond HTTP_OPERATIONS_MAX are counted as "other"."""
        histogram = self.http.get(operation)
        if histogram is None:
            name = operation if len(self.http) < HTTP_OPERATIONS_MAX else OTHER
            histogram = self.http.setdefault(name, Histogram())
        histogram.observe(seconds)

    def requests(self) -> dict[str, int]:
        """Answered ones by operation, since the start."""
        local = {name: histogram.count for name, histogram in self.local.items()}
        return {**local, **{f"http {name}": histogram.count for name, histogram in self.http.items()}}
