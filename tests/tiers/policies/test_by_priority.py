"""Blocks of low priority leave first, those of high priority last; within a band the policy decides as ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.tiers.block import NO_HINT, Access, Hint
from mooncask.tiers.policies import POLICY_NAMES, make_policy
from mooncask.tiers.policies.by_priority import by_priority
from mooncask.tiers.policies.policy import Ordered


def used(key: int, priority: int = 128, at: float = 0.0) -> Access:
    return Access(key, None, 0, 1, at, Hint(priority=priority))


def anyone(key: int) -> bool:
    return True


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_low_leaves_before_neutral_and_neutral_before_high(name: str) -> None:
    policy = by_priority(lambda: make_policy(name, 10))
    for number, priority in enumerate((200, 128, 50, 128, 10, 255)):
        policy.insert(used(number, priority, float(number)))
    left = [policy.evict(anyone) for _ in range(6)]
    assert {left[0], left[1]} == {2, 4}
    assert {left[2], left[3]} == {1, 3}
    assert {left[4], left[5]} == {0, 5}
    assert policy.evict(anyone) is None


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_without_hints_it_is_the_policy_itself(name: str) -> None:
    policy, plain = by_priority(lambda: make_policy(name, 20)), make_policy(name, 20)
    for number in range(20):
        for each in (policy, plain):
            each.insert(used(number, at=float(number)))
            each.touch(used(number // 2, at=float(number)))
    assert [policy.evict(anyone) for _ in range(20)] == [plain.evict(anyone) for _ in range(20)]


def test_a_use_without_a_hint_makes_a_low_block_as_good_as_any() -> None:
    policy = by_priority(lambda: make_policy("lru", 10))
    policy.insert(used(1, priority=5))
    policy.insert(used(2, priority=5))
    assert policy.hint_of(1).priority < NO_HINT.priority
    policy.touch(used(1))
    assert policy.hint_of(1) == NO_HINT
    assert policy.evict(anyone) == 2


def test_a_touch_of_what_is_not_here_brings_nothing() -> None:
    policy = by_priority(lambda: make_policy("lru", 10))
    policy.touch(used(1, priority=5))
    assert len(policy) == 0
    assert policy.hint_of(1) == NO_HINT


def test_what_may_not_leave_keeps_its_band_and_the_next_band_gives() -> None:
    policy = by_priority(lambda: make_policy("lru", 10))
    policy.insert(used(1, priority=5))
    policy.insert(used(2))
    assert policy.evict(lambda key: key != 1) == 2
    assert policy.evict(anyone) == 1


def test_the_order_is_told_beforehand_where_the_policy_can() -> None:
    policy = by_priority(lambda: make_policy("lru", 10))
    assert isinstance(policy, Ordered)
    for number, priority in enumerate((255, 128, 0, 128)):
        policy.insert(used(number, priority))
    assert policy.soonest(3) == [2, 1, 3]
    assert not isinstance(by_priority(lambda: make_policy("arc", 10)), Ordered)


@given(st.lists(st.tuples(st.sampled_from("itre"), st.integers(0, 7), st.sampled_from([0, 128, 255])), max_size=60))
def test_a_block_is_in_one_band_at_a_time(steps: list[tuple[str, int, int]]) -> None:
    policy, here = by_priority(lambda: make_policy("lru", 10)), set[int]()
    for step, key, priority in steps:
        if step == "i":
            policy.insert(used(key, priority))
            here.add(key)
        elif step == "t":
            policy.touch(used(key, priority))
        elif step == "r":
            policy.remove(key)
            here.discard(key)
        elif (gone := policy.evict(anyone)) is not None:
            here.remove(gone)
        assert len(policy) == len(here)
        assert all(key in policy for key in here)
