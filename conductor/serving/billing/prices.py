"""What usage costs: prices by model, and the cost of lines of the metering log, with caching and as if there were none. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from mooncask.conductor.serving.billing.lines import AnyLine, CallLine, CreationLine, StorageLine

MILLION = 1e6


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of one model, in whatever currency the bill is in; a million tokens each, but `call`."""

    input: float = 0.0
    output: float = 0.0
    automatic: float | None = None
    """Of prompt tokens that were found without a named cache; unset: as `input`."""
    cached: float = 0.0
    """Of prompt tokens that a named cache covered."""
    creation: float = 0.0
    storage_minute: float = 0.0
    call: float = 0.0
    """Of a call that a named cache has saved something, not of a million."""


@dataclass(slots=True)
class Bill:
    """Sums over lines. `without` is what the same calls cost if nothing were cached."""

    calls: int = 0
    cache_calls: int = 0
    failed_calls: int = 0
    prompt_tokens: int = 0
    automatic_tokens: int = 0
    saved_tokens: int = 0
    output_tokens: int = 0
    creation_tokens: int = 0
    storage_token_minutes: int = 0
    costs: dict[str, float] = field(default_factory=dict)
    without: float = 0.0

    @property
    def total(self) -> float:
        return sum(self.costs.values())

    def add(self, line: AnyLine, prices: Prices) -> None:
        if isinstance(line, CallLine):
            self._call(line, prices)
        elif isinstance(line, CreationLine):
            self.creation_tokens += line.tokens
            self._cost("creation", line.tokens * prices.creation / MILLION)
        elif isinstance(line, StorageLine):
            self.storage_token_minutes += line.tokens * line.minutes
            self._cost("storage", line.tokens * line.minutes * prices.storage_minute / MILLION)

    def _call(self, line: CallLine, prices: Prices) -> None:
        """Who was rejected, or failed before a token was made, pays nothing."""
        self.calls += 1
        if line.outcome in ("rejected", "failed") and not line.output_tokens:
            self.failed_calls += 1
            return
        saved = line.saved_tokens
        automatic = max(0, min(line.cached_tokens, line.prompt_tokens) - saved)
        computed = line.prompt_tokens - saved - automatic
        automatic_price = prices.input if prices.automatic is None else prices.automatic
        self.prompt_tokens += line.prompt_tokens
        self.saved_tokens += saved
        self.automatic_tokens += automatic
        self.output_tokens += line.output_tokens
        self._cost("input", computed * prices.input / MILLION)
        self._cost("automatic", automatic * automatic_price / MILLION)
        self._cost("cached", saved * prices.cached / MILLION)
        self._cost("output", line.output_tokens * prices.output / MILLION)
        self.without += (line.prompt_tokens * prices.input + line.output_tokens * prices.output) / MILLION
        if saved:
            self.cache_calls += 1
            self._cost("calls", prices.call)

    def _cost(self, what: str, amount: float) -> None:
        if amount:
            self.costs[what] = self.costs.get(what, 0.0) + amount


def billed(lines: Iterable[AnyLine], prices: Mapping[str, Prices], default: Prices) -> Bill:
    bill = Bill()
    for line in lines:
        bill.add(line, prices.get(line.model, default))
    return bill
