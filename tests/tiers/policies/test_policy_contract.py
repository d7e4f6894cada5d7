"""What every eviction policy promises, whatever it is called."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.errors import ConfigError
from mooncask.tiers.block import Access
from mooncask.tiers.policies import POLICY_NAMES, make_policy
from mooncask.tiers.policies.policy import EvictionPolicy

every_policy = pytest.mark.parametrize("name", POLICY_NAMES)


def anything(key: int) -> bool:
    return True


def nothing(key: int) -> bool:
    return False


def filled(name: str, keys: list[int], capacity: int = 100) -> EvictionPolicy:
    policy = make_policy(name, capacity)
    for time, key in enumerate(keys):
        policy.insert(Access(key, time_seconds=float(time)))
    return policy


def drain(policy: EvictionPolicy) -> list[int]:
    """Evict everything; the keys in the order they left."""
    return [key for key in iter(lambda: policy.evict(anything), None) if key is not None]


@every_policy
def test_it_knows_exactly_what_was_inserted(name: str) -> None:
    policy = filled(name, [3, 1, 2])
    assert (len(policy), 1 in policy, 4 in policy) == (3, True, False)


@every_policy
def test_inserting_a_present_key_again_does_not_count_it_twice(name: str) -> None:
    policy = filled(name, [1, 2, 1])
    assert len(policy) == 2
    assert sorted(drain(policy)) == [1, 2]


@every_policy
def test_touching_an_unknown_key_is_ignored(name: str) -> None:
    policy = filled(name, [1])
    policy.touch(Access(2))
    assert (len(policy), 2 in policy) == (1, False)


@every_policy
def test_each_block_is_evicted_once_and_then_none_is_left(name: str) -> None:
    policy = filled(name, list(range(50)))
    assert sorted(drain(policy)) == list(range(50))
    assert len(policy) == 0
    assert policy.evict(anything) is None


@every_policy
def test_an_evicted_block_is_unknown_until_it_is_inserted_again(name: str) -> None:
    policy = filled(name, [1])
    assert policy.evict(anything) == 1
    assert 1 not in policy
    policy.insert(Access(1))
    assert 1 in policy


@every_policy
def test_no_victim_when_no_block_may_leave_and_nothing_changes(name: str) -> None:
    order = drain(filled(name, list(range(20))))
    policy = filled(name, list(range(20)))
    assert policy.evict(nothing) is None
    assert len(policy) == 20
    assert drain(policy) == order


@every_policy
def test_only_blocks_that_may_leave_are_chosen(name: str) -> None:
    policy = filled(name, list(range(20)))
    gone = [policy.evict(lambda key: key % 2 == 1) for _ in range(10)]
    assert sorted(key for key in gone if key is not None) == list(range(1, 20, 2))
    assert policy.evict(lambda key: key % 2 == 1) is None


@every_policy
def test_a_refused_block_is_the_next_victim_once_it_may_leave(name: str) -> None:
    policy = filled(name, list(range(20)))
    first = drain(filled(name, list(range(20))))[0]
    second = policy.evict(lambda key: key != first)
    assert second is not None
    assert second != first
    assert policy.evict(anything) == first


@every_policy
def test_a_removed_block_leaves_no_trace(name: str) -> None:
    """Used often, evicted, perhaps a ghost, then removed: it behaves like one never seen."""
    seen, fresh = make_policy(name, 10), make_policy(name, 10)
    for _ in range(4):
        seen.insert(Access(99))
    assert seen.evict(anything) == 99
    seen.remove(99)
    for policy in (seen, fresh):
        for key in (99, 1, 2, 3, 4):
            policy.insert(Access(key))
    assert drain(seen) == drain(fresh)


@every_policy
def test_removing_an_unknown_key_is_ignored(name: str) -> None:
    policy = filled(name, [1, 2])
    policy.remove(7)
    policy.remove(1)
    policy.remove(1)
    assert drain(policy) == [2]


@every_policy
@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 1000))
def test_the_same_accesses_give_the_same_victims(name: str, seed: int) -> None:
    def run() -> list[int | None]:
        policy, chance, victims = make_policy(name, 30), random.Random(seed), []
        for time in range(300):
            key = int(chance.paretovariate(0.5)) % 200
            if key not in policy and len(policy) >= 30:
                victims.append(policy.evict(anything))
            policy.insert(Access(key, time_seconds=float(time)))
        return victims

    assert run() == run()


@every_policy
def test_blocks_of_different_sizes_can_be_mixed(name: str) -> None:
    chance, sizes = random.Random(1), [4096, 65536, 1 << 20, 3 << 20]
    policy = make_policy(name, 64 << 20)
    held: dict[int, int] = {}
    for _ in range(3000):
        key = int(chance.paretovariate(0.4)) % 500
        size = sizes[key % 4]
        while key not in held and sum(held.values()) + size > 64 << 20:
            victim = policy.evict(anything)
            assert victim is not None
            del held[victim]
        held[key] = size
        policy.insert(Access(key, size_bytes=size))
        assert len(policy) == len(held)


@every_policy
@pytest.mark.parametrize("uses", [0, 3], ids=["beside others like them", "before others used more"])
def test_evicting_past_many_leased_blocks_does_not_ask_each_of_them_every_time(name: str, uses: int) -> None:
    leased, others = 2000, 2000
    policy = filled(name, list(range(leased + others)), capacity=leased + others)
    for key in range(leased, leased + others):
        for _ in range(uses):
            policy.touch(Access(key))
    asked = 0

    def may_leave(key: int) -> bool:
        nonlocal asked
        asked += 1
        return key >= leased

    for _ in range(others):
        assert policy.evict(may_leave) is not None
    assert policy.evict(may_leave) is None
    assert asked <= 100 * (leased + others), f"{asked} questions; each eviction asking every leased block would be 4 M"


@every_policy
def test_a_long_chain_leaves_leaf_first_without_being_searched_each_time(name: str) -> None:
    depth = 3000
    policy, asked = make_policy(name, depth), 0
    for key in range(depth):
        policy.insert(Access(key, parent=key - 1 if key else None, depth=key))
    leaf = depth - 1

    def is_leaf(key: int) -> bool:
        nonlocal asked
        asked += 1
        return key == leaf

    for expected in range(depth - 1, -1, -1):
        assert policy.evict(is_leaf) == expected
        leaf -= 1
    assert asked <= 100 * depth, f"{asked} questions for {depth} blocks"


def test_an_unknown_policy_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean s3fifo"):
        make_policy("s3-fifo", 10)
    with pytest.raises(ConfigError, match="allowed: lru"):
        make_policy("zzz", 10)


def test_a_capacity_of_zero_is_refused() -> None:
    with pytest.raises(ConfigError, match="capacity = 0"):
        make_policy("arc", 0)
