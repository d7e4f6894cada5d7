"""Is loading a cached prefix worth it against computing it again? A pure decision on measured speeds.

The answer is a number of blocks: the prefix length whose loading plus computing the rest is the shortest. Speeds are
running averages of what this worker measured: bytes a second by tier (everything from asking the daemon to the copy in
the engine's cache) and tokens a second of prefill. What was never measured is taken from the daemon's own forecast. Averages
are of seconds a byte, weighted by bytes: a tier that turns slow is known for it after its first slow load.
Not here: clocks, the store, the model.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

LOAD_HALF_BYTES = 16 << 20
"""Bytes of one observation that carry half the weight of the new average; small loads say little."""
PREFILL_HALF_TOKENS = 512
"""Likewise for prefill: a tail of a few tokens is dominated by the pass's fixed cost and must not pass for its speed."""
REFUSALS_MAX = 16
"""After this many requests in a row whose blocks of a tier were recomputed, its average is forgotten, or a disk that was slow
once would never be asked again."""


SWITCHED_OFF = "loading is switched off"


class LoadPolicy(StrEnum):
    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Hit:
    """A cached prefix: block i is in tier `tiers[i]` and the daemon expects blocks 0..i after `forecast_seconds[i]`."""

    tiers: tuple[int, ...]
    forecast_seconds: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.tiers)


NO_HIT = Hit((), ())


@dataclass(frozen=True, slots=True)
class Work:
    """What one request needs KV for: `tokens`, in blocks of `block_tokens` and `block_bytes`."""

    tokens: int
    block_tokens: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class LoadDecision:
    """`blocks` to load, in about `load_seconds`; the rest takes `compute_seconds`, all of it `recompute_seconds`."""

    blocks: int
    load_seconds: float
    compute_seconds: float
    recompute_seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Blocks of a hit, from number `first` on, that are computed since loading them would take longer."""

    first: int
    blocks: int
    tier: int
    """Where the first is."""
    load_seconds: float
    compute_seconds: float


@dataclass(slots=True)
class Speeds:
    """Running averages; not safe for concurrent use. Rates are per second, by tier number."""

    prefill_tokens: float | None = None
    load_bytes: dict[int, float] = field(default_factory=dict)
    refusals: Counter[int] = field(default_factory=Counter)
    """By tier: requests in a row whose blocks there were recomputed."""

    def observe_prefill(self, tokens: int, seconds: float) -> None:
        if tokens > 0 and seconds > 0:
            self.prefill_tokens = _blend(self.prefill_tokens, tokens / seconds, tokens / PREFILL_HALF_TOKENS)

    def observe_load(self, bytes_by_tier: dict[int, int], seconds: float) -> None:
        """One load. When it came from several tiers, the slowest gets the time that the others' averages leave over."""
        slowest = max((tier for tier, size in bytes_by_tier.items() if size), default=None)
        if slowest is None or seconds <= 0:
            return
        others = sum(size / self.load_bytes[tier] for tier, size in bytes_by_tier.items()
                     if tier != slowest and tier in self.load_bytes)  # fmt: skip
        size = bytes_by_tier[slowest]
        rate = size / max(seconds - others, seconds / 10)
        before = self.load_bytes.get(slowest)
        pace = _blend(None if before is None else 1 / before, 1 / rate, size / LOAD_HALF_BYTES)
        self.load_bytes[slowest] = 1 / pace

    def observe_late(self, tier: int, waited_bytes: int, seconds: float) -> None:
        """A load ended by its deadline while `waited_bytes` of `tier` had not come: it is no faster than that."""
        if seconds > 0 and waited_bytes / seconds < self.load_bytes.get(tier, float("inf")):
            self.observe_load({tier: waited_bytes}, seconds)

    def note(self, decision: LoadDecision, hit: Hit) -> None:
        """Counts refusals, and forgets what they rest on when there were many in a row."""
        loaded = set(hit.tiers[: decision.blocks])
        for tier in set(hit.tiers):
            self.refusals[tier] = 0 if tier in loaded else self.refusals[tier] + 1
            if self.refusals[tier] >= REFUSALS_MAX:
                self.refusals[tier] = 0
                self.load_bytes.pop(tier, None)


def decide(work: Work, hit: Hit, speeds: Speeds, policy: LoadPolicy = LoadPolicy.AUTO) -> LoadDecision:
    """How many of the hit's blocks to load; of two equally fast choices the one that computes less."""
    if policy is LoadPolicy.NEVER or not hit:
        return _decision(0, work, hit, speeds, SWITCHED_OFF if hit else "nothing is cached")
    if policy is LoadPolicy.ALWAYS:
        return _decision(len(hit), work, hit, speeds, "loading is switched on always")
    if speeds.prefill_tokens is None:
        return _decision(len(hit), work, hit, speeds, "prefill speed is not measured yet")
    load = cumulative_load_seconds(work, hit, speeds)
    best = min(range(len(hit), -1, -1), key=lambda blocks: load[blocks] + _compute_seconds(work, blocks, speeds))
    if best == 0:
        return _decision(0, work, hit, speeds, "recomputing is faster")
    return _decision(best, work, hit, speeds, "loading is faster" if best == len(hit) else "loading a part is faster")


def left_out(work: Work, hit: Hit, speeds: Speeds, decision: LoadDecision) -> LeftOut | None:
    """What of the hit is slower to load than to compute; None where it was not speed that decided, or all is loaded."""
    blocks = len(hit) - decision.blocks
    if not blocks or not speeds.prefill_tokens or decision.reason == SWITCHED_OFF:
        return None
    seconds = cumulative_load_seconds(work, hit, speeds)
    compute = blocks * work.block_tokens / speeds.prefill_tokens
    return LeftOut(decision.blocks, blocks, hit.tiers[decision.blocks], seconds[-1] - seconds[decision.blocks], compute)


def cumulative_load_seconds(work: Work, hit: Hit, speeds: Speeds) -> list[float]:
    """Item i: seconds to load the first i blocks, by own averages where there are any, else by the daemon's forecast."""
    total, before = [0.0], 0.0
    for tier, forecast in zip(hit.tiers, hit.forecast_seconds, strict=True):
        rate = speeds.load_bytes.get(tier)
        step = max(0.0, forecast - before) if rate is None else work.block_bytes / rate
        before = forecast
        total.append(total[-1] + step)
    return total


def _decision(blocks: int, work: Work, hit: Hit, speeds: Speeds, reason: str) -> LoadDecision:
    load = cumulative_load_seconds(work, hit, speeds)[blocks]
    compute, everything = _compute_seconds(work, blocks, speeds), _compute_seconds(work, 0, speeds)
    return LoadDecision(blocks, load, compute, everything, reason)


def _compute_seconds(work: Work, loaded_blocks: int, speeds: Speeds) -> float:
    """0 while the speed is unknown."""
    rest = work.tokens - loaded_blocks * work.block_tokens
    return rest / speeds.prefill_tokens if speeds.prefill_tokens else 0.0


def _blend(old: float | None, new: float, halves: float) -> float:
    """The average after an observation that is worth `halves` half-lives."""
    keep = 0.5**halves
    return new if old is None else keep * old + (1 - keep) * new
