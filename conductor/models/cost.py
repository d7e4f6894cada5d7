"""The interface of cost models: how long a prefill and one decode step take.

Three families stand behind it: `fitted` (published measurements), `analytical` (FLOPs and bandwidth of a named model on
a named GPU) and `learned` (recursive least squares on what was observed). Here also what follows from any of them.
Units: tokens and seconds. Not here: how long bytes travel (`link.py`).
"""

from dataclasses import dataclass
from typing import Protocol


class PrefillModel(Protocol):
    """Predicts the seconds a prefill occupies one node."""

    def seconds(self, tokens: int, prefix: int) -> float:
        """Seconds to prefill a prompt of `tokens` tokens of which the first `prefix` are cached. Does not modify."""
        ...

    def observe(self, tokens: int, prefix: int, seconds: float) -> None:
        """A prefill took this long. Models that do not learn ignore it."""
        ...


class DecodeModel(Protocol):
    """Predicts the seconds of one decode step, which is the token gap (TBT) of every request in the batch."""

    def seconds(self, batch: int, context_tokens: int) -> float:
        """Seconds of a step with `batch` requests that have `context_tokens` tokens of KV together. Does not modify."""
        ...

    def observe(self, batch: int, context_tokens: int, seconds: float) -> None:
        """A step took this long. Models that do not learn ignore it."""
        ...


@dataclass(frozen=True, slots=True)
class PolynomialPrefill:
    """T(n, p) = fixed + linear (n - p) + quadratic (n^2 - p^2): attention sees all earlier tokens, the rest only new ones."""

    linear: float
    quadratic: float
    fixed: float = 0.0

    def seconds(self, tokens: int, prefix: int) -> float:
        new = max(0, tokens - prefix)
        return self.fixed + self.linear * new + self.quadratic * new * (tokens + prefix)

    def observe(self, tokens: int, prefix: int, seconds: float) -> None:
        """Constants do not learn."""


@dataclass(frozen=True, slots=True)
class LinearStep:
    """One decode step: fixed (weights are read) + a share per request + a share per token of KV read."""

    fixed: float
    per_request: float
    per_token: float

    def seconds(self, batch: int, context_tokens: int) -> float:
        return self.fixed + self.per_request * batch + self.per_token * context_tokens

    def observe(self, batch: int, context_tokens: int, seconds: float) -> None:
        """Constants do not learn."""


def requests_within(step: LinearStep, tbt_seconds: float, context_tokens: float) -> float:
    """How many requests of `context_tokens` tokens each a node can decode with steps of at most `tbt_seconds`."""
    return max(0.0, (tbt_seconds - step.fixed) / (step.per_request + step.per_token * context_tokens))
