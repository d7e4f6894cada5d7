"""Cost models against published numbers, and learning against a known truth."""

import random

import pytest

from mooncask.conductor.models.analytical import (
    GPUS,
    MODELS,
    analytical_decode,
    analytical_prefill,
    bandwidth_needed,
    find_model,
    kv_capacity_tokens,
    prefill_flops,
)
from mooncask.conductor.models.cost import LinearStep, PolynomialPrefill, requests_within
from mooncask.conductor.models.fitted import (
    FIGURE_14_SECONDS,
    FIGURE_14_TOKENS,
    FITTED_DECODE,
    FITTED_PREFILL,
    fit_prefill,
)
from mooncask.conductor.models.learned import LearnedDecode, LearnedPrefill
from mooncask.conductor.models.link import Port, transfer, transfer_seconds
from mooncask.errors import BadArgument

LLAMA, A800, H800 = MODELS["llama3-70b"], GPUS["a800-80g"], GPUS["h800-80g"]


def test_a_token_of_a_70b_model_has_320_kib_of_kv() -> None:
    assert LLAMA.kv_bytes_per_token == 320 * 1024


@pytest.mark.parametrize(("gpu", "published"), [(A800, 6e9), (H800, 19e9)])
def test_equation_2_gives_the_published_bandwidths(gpu: object, published: float) -> None:
    assert bandwidth_needed(LLAMA, 8 * gpu.flops, 8192) == pytest.approx(published, rel=0.03)  # type: ignore[attr-defined]


def test_the_published_coefficients_are_what_the_fit_gives() -> None:
    fit = fit_prefill(FIGURE_14_TOKENS, FIGURE_14_SECONDS)
    assert fit.linear == pytest.approx(FITTED_PREFILL.linear, rel=1e-3)
    assert fit.quadratic == pytest.approx(FITTED_PREFILL.quadratic, rel=1e-3)


@pytest.mark.parametrize(("context", "seconds"), [(8192, 26.6e-3), (131072, 30.5e-3)])
def test_a_lone_decode_step_takes_what_figure_14_says(context: int, seconds: float) -> None:
    assert FITTED_DECODE.seconds(1, context) == pytest.approx(seconds, rel=1e-6)


def test_equation_1_counts_only_new_tokens() -> None:
    whole = prefill_flops(LLAMA, 8192)
    assert whole == prefill_flops(LLAMA, 4096) + prefill_flops(LLAMA, 8192, 4096)


def test_the_analytical_prefill_lies_near_the_measured_one() -> None:
    model = analytical_prefill(LLAMA, A800, 8)
    assert model.seconds(8192, 0) == pytest.approx(1.0, rel=0.2)
    assert model.seconds(131072, 0) == pytest.approx(27.5, rel=0.2)


def test_the_analytical_step_reads_weights_and_kv_at_the_memory_s_speed() -> None:
    step = analytical_decode(LLAMA, A800, 8, efficiency=1.0)
    assert step.seconds(1, 0) == pytest.approx(141.2e9 / (8 * 2.039e12), rel=0.01)
    assert step.per_token == LLAMA.kv_bytes_per_token / (8 * 2.039e12)


def test_weights_that_fill_the_memory_leave_no_kv() -> None:
    assert kv_capacity_tokens(LLAMA, A800, 1) == 0
    assert kv_capacity_tokens(LLAMA, A800, 8) > 1_000_000


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadArgument, match="llama3-70b"):
        find_model("llama9")


def test_requests_within_is_the_inverse_of_the_step() -> None:
    step = LinearStep(0.02, 0.001, 1e-8)
    count = requests_within(step, 0.1, 10_000)
    assert step.fixed + count * (step.per_request + 10_000 * step.per_token) == pytest.approx(0.1)
    assert requests_within(step, 0.01, 10_000) == 0


def test_learned_prefill_finds_the_truth_from_a_wrong_start() -> None:
    truth, source = PolynomialPrefill(2e-4, 1e-9, 0.05), random.Random(1)
    model = LearnedPrefill(FITTED_PREFILL, confidence=0.01)
    for _ in range(500):
        tokens = source.randrange(500, 60_000)
        prefix = source.randrange(tokens)
        model.observe(tokens, prefix, truth.seconds(tokens, prefix) * source.gauss(1, 0.02))
    assert model.seconds(30_000, 10_000) == pytest.approx(truth.seconds(30_000, 10_000), rel=0.03)


def test_learned_decode_follows_hardware_that_gets_slower() -> None:
    source, model = random.Random(2), LearnedDecode(FITTED_DECODE)
    for slow in (1.0, 1.5):
        for _ in range(3000):
            batch = source.randrange(1, 40)
            context = batch * source.randrange(1000, 20_000)
            model.observe(batch, context, FITTED_DECODE.seconds(batch, context) * slow)
    assert model.seconds(10, 100_000) == pytest.approx(1.5 * FITTED_DECODE.seconds(10, 100_000), rel=0.1)


def test_one_observation_that_is_not_a_number_changes_nothing() -> None:
    model = LearnedPrefill(FITTED_PREFILL)
    before = model.seconds(1000, 0)
    model.observe(1000, 0, float("nan"))
    assert model.seconds(1000, 0) == before


def test_the_same_observation_for_ever_does_not_make_the_model_explode() -> None:
    model = LearnedDecode(FITTED_DECODE)
    for _ in range(50_000):
        model.observe(8, 80_000, 0.05)
    assert model.seconds(8, 80_000) == pytest.approx(0.05, rel=1e-3)
    assert 0 <= model.seconds(16, 160_000) < 1


def test_a_second_transfer_waits_for_the_first_at_either_end() -> None:
    sender, receiver, other = Port(10.0), Port(10.0), Port(5.0)
    assert transfer(100, sender, receiver, now=1.0) == 11.0
    assert transfer_seconds(100, sender, other, now=1.0) == 20.0
    assert transfer_seconds(100, other, receiver, now=6.0) == 20.0
    assert transfer_seconds(100, Port(10.0), receiver, now=6.0) == 5.0 + 10.0
