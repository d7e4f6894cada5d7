"""Costs fitted to the published measurements of a 70B model on nodes of 8 A800-SXM4-80GB.

Prefill: least squares on FAST'25 figure 14 without prefix (0.95, 2.00, 4.41, 10.4, 27.4 s against the published 1.0, 1.9,
4.4, 10.5, 27.5 s). It is 15 % low on the bars with 95 % prefix at 128k tokens, which loading bounds in part.

Decode: a request alone takes 26.6 ms a token at 8k and 30.5 ms at 128k tokens (figure 14), which gives `per_token` and
the sum of the two others. `per_request` comes from figure 15, whose arrival rate is not published: `fit_per_request`
takes it from the prefill side, where 5 nodes just saturate.
"""

import numpy as np

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill

FITTED_PREFILL = PolynomialPrefill(linear=1.0965e-4, quadratic=7.584e-10)

FIGURE_14_TOKENS = (8192, 16384, 32768, 65536, 131072)
FIGURE_14_SECONDS = (1.0, 1.9, 4.4, 10.5, 27.5)

SHORT_CONTEXT, SHORT_STEP_SECONDS = 8192, 26.6e-3
LONG_CONTEXT, LONG_STEP_SECONDS = 131072, 30.5e-3

FIGURE_15_TBT = {11: 31.5e-3, 10: 31.8e-3, 9: 33e-3, 8: 35e-3, 7: 38e-3, 6: 44e-3, 5: 58e-3}
"""Decode nodes of 16: seconds between tokens, synthetic trace (15,325 tokens in, 149 out)."""
FIGURE_15_RATE = 6.5
"""Requests a second: 5 prefill nodes at 0.73 s a request would be 95 % busy, as their 5.75 s of TTFT suggest."""


def fit_prefill(tokens: tuple[int, ...], seconds: tuple[float, ...]) -> PolynomialPrefill:
    """Least squares of relative errors on prefills without prefix, so that short ones count as much as long ones."""
    n = np.asarray(tokens, dtype=float)
    y = np.asarray(seconds, dtype=float)
    columns = np.stack([n / y, n * n / y], axis=1)
    linear, quadratic = np.linalg.lstsq(columns, np.ones_like(y), rcond=None)[0]
    return PolynomialPrefill(float(linear), float(quadratic))


def fit_per_request(alone: float, per_token: float, mean_input: int, mean_output: int) -> float:
    """Seconds a step grows with each request, by least squares on figure 15.

    The batch is Little's law: rate / nodes requests a second stay `mean_output` steps. `alone` is a step's fixed part
    plus one request's share. The figure's values are taken as plain means. Taken as means of each request's longest tenth
    (the paper's TBT elsewhere), when the batch is larger than on average, they would give half of this; the effective
    capacities published beside them agree better with plain means.
    """
    context = mean_input + mean_output / 2
    over, excess = [], []
    for nodes, tbt in FIGURE_15_TBT.items():
        batch = FIGURE_15_RATE / nodes * mean_output * tbt
        over.append(batch - 1)
        excess.append(tbt - alone - per_token * context * batch)
    return float(np.dot(over, excess) / np.dot(over, over))


def _fitted_decode() -> LinearStep:
    per_token = (LONG_STEP_SECONDS - SHORT_STEP_SECONDS) / (LONG_CONTEXT - SHORT_CONTEXT)
    alone = SHORT_STEP_SECONDS - per_token * SHORT_CONTEXT
    per_request = fit_per_request(alone, per_token, mean_input=15325, mean_output=149)
    return LinearStep(alone - per_request, per_request, per_token)


FITTED_DECODE = _fitted_decode()
