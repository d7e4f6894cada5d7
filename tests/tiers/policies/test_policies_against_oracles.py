"""Every policy chooses the victims that a slow, separately written version of its published algorithm chooses."""

import random
from dataclasses import dataclass
from typing import Any

import naive_policies as naive
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.tiers.block import Access
from mooncask.tiers.policies import make_policy
from mooncask.tiers.policies.policy import MayLeave

ORACLES: dict[str, Any] = {
    "lru": naive.NaiveLRU,
    "fifo": naive.NaiveFIFO,
    "lfu": naive.NaiveLFU,
    "s3fifo": naive.NaiveS3FIFO,
    "2q": naive.NaiveTwoQ,
    "arc": naive.NaiveARC,
    "sieve": naive.NaiveSieve,
}


@dataclass(frozen=True)
class Step:
    """One thing that happens to a cache: a block is used, deleted, or room is made while some blocks are leased."""

    kind: str
    key: int = 0
    leased: frozenset[int] = frozenset()


def all_but(leased: frozenset[int]) -> MayLeave:
    """Leave to go for every block that is not leased."""
    return lambda key: key not in leased


KEYS = st.integers(0, 24)
STEPS = st.lists(
    st.one_of(
        st.builds(Step, st.just("use"), KEYS),
        st.builds(Step, st.just("use"), KEYS),
        st.builds(Step, st.just("use"), KEYS),
        st.builds(Step, st.just("remove"), KEYS),
        st.builds(Step, st.just("evict"), st.just(0), st.frozensets(KEYS, max_size=6)),
    ),
    max_size=300,
)


@pytest.mark.parametrize("name", ORACLES)
@settings(deadline=None)
@given(steps=STEPS, capacity=st.integers(1, 14))
def test_victims_are_those_of_the_published_algorithm(name: str, steps: list[Step], capacity: int) -> None:
    policy, oracle = make_policy(name, capacity), ORACLES[name](capacity)
    for step in steps:
        if step.kind == "use":
            if step.key not in policy and len(policy) >= capacity:
                assert policy.evict(all_but(frozenset())) == oracle.evict(all_but(frozenset()))
            use = policy.touch if step.key in policy else policy.insert
            use(Access(step.key))
            oracle.access(step.key)
        elif step.kind == "remove":
            policy.remove(step.key)
            oracle.remove(step.key)
        else:
            may_leave = all_but(step.leased)
            assert policy.evict(may_leave) == oracle.evict(may_leave)
        assert {key for key in range(25) if key in policy} == oracle.resident()
        assert len(policy) == len(oracle.resident()) <= capacity


@pytest.mark.parametrize("capacity", [20, 45])
@pytest.mark.parametrize("name", ORACLES)
def test_victims_agree_over_a_long_mix_of_loops_scans_and_favourites(name: str, capacity: int) -> None:
    """Long enough for ghost lists of very different lengths, counters at their limits and several sweeps."""
    policy, oracle, chance = make_policy(name, capacity), ORACLES[name](capacity), random.Random(capacity)
    anything = all_but(frozenset())
    for time in range(6000):
        phase = time // 500 % 3
        key = (time % 40, 1000 + time, int(chance.paretovariate(0.5)) % 300)[phase if chance.random() < 0.7 else 2]
        if key not in policy and len(policy) >= capacity:
            assert policy.evict(anything) == oracle.evict(anything), f"at access {time}"
        policy.insert(Access(key, time_seconds=float(time)))
        oracle.access(key)
