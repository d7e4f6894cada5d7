"""The frequency sketch never says less than the truth within a window, and forgets by halves."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.tiers.sketch import COUNT_MAX, FrequencySketch


@settings(deadline=None)
@given(st.lists(st.one_of(st.integers(0, 50), st.binary(max_size=40)), max_size=79), st.integers(0, 9))
def test_an_estimate_is_never_below_the_truth_within_a_window(keys: list[int | bytes], seed: int) -> None:
    sketch = FrequencySketch(8, seed)
    for key in keys:
        sketch.add(key)
    assert all(sketch.estimate(key) >= count for key, count in Counter(keys).items())


def test_estimates_of_rare_and_frequent_keys_are_nearly_exact_at_its_capacity() -> None:
    sketch, chance, truth = FrequencySketch(1000), random.Random(7), Counter[bytes]()
    for _ in range(4000):
        key = int(chance.paretovariate(0.8)) % 1000
        truth[key.to_bytes(16, "big")] += 1
        sketch.add(key.to_bytes(16, "big"))
    wrong = sum(sketch.estimate(key) > min(count, COUNT_MAX) for key, count in truth.items())
    assert wrong <= len(truth) // 50


def test_a_key_never_seen_counts_zero() -> None:
    assert FrequencySketch(100).estimate(b"never") == 0


def test_ageing_halves_every_count_after_ten_times_the_capacity() -> None:
    sketch = FrequencySketch(10)
    for _ in range(60):
        sketch.add(1)
    for _ in range(39):
        sketch.add(2)
    assert (sketch.estimate(1), sketch.estimate(2)) == (60, 39)
    sketch.add(2)
    assert (sketch.estimate(1), sketch.estimate(2)) == (30, 20)


def test_a_key_that_is_not_seen_any_more_is_forgotten() -> None:
    sketch = FrequencySketch(10)
    sketch.add(b"once")
    for other in range(100):
        sketch.add(other % 3)
    assert sketch.estimate(b"once") == 0


def test_a_count_stops_at_its_maximum() -> None:
    sketch = FrequencySketch(1000)
    for _ in range(COUNT_MAX + 50):
        sketch.add(5)
    assert sketch.estimate(5) == COUNT_MAX


def test_equal_seeds_give_equal_estimates_and_the_seed_matters() -> None:
    def estimates(seed: int) -> list[int]:
        sketch = FrequencySketch(10, seed)
        for key in range(99):
            sketch.add(key)
        return [sketch.estimate(key) for key in range(99)]

    assert estimates(1) == estimates(1)
    assert estimates(1) != estimates(2)
