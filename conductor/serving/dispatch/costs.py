"""What prefills and steps cost here, learned from what was measured, and what fetches are taken to cost. Start values come from
the workers' warm-up."""

from dataclasses import dataclass

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.conductor.models.learned import LearnedDecode, LearnedPrefill

STEP_START = LinearStep(fixed=0.02, per_request=0.002, per_token=1e-7)
"""Before any step was measured; the first reports put it right."""
START_CONFIDENCE = 0.05
"""A warm-up, alone or among others that start as well, says little of a pool at work: some ten observations outweigh it."""
FETCH_BYTES_PER_SECOND = 1e9
"""Between two nodes. Taken for granted: no worker tells how long its node's fetches took."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a Conductor has learned of one model's pool: seconds, tokens, bytes."""

    prefill: PolynomialPrefill
    step: LinearStep
    token_bytes: float
    fetch_bytes_per_second: float


@dataclass(slots=True)
class PoolCosts:
    """`PrefillCosts` for placement, of one model's pool. Not safe for concurrent use."""

    prefill: LearnedPrefill
    decode: LearnedDecode
    token_bytes: float

    @classmethod
    def starting(cls, prefill_tokens_per_second: float, token_bytes: float) -> "PoolCosts":
        pace = 1.0 / prefill_tokens_per_second if prefill_tokens_per_second else 1e-3
        prefill = LearnedPrefill(PolynomialPrefill(pace, pace * 1e-5), START_CONFIDENCE)
        return cls(prefill, LearnedDecode(STEP_START, START_CONFIDENCE), token_bytes)

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        return self.prefill.seconds(tokens, prefix)

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        return self.prefill.seconds(tokens, prefix)

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        return tokens * self.token_bytes / FETCH_BYTES_PER_SECOND

    @property
    def pace(self) -> float:
        """Seconds a token of a prompt of ordinary length."""
        return self.prefill.seconds(1024, 0) / 1024

    def learned(self) -> Learned:
        return Learned(self.prefill.coefficients, self.decode.coefficients, self.token_bytes, FETCH_BYTES_PER_SECOND)
