"""The ordered set against a sorted list."""

import random

import pytest

from mooncask.tiers.ordered_keys import OrderedKeys


@pytest.mark.parametrize("seed", range(4))
def test_it_answers_as_a_sorted_list_would(seed: int) -> None:
    rng = random.Random(seed)
    keys, model = OrderedKeys(), set[int]()
    for step in range(6000):
        growing = step % 3000 < 1800
        if growing == (rng.random() < 0.8):
            key = rng.randrange(20_000)
            if key not in model:
                keys.add(key)
                model.add(key)
        elif model:
            key = rng.choice(sorted(model)) if step % 50 == 0 else next(iter(model))
            keys.remove(key)
            model.remove(key)
        if step % 20 == 0:
            wanted = rng.randrange(20_000)
            assert keys.first_at_least(wanted) == min((key for key in model if key >= wanted), default=None)
            assert keys.last() == max(model, default=None)
            assert len(keys) == len(model)
        if step % 500 == 0:
            ordered = sorted(model)
            assert [keys.first_at_least(key) for key in ordered] == ordered
            assert [keys.first_at_least(key + 1) for key in ordered] == [*ordered[1:], None][: len(ordered)]


def test_every_key_is_found_right_after_each_insertion_and_removal() -> None:
    keys = OrderedKeys()
    ordered = list(range(0, 1200, 2))
    for count, key in enumerate(ordered):
        keys.add(key)
        assert [keys.first_at_least(known - 1) for known in ordered[: count + 1]] == ordered[: count + 1]
    for count, key in enumerate(ordered):
        keys.remove(key)
        assert [keys.first_at_least(known - 1) for known in ordered[count + 1 :]] == ordered[count + 1 :]
    assert keys.last() is None


def test_removing_what_is_not_there_is_an_error_in_the_program() -> None:
    keys = OrderedKeys()
    keys.add(3)
    for missing in (2, 4):
        with pytest.raises(AssertionError):
            keys.remove(missing)
    assert len(keys) == 1
