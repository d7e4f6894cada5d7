"""Choosing tokens: greedy, and by temperature from numbers that depend on (seed, position) alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.engine_adapter.transformers.sampling import choose, uniform

LOGITS = np.array([0.5, 3.0, 2.5, -1.0], dtype=np.float32)


def test_greedy_takes_the_largest_logit_and_says_how_clear_cut_that_was() -> None:
    choice = choose(LOGITS, 0.0, seed=1, position=0)
    assert choice.token == 1
    assert choice.top2_gap == pytest.approx(0.5)


def test_the_lowest_token_wins_an_exact_tie() -> None:
    choice = choose(np.array([1, 2, 2], dtype=np.float32), 0.0, seed=1, position=0)
    assert (choice.token, choice.top2_gap) == (1, 0.0)


@given(st.integers(0, (1 << 63) - 1), st.integers(0, 1 << 20))
def test_a_draw_depends_on_seed_and_position_alone(seed: int, position: int) -> None:
    again = uniform(seed, position)
    assert uniform(seed, position) == again
    assert 0 <= again < 1
    assert uniform(seed, position + 1) != again


def test_drawn_tokens_come_as_often_as_the_softmax_says() -> None:
    drawn = [choose(LOGITS, 0.7, seed=5, position=position).token for position in range(4000)]
    weights = np.exp(LOGITS.astype(float) / 0.7)
    shares = np.bincount(drawn, minlength=4) / len(drawn)
    assert shares == pytest.approx(weights / weights.sum(), abs=0.025)  # three standard deviations of 4,000 draws


def test_a_high_temperature_with_extreme_logits_stays_in_the_vocabulary() -> None:
    extreme = np.array([-1e30, 1e30, -np.inf], dtype=np.float32)
    assert {choose(extreme, 2.0, seed, 0).token for seed in range(50)} == {1}
