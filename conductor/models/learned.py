"""Costs learned online from observations, by recursive least squares with forgetting.

Start values come from another model's coefficients, so predictions are usable before the first observation. Not safe for
concurrent use. An observation costs O(features^2), a prediction O(features).
"""

import math
from operator import mul

import numpy as np
import numpy.typing as npt

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill

FORGETTING = 0.999
"""An observation a thousand later ones ago counts 1/e: hardware changes slowly, but a restart may change it."""
COVARIANCE_MAX = 1e6
"""Without new directions in the data forgetting would blow the covariance up; it is not inflated past this trace."""

Vector = npt.NDArray[np.float64]
Features = tuple[float, ...]


class RecursiveLeastSquares:
    """y = weights . features, features scaled by the caller to about 1. `confidence` is the trust in the start values."""

    def __init__(self, weights: list[float], confidence: float = 1.0, forgetting: float = FORGETTING) -> None:
        self._weights: Vector = np.asarray(weights, dtype=np.float64)
        self._told: list[float] = self._weights.tolist()
        self._covariance = np.eye(len(weights)) / confidence
        self._forgetting = forgetting

    @property
    def weights(self) -> list[float]:
        return list(self._told)

    def predict(self, features: Features) -> float:
        """Asked some twenty times for each request: a handful of products costs less without numpy."""
        return float(sum(map(mul, self._told, features)))

    def observe(self, told: Features, value: float) -> None:
        """One step of the recursion. Values that are not finite are ignored: one broken clock must not end learning."""
        features = np.array(told)
        if not (math.isfinite(value) and np.isfinite(features).all()):
            return
        spread = self._covariance @ features
        gain = spread / (self._forgetting + float(features @ spread))
        self._weights = self._weights + gain * (value - self.predict(told))
        self._told = self._weights.tolist()
        shrunk = self._covariance - np.outer(gain, spread)
        self._covariance = (shrunk + shrunk.T) / 2
        if np.trace(self._covariance) < COVARIANCE_MAX:
            self._covariance /= self._forgetting


class LearnedPrefill:
    """Learns fixed, linear and quadratic cost of prefills. Features are in thousands of tokens."""

    def __init__(self, start: PolynomialPrefill, confidence: float = 1.0) -> None:
        self._squares = RecursiveLeastSquares([start.fixed, start.linear * 1e3, start.quadratic * 1e8], confidence)

    @staticmethod
    def _features(tokens: int, prefix: int) -> Features:
        new = max(0, tokens - prefix)
        return (1.0, new / 1e3, new * (tokens + prefix) / 1e8)

    def seconds(self, tokens: int, prefix: int) -> float:
        return max(0.0, self._squares.predict(self._features(tokens, prefix)))

    def observe(self, tokens: int, prefix: int, seconds: float) -> None:
        self._squares.observe(self._features(tokens, prefix), seconds)

    @property
    def coefficients(self) -> PolynomialPrefill:
        """What was learned so far; single ones may be negative."""
        fixed, linear, quadratic = self._squares.weights
        return PolynomialPrefill(linear / 1e3, quadratic / 1e8, fixed)


class LearnedDecode:
    """Learns fixed, per-request and per-token cost of decode steps, in milliseconds inside for conditioning."""

    def __init__(self, start: LinearStep, confidence: float = 1.0) -> None:
        self._squares = RecursiveLeastSquares(
            [start.fixed * 1e3, start.per_request * 1e4, start.per_token * 1e8], confidence
        )

    @staticmethod
    def _features(batch: int, context_tokens: int) -> Features:
        return (1.0, batch / 10, context_tokens / 1e5)

    def seconds(self, batch: int, context_tokens: int) -> float:
        return max(0.0, self._squares.predict(self._features(batch, context_tokens)) * 1e-3)

    def observe(self, batch: int, context_tokens: int, seconds: float) -> None:
        self._squares.observe(self._features(batch, context_tokens), seconds * 1e3)

    @property
    def coefficients(self) -> LinearStep:
        """What was learned so far; single ones may be negative."""
        fixed, per_request, per_token = self._squares.weights
        return LinearStep(fixed / 1e3, per_request / 1e4, per_token / 1e8)
