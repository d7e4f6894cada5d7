"""Which requests are rejected when the cluster is overloaded (ARX section 7). Pure.

Load is predicted latency divided by its SLO. `baseline` looks at the decode pool only after the prefill, which a
rejection there wastes; `early` looks at both at arrival; `predicted` at what the decode pool will be when the prefill
ends, which removes the lag that makes early rejection oscillate.

A threshold of 1 is the natural reading of the paper's unpublished one. Of `classes` priority classes the highest may use
the whole threshold, each lower one `reserve` less, so that under rising load the lowest is rejected first.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mooncask.conductor.models.cost import DecodeModel
from mooncask.conductor.scheduling.facts import Decoding, LoadFacts, Reason, Slo
from mooncask.errors import BadArgument


@dataclass(frozen=True, slots=True)
class Threshold:
    """The load up to which requests are admitted, by priority class (0 is the lowest)."""

    load: float = 1.0
    classes: int = 1
    reserve: float = 0.1

    def of(self, priority: int) -> float:
        below_top = self.classes - 1 - max(0, min(priority, self.classes - 1))
        return self.load * max(0.0, 1.0 - self.reserve * below_top)


class Admission(Protocol):
    """Says why a request is rejected, or None when it is admitted."""

    def at_arrival(self, facts: LoadFacts) -> Reason | None: ...

    def after_prefill(self, facts: LoadFacts) -> Reason | None:
        """Asked once more when the prefill is done; `ttft_seconds` has no meaning then."""
        ...


class AdmitAll:
    def at_arrival(self, facts: LoadFacts) -> Reason | None:
        return None

    def after_prefill(self, facts: LoadFacts) -> Reason | None:
        return None


def _prefill_verdict(facts: LoadFacts, slo: Slo, threshold: Threshold) -> Reason | None:
    return Reason.TTFT if facts.ttft_seconds / slo.ttft_seconds > threshold.of(facts.priority) else None


def _decode_verdict(facts: LoadFacts, slo: Slo, threshold: Threshold, otherwise: Reason) -> Reason | None:
    if facts.tbt_seconds is None:
        return Reason.VRAM
    return otherwise if facts.tbt_seconds / slo.tbt_seconds > threshold.of(facts.priority) else None


@dataclass(frozen=True, slots=True)
class Baseline:
    slo: Slo
    threshold: Threshold = Threshold()

    def at_arrival(self, facts: LoadFacts) -> Reason | None:
        return _prefill_verdict(facts, self.slo, self.threshold)

    def after_prefill(self, facts: LoadFacts) -> Reason | None:
        return _decode_verdict(facts, self.slo, self.threshold, Reason.TBT_AFTER_PREFILL)


@dataclass(frozen=True, slots=True)
class EarlyRejection:
    """Both pools are looked at on arrival. With `recheck` the decode node looks again: the decision is a prefill old."""

    slo: Slo
    threshold: Threshold = Threshold()
    recheck: bool = True

    def at_arrival(self, facts: LoadFacts) -> Reason | None:
        prefill = _prefill_verdict(facts, self.slo, self.threshold)
        return prefill or _decode_verdict(facts, self.slo, self.threshold, Reason.TBT)

    def after_prefill(self, facts: LoadFacts) -> Reason | None:
        return _recheck(self.recheck, facts, self.slo, self.threshold)


@dataclass(frozen=True, slots=True)
class PredictedRejection:
    """Early rejection on the decode pool as it will be when the prefill ends.

    Every request is taken to decode for `decode_seconds`, as in the paper. With 0 the step is that of the fullest batch while this
    request decodes, and requests last as long as those did that ended lately (before any has, for ever): one that decodes now
    from now on, for whatever has passed says nothing where ends come as by lot, and one that is coming from when it joins.
    """

    slo: Slo
    model: DecodeModel
    decode_seconds: float
    threshold: Threshold = Threshold()
    recheck: bool = True

    def at_arrival(self, facts: LoadFacts) -> Reason | None:
        prefill = _prefill_verdict(facts, self.slo, self.threshold)
        if prefill:
            return prefill
        load = self.predicted_tbt(facts) / self.slo.tbt_seconds
        return Reason.TBT if load > self.threshold.of(facts.priority) else None

    def after_prefill(self, facts: LoadFacts) -> Reason | None:
        return _recheck(self.recheck, facts, self.slo, self.threshold)

    def predicted_tbt(self, facts: LoadFacts) -> float:
        """Step in seconds from the end of this prefill on, all requests spread evenly over the decode nodes."""
        then = facts.now_seconds + facts.ttft_seconds
        if self.decode_seconds:
            staying = _decoding_at(then, [*facts.decoding, *facts.coming], self.decode_seconds)
        else:
            staying = _beside(facts, then, facts.decode_seconds or math.inf)
        batch = -(-(len(staying) + 1) // facts.decode_nodes)
        context = (sum(staying) + facts.context_tokens) / (len(staying) + 1)
        return self.model.seconds(batch, round(batch * context))


def _decoding_at(then: float, requests: Sequence[Decoding], lasting: float) -> list[int]:
    """Context tokens of those that will be decoding at `then`."""
    return [r.context_tokens for r in requests if r.start_seconds <= then < r.start_seconds + lasting]


def _beside(facts: LoadFacts, then: float, lasting: float) -> list[int]:
    """Context tokens of those that decode at some time together with one that does from `then` on."""
    staying = [r.context_tokens for r in facts.decoding if then < facts.now_seconds + lasting]
    return staying + [r.context_tokens for r in facts.coming if abs(then - r.start_seconds) < lasting]


def _recheck(wanted: bool, facts: LoadFacts, slo: Slo, threshold: Threshold) -> Reason | None:
    return _decode_verdict(facts, slo, threshold, Reason.TBT_AFTER_PREFILL) if wanted else None


ADMISSIONS = ("none", "baseline", "early", "predicted")


def make_admission(
    name: str,
    slo: Slo,
    model: DecodeModel,
    decode_seconds: float,
    threshold: Threshold | None = None,
    recheck: bool = True,
) -> Admission:
    """The admission policy of that name; raises BadArgument for an unknown one."""
    limit = threshold or Threshold()
    match name:
        case "none":
            return AdmitAll()
        case "baseline":
            return Baseline(slo, limit)
        case "early":
            return EarlyRejection(slo, limit, recheck)
        case "predicted":
            return PredictedRejection(slo, model, decode_seconds, limit, recheck)
    raise BadArgument("admission", repr(name), f"one of {', '.join(ADMISSIONS)}")
