"""Hot spots get copies, cold blocks leave."""

import pytest

from mooncask.conductor.scheduling.replication import Copy, HotSpots, cold_blocks


def read_steadily(spots: HotSpots, key: int, per_second: float, seconds: float) -> float:
    now = 0.0
    while now < seconds:
        spots.read(key, now)
        now += 1 / per_second
    return now


def test_a_steady_rate_is_learned_and_forgotten_with_the_half_life() -> None:
    spots = HotSpots(half_life_seconds=10)
    now = read_steadily(spots, 1, per_second=5, seconds=100)
    assert spots.rate(1, now) == pytest.approx(5, rel=0.05)
    assert spots.rate(1, now + 10) == pytest.approx(2.5, rel=0.05)


def test_a_chain_read_by_many_gets_copies_on_the_least_loaded_nodes() -> None:
    spots = HotSpots(half_life_seconds=10, busy_share=0.3)
    now = read_steadily(spots, 7, per_second=10, seconds=100)
    made = spots.copies(7, now, read_seconds=0.09, holders=[2], queue_seconds=[5.0, 1.0, 0.0, 3.0, 9.0])
    assert made == [Copy(7, 2, 1), Copy(7, 2, 3)]


def test_a_chain_read_seldom_or_held_by_nobody_gets_none() -> None:
    spots = HotSpots()
    spots.read(7, 0.0)
    assert spots.copies(7, 0.0, 0.5, [0], [0.0, 0.0]) == []
    now = read_steadily(spots, 7, 50, 60)
    assert spots.copies(7, now, 0.5, [], [0.0, 0.0]) == []


def test_never_more_copies_than_nodes_nor_less_than_one() -> None:
    spots = HotSpots()
    now = read_steadily(spots, 7, 50, 60)
    assert spots.replicas_wanted(7, now, 100.0, nodes=4) == 4
    assert spots.replicas_wanted(8, now, 100.0, nodes=4) == 1


def test_the_number_of_keys_is_bounded_and_the_hot_ones_stay() -> None:
    spots = HotSpots(keys_max=100)
    for i in range(1000):
        spots.read(0, float(i))
        spots.read(1000 + i, float(i))
    assert len(spots) <= 101
    assert spots.rate(0, 1000.0) > 0.5


def test_cold_blocks_leave_only_above_the_watermark_and_the_coldest_first() -> None:
    used = [(1, 90.0), (2, 10.0), (3, 40.0)]
    assert cold_blocks(used, 100.0, used_share=0.8, idle_seconds=30, watermark=0.9) == []
    assert cold_blocks(used, 100.0, used_share=0.95, idle_seconds=30, watermark=0.9) == [2, 3]
