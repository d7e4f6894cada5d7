"""A node's cache: prefixes, holding, capacity, and the SSD below."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.simulator.cache import NodeCache
from mooncask.tiers.policies import POLICY_NAMES


def keep(cache: NodeCache, keys: list[int], now: float = 0.0) -> None:
    held = keys[: cache.claim(keys, now)]
    cache.computed(held)
    cache.release(held)


def test_a_prefix_ends_at_the_first_block_that_is_not_there() -> None:
    cache = NodeCache(10)
    keep(cache, [1, 2, 3])
    assert cache.find([1, 2, 9, 3]).blocks == 2


def test_blocks_being_computed_count_here_but_are_not_offered_to_others() -> None:
    cache = NodeCache(10)
    keep(cache, [1, 2])
    cache.claim([1, 2, 3, 4], 1.0)
    found = cache.find([1, 2, 3, 4])
    assert (found.blocks, found.computed) == (4, 2)
    cache.computed([3, 4])
    assert cache.find([1, 2, 3, 4]).computed == 4


def test_held_blocks_stay_and_what_finds_no_room_is_not_kept() -> None:
    cache = NodeCache(3)
    assert cache.claim([1, 2], 0.0) == 2
    assert cache.claim([5, 6, 7], 1.0) == 1
    assert cache.find([1, 2]).blocks == 2 and cache.find([5, 6]).blocks == 1
    cache.release([1, 2])
    assert cache.claim([8, 9], 2.0) == 2
    assert cache.find([1, 2]).blocks == 0


def test_what_leaves_dram_is_found_on_the_ssd_and_comes_back() -> None:
    cache = NodeCache(2, ssd_blocks=4)
    keep(cache, [1, 2])
    keep(cache, [3, 4])
    found = cache.find([1, 2])
    assert (found.dram, found.ssd) == (0, 2)
    keep(cache, [1, 2])
    assert cache.find([1, 2]).dram == 2 and cache.find([3, 4]).ssd == 2


def test_a_cold_block_moves_to_the_ssd_unless_it_is_held() -> None:
    cache = NodeCache(4, ssd_blocks=4)
    keep(cache, [1, 2])
    cache.hold([1])
    assert not cache.cool(1, 1.0) and cache.cool(2, 1.0)
    assert (cache.dram_blocks, cache.ssd_blocks) == (1, 1)
    assert not NodeCache(4).cool(1, 1.0)


@pytest.mark.parametrize("policy", POLICY_NAMES)
@given(seed=st.integers(0, 10**6), dram=st.integers(0, 12), ssd=st.integers(0, 12))
@settings(deadline=None)
def test_no_tier_ever_holds_more_than_it_can(policy: str, seed: int, dram: int, ssd: int) -> None:
    source, cache, held = random.Random(seed), NodeCache(dram, ssd, policy), []
    for now in range(60):
        start = source.randrange(30)
        keys = list(range(start, start + source.randint(1, 6)))
        claimed = keys[: cache.claim(keys, float(now))]
        held.append(claimed)
        if source.random() < 0.8:
            done = held.pop(source.randrange(len(held)))
            cache.computed(done)
            cache.release(done)
        assert cache.dram_blocks <= dram and cache.ssd_blocks <= ssd
        assert len(cache) == cache.dram_blocks + cache.ssd_blocks
        assert all(cache.find(chain).blocks == len(chain) for chain in held)
