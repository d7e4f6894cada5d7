"""The simulator with costs that a Conductor learned, and what the learned models say they have learned."""

import numpy as np
import pytest

from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill
from mooncask.conductor.models.learned import LearnedDecode, LearnedPrefill
from mooncask.conductor.simulator.cluster import parse_cluster
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument

NODES = "prefill_nodes = 1\ndecode_nodes = 1\nblock_tokens = 64\nvram_tokens = 9216\nfirst_token = 'decode'\n"
MEASURED = """[model.measured]
kv_bytes_per_token = 46080
layers = 30
prefill_linear = 0.003
prefill_fixed = 0.1
step_fixed = 0.05
step_per_request = 0.01
step_per_token = 1e-6
"""


def test_a_request_takes_what_was_measured() -> None:
    cluster = parse_cluster(f"{NODES}[model]\ncosts = 'measured'\n{MEASURED}", "test")
    result = simulate(cluster, [Request(0, 500, 10, tuple(range(7)))])
    assert result.mean("ttft") == pytest.approx(0.1 + 500 * 0.003 + 0.06, rel=0.01)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (f"{NODES}[model]\ncosts = 'measured'\n", "model.measured"),
        (f"{NODES}{MEASURED}", "model.measured"),
        (f"{NODES}[model]\ncosts = 'measured'\n{MEASURED}".replace("vram_tokens = 9216\n", ""), "vram_tokens"),
        (f"{NODES}[model]\ncosts = 'measured'\n{MEASURED}".replace("0.003", "-1"), "measured"),
    ],
)
def test_half_of_it_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(BadArgument, match=named):
        parse_cluster(text, "test")


def test_the_learned_models_say_what_they_have_learned() -> None:
    source = np.random.default_rng(1)
    prefill = LearnedPrefill(PolynomialPrefill(0.02, 1e-7), 0.05)
    decode = LearnedDecode(LinearStep(0.5, 0.0, 0.0), 0.05)
    wanted, step = PolynomialPrefill(0.004, 2e-7, 0.1), LinearStep(0.06, 0.01, 2e-6)
    for _ in range(400):
        tokens, batch, context = (int(n) for n in source.integers((64, 1, 100), (8000, 32, 50_000)))
        prefill.observe(tokens, 0, wanted.seconds(tokens, 0))
        decode.observe(batch, context, step.seconds(batch, context))
    for tokens, prefix in [(500, 0), (5000, 4000), (8000, 64)]:
        assert prefill.coefficients.seconds(tokens, prefix) == pytest.approx(prefill.seconds(tokens, prefix))
    for batch, context in [(1, 500), (32, 50_000)]:
        assert decode.coefficients.seconds(batch, context) == pytest.approx(decode.seconds(batch, context))
    assert prefill.seconds(4000, 0) == pytest.approx(wanted.seconds(4000, 0), rel=0.05)
    assert decode.seconds(16, 20_000) == pytest.approx(step.seconds(16, 20_000), rel=0.05)
