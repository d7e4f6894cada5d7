"""Placement and decode selection: what each policy chooses, and what may never happen."""

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.models.fitted import FITTED_PREFILL
from mooncask.conductor.scheduling.decode import select_decode
from mooncask.conductor.scheduling.facts import DecodeFacts, PrefillFacts
from mooncask.conductor.scheduling.placement import (
    PLACEMENTS,
    CacheAware,
    CostBased,
    KvCacheCentric,
    LoadBalancing,
    make_placement,
)
from mooncask.errors import BadArgument


@dataclass(frozen=True)
class Costs:
    """A fetch takes this many seconds a token."""

    fetch: float = 3.8e-6

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        return FITTED_PREFILL.seconds(tokens, prefix)

    def occupied_seconds(self, tokens: int, prefix: int) -> float:
        return self.prefill_seconds(tokens, prefix)

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        return self.fetch * tokens


def nodes_of(*facts: tuple[float, int]) -> list[PrefillFacts]:
    """(queue seconds, prefix tokens held and offered) a node."""
    return [PrefillFacts(queue, prefix, prefix) for queue, prefix in facts]


def test_load_balancing_takes_the_shortest_queue_whatever_is_cached() -> None:
    assert LoadBalancing().place(10_000, nodes_of((3, 9000), (1, 0), (2, 0)), Costs()).node == 1


def test_load_balancing_takes_idle_nodes_in_turn() -> None:
    policy, idle = LoadBalancing(), nodes_of((0, 0), (0, 0), (0, 0))
    assert [policy.place(100, idle, Costs()).node for _ in range(5)] == [0, 1, 2, 0, 1]


def test_cache_aware_weighs_a_queue_against_a_prefix() -> None:
    nodes = nodes_of((0, 0), (0.5, 9000))
    assert CacheAware().place(10_000, nodes, Costs()).node == 1
    nodes = nodes_of((0, 0), (5, 9000))
    assert CacheAware().place(10_000, nodes, Costs()).node == 0


def test_algorithm_1_fetches_from_a_busy_holder_to_an_idle_node() -> None:
    choice = KvCacheCentric(1.5).place(10_000, nodes_of((0, 1000), (9, 9000)), Costs())
    assert (choice.node, choice.fetch_from, choice.fetch_tokens, choice.prefix_tokens) == (0, 1, 8000, 9000)


def test_algorithm_1_computes_the_difference_below_the_threshold() -> None:
    choice = KvCacheCentric(1.5).place(10_000, nodes_of((0, 7000), (9, 9000)), Costs())
    assert (choice.node, choice.fetch_from, choice.prefix_tokens) == (0, None, 7000)


def test_algorithm_1_without_any_prefix_computes() -> None:
    assert KvCacheCentric(1.0).place(10_000, nodes_of((0, 0), (1, 0)), Costs()).fetch_from is None


def test_a_prefix_still_being_computed_is_not_fetched() -> None:
    nodes = [PrefillFacts(0, 0, 0), PrefillFacts(9, 9000, 0)]
    for policy in (KvCacheCentric(1.0), CostBased()):
        assert policy.place(10_000, nodes, Costs()).fetch_from is None


def test_what_is_fetched_comes_from_who_has_it_now_not_from_who_will_have_more() -> None:
    nodes = [PrefillFacts(0, 0, 0), PrefillFacts(9, 9000, 0), PrefillFacts(9, 5000, 5000)]
    for policy in (KvCacheCentric(1.0), CostBased()):
        choice = policy.place(10_000, nodes, Costs())
        assert (choice.node, choice.fetch_from, choice.fetch_tokens) == (0, 2, 5000)


def test_cost_based_computes_where_the_link_is_slow() -> None:
    nodes = nodes_of((0, 1000), (9, 9000))
    assert CostBased().place(10_000, nodes, Costs(fetch=3.8e-6)).fetch_from == 1
    assert CostBased().place(10_000, nodes, Costs(fetch=1.0)).fetch_from is None


many_nodes = st.lists(st.tuples(st.floats(0, 50), st.integers(0, 19_999)), min_size=1, max_size=8)


@given(many_nodes, st.integers(0, 99), st.floats(1e-7, 1e-3))
@settings(deadline=None)
def test_every_choice_adds_up_and_cost_based_is_never_worse(
    facts: list[tuple[float, int]], seed: int, fetch: float
) -> None:
    nodes, costs = nodes_of(*facts), Costs(fetch)
    choices = {name: make_placement(name, random.Random(seed)).place(20_000, nodes, costs) for name in PLACEMENTS}
    for choice in choices.values():
        held = nodes[choice.node].prefix_tokens
        assert choice.prefix_tokens == held + choice.fetch_tokens
        assert (choice.fetch_tokens > 0) == (choice.fetch_from is not None)
        assert choice.ttft_seconds >= nodes[choice.node].queue_seconds
    best = choices["cost-based"].ttft_seconds
    assert all(best <= choice.ttft_seconds + 1e-9 for choice in choices.values())


def test_an_unknown_placement_is_refused_by_name() -> None:
    with pytest.raises(BadArgument, match="kvcache-centric"):
        make_placement("kvcache", random.Random(0))


STEP = LinearStep(0.02, 0.002, 3e-8)


def test_decode_goes_to_the_fastest_node_with_room() -> None:
    nodes = [DecodeFacts(2, 20_000, 21_000), DecodeFacts(9, 90_000, 900_000), DecodeFacts(5, 50_000, 900_000)]
    choice = select_decode(1000, 300, nodes, STEP)
    assert choice is not None and choice.node == 2
    assert choice.tbt_seconds == STEP.seconds(6, 51_000)


def test_what_is_promised_to_a_node_counts() -> None:
    nodes = [DecodeFacts(0, 0, 10_000, coming_requests=1, coming_tokens=9000), DecodeFacts(3, 3000, 10_000)]
    choice = select_decode(2000, 0, nodes, STEP)
    assert choice is not None and choice.node == 1


def test_without_room_anywhere_there_is_no_choice() -> None:
    assert select_decode(1000, 300, [DecodeFacts(0, 0, 1299)], STEP) is None
