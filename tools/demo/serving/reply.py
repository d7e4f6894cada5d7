"""One request as its client saw it, and what many of them come to. Pure.

TTFT: from sending to the first byte of text. TBT of a request: the P90 of the gaps between its pieces of text. Goodput:
requests that were answered within both service levels / all that were planned, so a turn that was never asked because the
one before it was rejected counts as not served.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from statistics import mean, median


class Outcome(StrEnum):
    ANSWERED = "answered"
    REJECTED_EARLY = "rejected early"
    """When it was placed: nothing had been computed for it."""
    REJECTED_LATE = "rejected late"
    """For lack of a place to decode, after its prefill was begun."""
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Levels:
    """What is good enough: seconds."""

    ttft_seconds: float
    tbt_seconds: float


@dataclass(frozen=True, slots=True)
class Reply:
    """Times in seconds; `sent` from the run's beginning."""

    chat: str
    turn: int
    sent: float
    outcome: Outcome
    message: str = ""
    ttft: float = 0.0
    gaps: tuple[float, ...] = ()
    seconds: float = 0.0
    text: str = ""
    prompt_ids: tuple[int, ...] = field(default=(), repr=False)
    answer_ids: tuple[int, ...] = field(default=(), repr=False)
    cached_tokens: int = 0
    request_id: str = ""

    @property
    def tbt_p90(self) -> float:
        return quantile(self.gaps, 0.9)

    def good(self, levels: Levels) -> bool:
        answered = self.outcome is Outcome.ANSWERED
        return answered and self.ttft <= levels.ttft_seconds and self.tbt_p90 <= levels.tbt_seconds


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run, or the medians of several."""

    ttft_mean: float
    ttft_p90: float
    tbt_p90: float
    """P90 over the requests of each one's TBT."""
    cached_share: float
    """Prompt tokens that were loaded and not computed, of all prompt tokens answered."""
    rejected_early: float
    rejected_late: float
    failed: float
    goodput: float
    accepted_and_failed: float
    """Of those that were not rejected when they were placed: the share that got no answer."""


def figures(replies: Sequence[Reply], planned: int, levels: Levels) -> Figures:
    """`planned`: requests that the load had, whether they came to be sent or not."""
    answered = [reply for reply in replies if reply.outcome is Outcome.ANSWERED]
    counts = Counter(reply.outcome for reply in replies)
    prompt = sum(len(reply.prompt_ids) for reply in answered)
    accepted = len(replies) - counts[Outcome.REJECTED_EARLY]
    return Figures(
        ttft_mean=mean(reply.ttft for reply in answered) if answered else math.nan,
        ttft_p90=quantile([reply.ttft for reply in answered], 0.9),
        tbt_p90=quantile([reply.tbt_p90 for reply in answered], 0.9),
        cached_share=sum(reply.cached_tokens for reply in answered) / prompt if prompt else 0.0,
        rejected_early=float(counts[Outcome.REJECTED_EARLY]),
        rejected_late=float(counts[Outcome.REJECTED_LATE]),
        failed=float(counts[Outcome.FAILED]),
        goodput=sum(reply.good(levels) for reply in replies) / planned if planned else 0.0,
        accepted_and_failed=(accepted - len(answered)) / accepted if accepted else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Spread:
    """One figure over the seeds."""

    middle: float
    least: float
    most: float


def spreads(runs: Sequence[Figures]) -> dict[str, Spread]:
    """Each figure's median and range."""
    names = [one.name for one in fields(Figures)]
    return {name: _spread([float(getattr(run, name)) for run in runs]) for name in names}


def _spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def quantile(values: Iterable[float], share: float) -> float:
    """The nearest-rank quantile; nan of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan
