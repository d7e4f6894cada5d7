"""Choosing the next token from logits: greedy, or by temperature and top_p with a counter-based random source.

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


def choose(logits: Logits, temperature: float, seed: int, position: int, top_p: float = 1.0) -> Choice:
    """`logits` has shape [vocabulary]. Temperature 0 is greedy; the lowest token id wins a tie.

    `top_p`: only the most likely tokens whose probabilities together reach it can be drawn.
    """
    greedy = int(np.argmax(logits))
    second, first = np.partition(logits, -2)[-2:]
    token = greedy if temperature == 0 else _draw(logits, temperature, uniform(seed, position), top_p)
    return Choice(token, float(first) - float(second))


def log_probabilities(logits: Logits) -> Logits:
    """Natural logarithms of the probabilities at temperature 1, shape [vocabulary]."""
    shifted = logits.astype(np.float64) - float(logits.max())
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float32)


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1): Philox with `seed` as its key and `position` as its counter (Salmon et al., SC 2011)."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=position)).random())


def _draw(logits: Logits, temperature: float, at: float, top_p: float) -> int:
    scaled = logits.astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    if top_p < 1:
        weights = _nucleus(weights, top_p)
    cumulative = np.cumsum(weights)
    return min(int(np.searchsorted(cumulative, at * cumulative[-1], side="right")), len(logits) - 1)


def _nucleus(weights: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.float64]:
    """The weights with all but the fewest that reach `top_p` of their sum set to 0 (Holtzman et al., 2020)."""
    falling = np.argsort(-weights, kind="stable")
    cumulative = np.cumsum(weights[falling])
    kept = falling[: int(np.searchsorted(cumulative, top_p * cumulative[-1])) + 1]
    nucleus = np.zeros_like(weights)
    nucleus[kept] = weights[kept]
    return nucleus
