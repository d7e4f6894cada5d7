"""Whole simulations: what must hold whatever the cluster, and agreement with queueing theory."""

import msgspec
import numpy as np
import pytest
from cluster_traces import chats, conversation_trace, poisson
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.fitted import FITTED_PREFILL
from mooncask.conductor.scheduling.admission import ADMISSIONS
from mooncask.conductor.scheduling.placement import PLACEMENTS
from mooncask.conductor.simulator.cluster import (
    Cache,
    Cluster,
    Coupled,
    Model,
    Objectives,
    Prefill,
    Scheduling,
)
from mooncask.conductor.simulator.outcome import COMPLETED, Outcome
from mooncask.conductor.simulator.simulate import simulate
from mooncask.conductor.traces.request import Request

NO_CACHE = Cache(dram_tokens=0)
SMALL = Cache(dram_tokens=40 * 512, ssd_tokens=20 * 512)


def disaggregated(**more: object) -> Cluster:
    return Cluster(**{"prefill_nodes": 2, "decode_nodes": 2, "cache": SMALL} | more)  # type: ignore[arg-type]


clusters = st.one_of(
    st.builds(
        lambda placement, admission, stages, chunk, first, predictor, tbt: disaggregated(
            scheduling=Scheduling(placement=placement, admission=admission, decode_seconds=2.0),
            prefill=Prefill(stages=stages, chunk_tokens=chunk),
            first_token=first,
            model=Model(predictor=predictor),
            slo=Objectives(ttft_seconds=2.0, tbt_seconds=tbt),
        ),
        st.sampled_from(PLACEMENTS),
        st.sampled_from(ADMISSIONS),
        st.sampled_from([1, 3]),
        st.sampled_from([0, 2048]),
        st.sampled_from(["prefill", "decode"]),
        st.sampled_from(["exact", "learned"]),
        st.sampled_from([0.03, 0.2]),
    ),
    st.builds(
        lambda batching, caching, vram: Cluster(
            coupled_nodes=2,
            vram_tokens=vram,
            coupled=Coupled(batching=batching, prefix_caching=caching, token_budget=1024),
            scheduling=Scheduling(placement="load-balancing"),
        ),
        st.sampled_from(["whole", "chunked"]),
        st.booleans(),
        st.sampled_from([42_000, 0]),
    ),
)


@given(clusters, st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_every_request_ends_exactly_once_and_in_order_of_cause(cluster: Cluster, seed: int) -> None:
    trace = chats(25, seed)
    result = simulate(cluster, trace, speed=4.0)
    assert len(result.completed) + sum(result.rejected().values()) == len(trace)
    for request, outcome in zip(trace, result.outcomes, strict=True):
        assert outcome.finished_at >= outcome.arrival
        if outcome.ended == COMPLETED:
            assert outcome.ttft > 0 and outcome.prefill_seconds > 0
            assert 0 <= outcome.prefix_tokens < request.input_length
            longest = max(request.output_length - 1, 0) * max(outcome.tbt_longest_tenth, outcome.tbt_mean) * 10
            assert outcome.finished_at <= outcome.arrival + outcome.ttft + longest + 1e-6


@given(clusters, st.integers(0, 10**6), st.integers(1, 60))
@settings(max_examples=40, deadline=None)
def test_nothing_decided_depends_on_what_comes_later(cluster: Cluster, seed: int, kept: int) -> None:
    trace = chats(25, seed)
    whole, cut = simulate(cluster, trace), simulate(cluster, trace[:kept])

    def decided(outcome: Outcome) -> tuple[object, ...]:
        return outcome.prefix_tokens, outcome.prefill_node, outcome.decode_node, outcome.ttft_expected

    assert [decided(o) for o in whole.outcomes[:kept]] == [decided(o) for o in cut.outcomes]


@given(clusters, st.integers(0, 10**6))
@settings(max_examples=10, deadline=None)
def test_the_same_seed_gives_the_same_run(cluster: Cluster, seed: int) -> None:
    trace = chats(15, seed)
    assert simulate(cluster, trace).summary() == simulate(cluster, trace).summary()


def test_an_output_length_is_not_known_before_it_is_reached() -> None:
    trace = chats(25, 3)
    longer = [Request(r.timestamp_ms, r.input_length, r.output_length + 40, r.hash_ids) for r in trace]
    first, second = (simulate(disaggregated(), t).outcomes for t in (trace, longer))
    assert [(o.prefill_node, o.ttft_expected) for o in first] == [(o.prefill_node, o.ttft_expected) for o in second]


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_one_node_with_equal_requests_waits_as_m_d_1_says(load: float) -> None:
    service = FITTED_PREFILL.seconds(8000, 0)
    cluster = Cluster(prefill_nodes=1, decode_nodes=1, cache=NO_CACHE, prefill=Prefill(chunk_tokens=10**6))
    waits = [
        o.ttft - service
        for seed in range(3)
        for o in simulate(cluster, poisson(load / service, 6000, 8000, 1, seed), output_tokens=1).outcomes
    ]
    assert np.mean(waits) == pytest.approx(load * service / (2 * (1 - load)), rel=0.08)


def test_requests_in_the_system_are_arrival_rate_times_stay() -> None:
    trace = poisson(1.2, 4000, 6000, 40, seed=5)
    result = simulate(disaggregated(cache=NO_CACHE), trace)
    end = trace[-1].timestamp_ms / 1000
    changes = sorted([(o.arrival, 1) for o in result.outcomes] + [(o.finished_at, -1) for o in result.outcomes])
    area = inside = before = 0.0
    for time, change in changes:
        area += inside * (time - before)
        inside, before = inside + change, time
    stay = np.mean([o.finished_at - o.arrival for o in result.outcomes])
    assert inside == 0
    assert area / before == pytest.approx(len(trace) / end * stay, rel=0.01)


def test_more_cache_never_makes_fewer_hits_under_lru_on_one_node() -> None:
    trace = chats(60, 8)
    rates = []
    for blocks in (5, 20, 80, 320, 1280):
        cluster = Cluster(prefill_nodes=1, decode_nodes=1, cache=Cache(dram_tokens=blocks * 512))
        rates.append(simulate(cluster, trace).hit_rate)
    assert rates == sorted(rates) and rates[-1] > rates[0]


def test_a_coupled_node_stalls_decoding_and_a_disaggregated_one_does_not() -> None:
    trace = poisson(0.8, 300, 12_000, 200, seed=2)
    apart = simulate(Cluster(prefill_nodes=2, decode_nodes=2, cache=NO_CACHE), trace)
    whole = Cluster(coupled_nodes=4, scheduling=Scheduling(placement="load-balancing"))
    chunked = msgspec.structs.replace(whole, coupled=Coupled(batching="chunked", token_budget=512))
    together, in_chunks = simulate(whole, trace), simulate(chunked, trace)
    assert apart.quantile("tbt_longest_tenth", 0.9) < in_chunks.quantile("tbt_longest_tenth", 0.9)
    assert in_chunks.quantile("tbt_longest_tenth", 0.99) < together.quantile("tbt_longest_tenth", 0.99)


def test_the_first_token_comes_one_step_later_when_decode_delivers_it() -> None:
    trace = poisson(0.1, 20, 8000, 50, seed=1)
    by_prefill, by_decode = (simulate(disaggregated(first_token=who), trace) for who in ("prefill", "decode"))
    later = by_decode.mean("ttft") - by_prefill.mean("ttft")
    assert 0.02 < later < 0.2
    assert by_prefill.mean("finished_at") < by_decode.mean("finished_at")


def test_the_conversation_trace_keeps_its_goodput_on_8p_8d() -> None:
    result = simulate(Cluster(prefill_nodes=8, decode_nodes=8), conversation_trace())
    assert result.goodput > 0.9
    assert result.mean("ttft") == pytest.approx(1.19, rel=0.05)


def news(askers: int, seed: int) -> list[Request]:
    """Somebody asks about a long document; half a minute later many ask about it at nearly the same time."""
    shared = tuple(range(10**6, 10**6 + 60))
    asked = [
        Request(30_000 + r.timestamp_ms, 61 * 512, 20, (*shared, 2 * 10**6 + i))
        for i, r in enumerate(poisson(30.0, askers, 512, 1, seed))
    ]
    return [Request(0, 61 * 512, 20, (*shared, 2 * 10**6 - 1)), *asked]


def test_copies_of_a_hot_document_spare_computing_it_on_every_node() -> None:
    computed = []
    for replicate in (False, True):
        cluster = Cluster(
            prefill_nodes=6,
            decode_nodes=2,
            cache=Cache(replicate_hot=replicate),
            scheduling=Scheduling(placement="cache-aware"),
        )
        computed.append(simulate(cluster, news(900, 4)).mean("prefill_seconds"))
    assert computed[1] < 0.9 * computed[0]


def test_swapping_cold_blocks_keeps_every_limit_and_every_hit() -> None:
    trace = chats(40, 6)
    runs = [
        simulate(disaggregated(cache=Cache(dram_tokens=40 * 512, ssd_tokens=10**6, swap_cold=swap)), trace)
        for swap in (False, True)
    ]
    assert runs[0].hit_rate == pytest.approx(runs[1].hit_rate, abs=0.02)
    assert len(runs[1].completed) == len(trace)


def test_a_pipelined_group_is_faster_for_long_prompts_and_the_chosen_chunk_is_no_worse() -> None:
    trace = [Request(i * 60_000, 100_000, 1, tuple(range(i * 200, i * 200 + 196))) for i in range(4)]
    groups = [Prefill(stages=1), Prefill(stages=4, chunk_tokens=8192), Prefill(stages=4, chunk_tokens=0)]
    alone, fixed, chosen = (simulate(disaggregated(prefill=p), trace).mean("ttft") for p in groups)
    assert chosen <= fixed + 1e-9 and fixed < 0.4 * alone


@given(st.lists(st.floats(0, 10), min_size=1, max_size=200))
@settings(deadline=None)
def test_tbt_is_what_numpy_says_of_the_gaps(gaps: list[float]) -> None:
    outcome = Outcome(0.0, 1, 1, 1)
    outcome.record_gaps(np.array(gaps))
    assert outcome.tbt_p90 == pytest.approx(np.quantile(gaps, 0.9))
    assert outcome.tbt_longest_tenth == pytest.approx(np.mean(sorted(gaps)[-max(1, len(gaps) // 10) :]))
