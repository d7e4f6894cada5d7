"""The model behind foresight: what it has counted shows in its ranks."""

import pytest

from mooncask.tiers.policies.reuse_model import BINS, EDGES_SECONDS, Kind, ReuseModel, UseClass

SECOND_TURN = UseClass(Kind.LINE, 2, 1, 0, 5)


def lives(model: ReuseModel, row: int, bins: int, returns: bool) -> None:
    """Something of the class survives `bins` age bins and then returns in the middle of the next, or is not seen again."""
    for number in range(bins):
        model.survived(row, number, float(EDGES_SECONDS[number + 1] - EDGES_SECONDS[number]), 1.0)
    if returns:
        model.returned(row, bins, float(EDGES_SECONDS[bins + 1] - EDGES_SECONDS[bins]) / 2, 1.0)


def test_before_anything_is_known_the_rank_falls_with_age() -> None:
    model = ReuseModel()
    row = model.row(SECOND_TURN)
    ranks = [model.rank(row, number) for number in range(BINS)]
    assert ranks == sorted(ranks, reverse=True)
    assert len(set(ranks)) == BINS


def test_a_class_that_returns_more_often_ranks_higher() -> None:
    model = ReuseModel()
    often, rarely = model.row(UseClass(Kind.LINE, 3)), model.row(UseClass(Kind.LINE, 1))
    for i in range(60):
        lives(model, often, 12 if i % 2 else 20, returns=i % 2 == 1)
        lives(model, rarely, 20 if i % 10 else 12, returns=i % 10 == 0)
    model.refresh()
    assert model.rank(often, 11) > 2 * model.rank(rarely, 11)


def test_the_rank_is_highest_just_before_the_usual_time_of_return() -> None:
    model = ReuseModel()
    row = model.row(UseClass(Kind.LINE, 1))
    for _ in range(200):
        lives(model, row, 12, returns=True)
        lives(model, row, 20, returns=False)
    model.refresh()
    assert model.rank(row, 12) > model.rank(row, 8) > model.rank(row, 14)


def test_with_a_known_hazard_the_rank_is_that_hazard() -> None:
    """Under a constant hazard waiting changes nothing: expected returns per second are the hazard itself."""
    model = ReuseModel()
    row = model.row(UseClass(Kind.LINE, 1))
    hazard = 0.01
    for number in range(BINS):
        seconds = 1e6
        model.survived(row, number, seconds, 1.0)
        model.returned(row, number, 0.0, hazard * seconds)
    model.refresh()
    assert model.rank(row, 10) == pytest.approx(hazard, rel=0.02)


def test_a_class_never_seen_ranks_like_the_one_it_is_nearest_to() -> None:
    model = ReuseModel()
    known = UseClass(Kind.LINE, 3, 2, 1, 6)
    row = model.row(known)
    for i in range(300):
        lives(model, row, 12, returns=i % 2 == 0)
    unseen = model.row(UseClass(Kind.LINE, 4, 2, 1, 6))
    model.refresh()
    assert model.rank(unseen, 10) == pytest.approx(model.rank(row, 10), rel=0.3)


def test_the_nearest_class_is_the_turn_before_and_the_coarser_one_knows_less() -> None:
    assert UseClass(Kind.LINE, 4, 2, 1, 6).nearest() == UseClass(Kind.LINE, 3, 2, 1, 6)
    assert SECOND_TURN.nearest() == SECOND_TURN.coarser() == UseClass(Kind.LINE, 2, 1, 0)
    assert UseClass(Kind.LINE).coarser() == UseClass(-1)
    assert UseClass(-1).coarser() is None


def test_old_observations_fade() -> None:
    model = ReuseModel()
    row = model.row(UseClass(Kind.LINE, 1))
    for _ in range(20_001):
        model.returned(row, 3, 1.0, 1.0)
    model.refresh()
    assert model.returns_counted == pytest.approx(10_000, abs=1)
