"""What prefills, steps, prompts' ends and fetches cost here, learned from what was measured. Start values come from the
workers' warm-up and the configuration."""

from collections.abc import Sequence
from dataclasses import dataclass

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.conductor.models.learned import LearnedDecode, LearnedPrefill
from mooncask.conductor.serving.dispatch.rates import FetchRates

STEP_START = LinearStep(fixed=0.02, per_request=0.002, per_token=1e-7)
"""Before any step was measured; the first reports put it right."""
START_CONFIDENCE = 0.05
"""A warm-up, alone or among others that start as well, says little of a pool at work: some ten observations outweigh it."""
FETCH_BYTES_PER_SECOND = 1e9
"""Between two nodes, where nothing else is configured, until workers tell."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a Conductor has learned of one model's pool: seconds, tokens, bytes. `tail`: what decode computes of a prompt."""

    prefill: PolynomialPrefill
    step: LinearStep
    tail: PolynomialPrefill
    token_bytes: float
    fetch_bytes_per_second: float


@dataclass(slots=True)
class PoolCosts:
    """Of one model's pool. Not safe for concurrent use.

    `prefill` is of the tokens up to the last full block, which is all that a prefill computes; `tail` of what decode computes
    of a prompt, from the KV's being there to the first token: the tokens behind the last block, or, inline, all that is
    missing.
    """

    prefill: LearnedPrefill
    decode: LearnedDecode
    tail: LearnedPrefill
    rates: FetchRates
    token_bytes: float
    block_tokens: int

    @classmethod
    def starting(
        cls, prefill_tokens_per_second: float, block_bytes: int, block_tokens: int, fetch_bytes_per_second: float
    ) -> "PoolCosts":
        """`block_bytes` and `block_tokens` are 0 and 1 without a store."""
        pace = 1.0 / prefill_tokens_per_second if prefill_tokens_per_second else 1e-3
        start = PolynomialPrefill(pace, pace * 1e-5)
        return cls(
            LearnedPrefill(start, START_CONFIDENCE),
            LearnedDecode(STEP_START, START_CONFIDENCE),
            LearnedPrefill(start, START_CONFIDENCE),
            FetchRates(fetch_bytes_per_second),
            block_bytes / block_tokens,
            block_tokens,
        )

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        """A prefill worker's part: full blocks."""
        full = tokens // self.block_tokens * self.block_tokens
        return self.prefill.seconds(full, min(prefix, full))

    def tail_seconds(self, tokens: int, prefix: int) -> float:
        """A decode worker's part, when it has `prefix` tokens: at least the last token."""
        loadable = (tokens - 1) // self.block_tokens * self.block_tokens
        return self.tail.seconds(tokens, min(prefix, loadable))

    @property
    def pace(self) -> float:
        """Seconds a token of a prompt of ordinary length."""
        return self.prefill.seconds(1024, 0) / 1024

    @property
    def block_seconds(self) -> float:
        """A block from one node to another."""
        return self.block_tokens * self.token_bytes / self.rates.pool()

    def learned(self) -> Learned:
        return Learned(
            self.prefill.coefficients,
            self.decode.coefficients,
            self.tail.coefficients,
            self.token_bytes,
            self.rates.pool(),
        )


@dataclass(frozen=True, slots=True)
class PromptCosts:
    """`PrefillCosts` for placing one prompt on `workers`, by name. `inline`: these are decode workers, which compute it themselves."""

    pool: PoolCosts
    workers: Sequence[str]
    inline: bool

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        """To the first token: the prefill, and what decode computes then."""
        if self.inline:
            return self.pool.tail_seconds(tokens, prefix)
        return self.pool.prefill_seconds(tokens, prefix) + self.pool.tail_seconds(tokens, tokens)

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        return 0.0 if self.inline else self.pool.prefill_seconds(tokens, prefix)

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        if source == target:
            return 0.0
        return self.pool.rates.seconds(self.workers[target], tokens * self.pool.token_bytes)
