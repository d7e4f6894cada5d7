"""Choosing the next token from logits: greedy, or by temperature with a counter-based random source.

The random number depends on (seed, output position) alone, so no sampling state crosses processes: whichever worker
samples position n of a request draws the same number.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Choice:
    token: int
    top2_gap: float
    """The largest logit less the second largest: how clear-cut the greedy choice is."""


def choose(logits: Logits, temperature: float, seed: int, position: int) -> Choice:
    """`logits` has shape [vocabulary]. Temperature 0 is greedy; the lowest token id wins a tie."""
    greedy = int(np.argmax(logits))
    second, first = np.partition(logits, -2)[-2:]
    token = greedy if temperature == 0 else _draw(logits, temperature, uniform(seed, position))
    return Choice(token, float(first) - float(second))


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1): Philox with `seed` as its key and `position` as its counter (Salmon et al., SC 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def _draw(logits: Logits, temperature: float, at: float) -> int:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    cumulative = np.cumsum(weights)
    return min(int(np.searchsorted(cumulative, at * cumulative[-1], side="right")), len(logits) - 1)
