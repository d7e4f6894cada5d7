"""What was decided on the last requests, and what came of it: for `why`, the pages and the calibration. Bounded.

Times are wall-clock seconds, durations seconds.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

REQUESTS_MAX = 2000
PAIRS_MAX = 2000


class Candidate(msgspec.Struct, frozen=True):
    """One prefill worker as it stood when the request was placed; a decode worker where decode computes the prompt."""

    worker: str
    node: str
    queue_seconds: float
    held_tokens: int
    ttft_seconds: float
    brought_tokens: int = 0
    """Prefix that its node's daemon would bring from another one, because that is faster than computing it."""


class Decision(msgspec.Struct):
    """One request's way, filled in as it goes on."""

    id: str
    at: float
    model: str
    tenant: str
    service_class: str
    prompt_tokens: int
    max_tokens: int
    matched_tokens: int = 0
    candidates: list[Candidate] = []
    prefill_worker: str = ""
    decode_worker: str = ""
    inline: bool = False
    """Nothing was worth a prefill of its own: decode computed the rest."""
    predicted_ttft: float = 0.0
    predicted_tbt: float = 0.0
    rejected: str = ""
    """Why; empty when it was admitted."""
    retry_after_seconds: float = 0.0
    attempts: int = 1
    failures: list[str] = []
    """What broke on the way, in words."""
    ttft: float = 0.0
    seconds: float = 0.0
    paused_seconds: float = 0.0
    """Decode on its node stood still for so long, so that its prefill was in time."""
    cached_tokens: int = 0
    output_tokens: int = 0
    ended: str = ""
    """stop, length, cancelled or failed; empty while it runs."""


@dataclass(slots=True)
class History:
    """Whoever stands in `on_end` hears of every request once, when it has ended. Belongs to the event loop's thread."""

    on_end: list[Callable[[Decision], None]] = field(default_factory=list)
    rejections: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    calibration: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PAIRS_MAX))
    """(predicted, happened) TTFT of requests that were prefilled, and not retried."""
    inline_calibration: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PAIRS_MAX))
    """The same of those whose prompt decode computed itself."""
    step_calibration: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PAIRS_MAX))
    """(predicted, happened) seconds of decode steps."""
    _requests: OrderedDict[str, Decision] = field(default_factory=OrderedDict)

    def add(self, decision: Decision) -> None:
        self._requests[decision.id] = decision
        if len(self._requests) > REQUESTS_MAX:
            self._requests.popitem(last=False)

    def rejected(self, decision: Decision, reason: str, retry_after_seconds: float) -> None:
        decision.rejected, decision.retry_after_seconds, decision.ended = reason, retry_after_seconds, "rejected"
        self.rejections[reason] += 1
        self.outcomes["rejected"] += 1
        self._tell(decision)

    def first_token(self, decision: Decision, ttft: float) -> None:
        decision.ttft = ttft
        if decision.attempts == 1:
            pairs = self.inline_calibration if decision.inline else self.calibration
            pairs.append((decision.predicted_ttft, ttft))

    def ended(self, decision: Decision, how: str, seconds: float) -> None:
        """Once a request; what was rejected has ended already."""
        if not decision.ended:
            decision.ended, decision.seconds = how, seconds
            self.outcomes[how] += 1
            self._tell(decision)

    def get(self, request: str) -> Decision | None:
        return self._requests.get(request)

    def newest(self, limit: int) -> list[Decision]:
        """Newest first."""
        return list(reversed(self._requests.values()))[:limit]

    def _tell(self, decision: Decision) -> None:
        for hear in self.on_end:
            hear(decision)
