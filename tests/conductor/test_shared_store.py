"""Nodes whose stores bring each other's blocks by themselves, as Mooncask's daemons do, and the prompt's end that decode computes."""

import random

import pytest

from mooncask.conductor.models.cost import PolynomialPrefill
from mooncask.conductor.scheduling.facts import PrefillFacts
from mooncask.conductor.scheduling.placement import PLACEMENTS, CacheAware, make_placement, with_shared
from mooncask.conductor.simulator.cluster import parse_cluster
from mooncask.conductor.simulator.outcome import Simulation
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request

CLUSTER = """prefill_nodes = 2
decode_nodes = 2
block_tokens = 64
vram_tokens = 9216
first_token = "decode"
[model]
costs = "measured"
[model.measured]
kv_bytes_per_token = 46080
layers = 30
prefill_linear = 0.004
step_fixed = 0.06
step_per_token = 1e-7
"""
TAIL = "tail_linear = 0.004\ntail_fixed = 0.05\n"


class Costs:
    """A token takes 1 s, and a tenth of that to fetch."""

    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        return float(tokens - prefix)

    occupied_seconds = prefill_seconds

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        return 0.0 if source == target else tokens / 10


def run(trace: list[Request], placement: str = "load-balancing", more: str = "", shared: bool = True) -> Simulation:
    text = f'{CLUSTER}{more}[scheduling]\nplacement = "{placement}"\n[cache]\nshared = {str(shared).lower()}\n'
    return simulate(parse_cluster(text, "test"), trace)


def test_who_counts_on_the_store_does_not_wait_for_the_node_that_holds_the_prefix() -> None:
    busy_holder = [PrefillFacts(50.0, 100, 100), PrefillFacts(0.0, 0, 0)]
    assert CacheAware().place(110, busy_holder, Costs()).node == 0  # 60 s against 110 s
    choice = CacheAware().place(110, with_shared(busy_holder, Costs()), Costs())
    assert (choice.node, choice.prefix_tokens, choice.ttft_seconds) == (1, 100, 10.0 + 10.0)


def test_what_is_brought_more_slowly_than_computed_is_computed() -> None:
    facts = PrefillFacts(0.0, 10, 10, shared_tokens=100, shared_seconds=95.0)
    choice = CacheAware().place(110, [facts], Costs())
    assert (choice.prefix_tokens, choice.ttft_seconds) == (10, 100.0)


def test_every_placement_expects_what_the_store_brings() -> None:
    nodes = with_shared([PrefillFacts(0.0, 100, 100), PrefillFacts(0.0, 0, 0)], Costs())
    for name in PLACEMENTS:
        assert make_placement(name, random.Random(1)).place(110, nodes, Costs()).ttft_seconds <= 20.0, name


def test_the_second_turn_of_a_chat_costs_its_new_tokens_wherever_it_is_prefilled() -> None:
    trace = [Request(0, 640, 4, tuple(range(10))), Request(20_000, 768, 4, tuple(range(12)))]
    shared, apart = run(trace), run(trace, shared=False)
    assert [one.prefill_node for one in shared.outcomes] == [0, 1]
    assert shared.outcomes[1].prefix_tokens == shared.outcomes[1].fetched_tokens == 640
    assert shared.outcomes[1].ttft == pytest.approx(128 * 0.004 + 0.06, abs=0.01)
    assert apart.outcomes[1].prefix_tokens == 0
    assert apart.outcomes[1].ttft == pytest.approx(768 * 0.004 + 0.06, abs=0.01)


def test_the_turn_of_a_queued_request_sees_what_was_computed_since_it_was_placed() -> None:
    trace = [Request(0, 6400, 4, tuple(range(100))), Request(1, 64, 4, (900,)), Request(2, 6464, 4, tuple(range(101)))]
    third = run(trace).outcomes[2]
    assert (third.prefill_node, third.prefix_tokens) == (1, 0)  # its turn came before the first was done
    longer = [trace[0], Request(1, 8960, 4, tuple(range(500, 640))), trace[2]]
    behind = [*longer[:2], Request(2, 3840, 4, tuple(range(800, 860))), Request(3, 6464, 4, tuple(range(101)))]
    fourth = run(behind).outcomes[3]
    assert (fourth.prefill_node, fourth.prefix_tokens, fourth.fetched_tokens) == (1, 6400, 6400)


def test_decode_computes_the_prompts_end_and_with_it_the_first_token() -> None:
    trace = [Request(0, 650, 4, tuple(range(10)))]
    with_tail, without = run(trace, more=TAIL).outcomes[0], run(trace).outcomes[0]
    tail = PolynomialPrefill(0.004, 0.0, 0.05).seconds(650, 640)
    assert with_tail.ttft == pytest.approx(640 * 0.004 + tail, abs=0.005)
    assert without.ttft == pytest.approx(650 * 0.004 + 0.06, abs=0.005)
    assert with_tail.tbt_mean == pytest.approx(0.06, rel=0.01)


def test_a_prompts_end_holds_up_the_answers_beside_it_once() -> None:
    trace = [Request(0, 640, 40, tuple(range(10))), Request(1_000, 650, 4, tuple(range(20, 30)))]
    cluster = CLUSTER.replace("decode_nodes = 2", "decode_nodes = 1") + TAIL
    outcome = simulate(parse_cluster(cluster, "test"), trace).outcomes[0]
    tail = PolynomialPrefill(0.004, 0.0, 0.05).seconds(650, 640)
    assert outcome.tbt_mean == pytest.approx(0.06 + tail / 39, rel=0.02)


def test_answers_of_one_token_end_with_the_prompts_end() -> None:
    result = run([Request(at, 650, 1, tuple(range(10))) for at in (0, 1, 2)], more=TAIL)
    assert [one.ended for one in result.outcomes] == ["completed"] * 3
    assert all(one.tbt_mean == 0 for one in result.outcomes)
