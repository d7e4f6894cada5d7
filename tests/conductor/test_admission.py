"""Admission: who looks at what, when; priorities; and the books it rests on."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.models.fitted import FITTED_PREFILL
from mooncask.conductor.scheduling.admission import ADMISSIONS, Threshold, make_admission
from mooncask.conductor.scheduling.board import DecodeBoard, PrefillBoard
from mooncask.conductor.scheduling.conductor import Conductor
from mooncask.conductor.scheduling.decision import Arrival, Assignment, Rejection
from mooncask.conductor.scheduling.facts import CachedPrefix, Decoding, LoadFacts, Reason, Slo
from mooncask.conductor.scheduling.placement import LoadBalancing
from mooncask.errors import BadArgument

SLO = Slo(30.0, 0.1)
STEP = LinearStep(0.02, 0.002, 0.0)
"""40 requests a node are just within SLO."""


def facts(ttft: float = 1.0, tbt: float | None = 0.05, **more: object) -> LoadFacts:
    return LoadFacts(0.0, ttft, tbt, 1000, **more)  # type: ignore[arg-type]


def policy(name: str, threshold: Threshold | None = None, decode_seconds: float = 10.0):  # type: ignore[no-untyped-def]
    return make_admission(name, SLO, STEP, decode_seconds, threshold)


def test_none_admits_everything() -> None:
    assert policy("none").at_arrival(facts(1e9, None)) is None
    assert policy("none").after_prefill(facts(0, 1e9)) is None


@pytest.mark.parametrize("name", ["baseline", "early", "predicted"])
def test_a_queue_longer_than_the_slo_rejects_at_arrival(name: str) -> None:
    assert policy(name).at_arrival(facts(ttft=30.1)) is Reason.TTFT
    assert policy(name).at_arrival(facts(ttft=29.9)) is None


def test_baseline_sees_a_slow_decode_pool_only_after_the_prefill() -> None:
    assert policy("baseline").at_arrival(facts(tbt=0.2)) is None
    assert policy("baseline").after_prefill(facts(tbt=0.2)) is Reason.TBT_AFTER_PREFILL


def test_early_rejection_sees_it_at_arrival() -> None:
    assert policy("early").at_arrival(facts(tbt=0.2)) is Reason.TBT
    assert policy("early").at_arrival(facts(tbt=None)) is Reason.VRAM


def test_prediction_looks_at_who_will_be_decoding_when_the_prefill_ends() -> None:
    ends_before = [Decoding(-9.5, 1000)] * 200
    assert policy("early").at_arrival(facts(tbt=0.4, decoding=ends_before)) is Reason.TBT
    assert policy("predicted").at_arrival(facts(tbt=0.4, decoding=ends_before)) is None
    joins_before = [Decoding(0.5, 1000)] * 200
    assert policy("early").at_arrival(facts(coming=joins_before)) is None
    assert policy("predicted").at_arrival(facts(coming=joins_before)) is Reason.TBT
    joins_later = [Decoding(1.5, 1000)] * 200
    assert policy("predicted").at_arrival(facts(coming=joins_later)) is None


def test_prediction_can_take_the_time_that_others_decoded_lately() -> None:
    admission, started = policy("predicted", decode_seconds=0.0), [Decoding(-9.5, 1000)] * 200
    assert admission.at_arrival(facts(decoding=started)) is Reason.TBT
    assert admission.at_arrival(facts(decoding=started, decode_seconds=0.9)) is None
    assert admission.at_arrival(facts(decoding=started, decode_seconds=11.0)) is Reason.TBT


def test_who_has_lasted_as_long_as_others_did_is_not_taken_to_have_ended() -> None:
    admission, started = policy("predicted", decode_seconds=0.0), [Decoding(-15.0, 1000)] * 200
    assert admission.at_arrival(facts(decoding=started, decode_seconds=10.0)) is Reason.TBT
    assert admission.at_arrival(facts(decoding=started, decode_seconds=0.9)) is None  # the prefill takes 1 s
    joins_while_it_decodes = [Decoding(5.0, 1000)] * 200
    assert admission.at_arrival(facts(coming=joins_while_it_decodes, decode_seconds=10.0)) is Reason.TBT
    assert admission.at_arrival(facts(coming=joins_while_it_decodes, decode_seconds=3.0)) is None
    given = policy("predicted", decode_seconds=10.0)
    assert given.at_arrival(facts(decoding=started, decode_seconds=10.0)) is None  # as the paper has it


def test_the_first_answers_count_alike_for_how_long_requests_decode() -> None:
    board = DecodeBoard([10**6])
    for number, seconds in enumerate((1.0, 5.0, 6.0)):
        board.promised(0, number, 0.0, 10)
        board.joined(0, number, 0.0)
        board.finished(0, number, 100, seconds)
    assert board.decode_seconds == pytest.approx(4.0)


def test_the_board_learns_how_long_requests_decode() -> None:
    board = DecodeBoard([10**6])
    assert board.decode_seconds is None
    for number in range(2000):
        board.promised(0, number, 0.0, 10)
        board.joined(0, number, float(number))
        board.finished(0, number, 100, number + (5.0 if number < 1000 else 8.0))
    assert board.decode_seconds == pytest.approx(8.0, abs=0.1)


def test_prediction_spreads_requests_over_the_nodes() -> None:
    coming = [Decoding(0.5, 1000)] * 79
    assert policy("predicted").at_arrival(facts(coming=coming)) is Reason.TBT
    assert policy("predicted").at_arrival(facts(coming=coming, decode_nodes=2)) is None


@given(st.sampled_from(ADMISSIONS), st.floats(0, 60), st.floats(0, 0.2), st.integers(1, 5), st.floats(0, 1))
@settings(deadline=None)
def test_a_higher_class_is_never_rejected_where_a_lower_one_is_admitted(
    name: str, ttft: float, tbt: float, classes: int, reserve: float
) -> None:
    admission = policy(name, Threshold(1.0, classes, reserve))
    verdicts = [admission.at_arrival(facts(ttft, tbt, priority=p)) for p in range(classes)]
    admitted = [verdict is None for verdict in verdicts]
    assert admitted == sorted(admitted)


def test_under_rising_load_the_lowest_class_is_rejected_first() -> None:
    admission = policy("early", Threshold(1.0, 3, 0.1))
    admitted = [[admission.at_arrival(facts(t, 0.01, priority=p)) is None for p in range(3)] for t in (23, 25, 28, 31)]
    assert admitted == [[True] * 3, [False, True, True], [False, False, True], [False] * 3]


def test_an_unknown_admission_is_refused_by_name() -> None:
    with pytest.raises(BadArgument, match="predicted"):
        policy("oracle")


def test_the_queue_shrinks_as_time_passes_and_never_below_what_waits() -> None:
    board = PrefillBoard(1)
    board.placed(0, 1, 4.0)
    board.placed(0, 2, 3.0)
    assert board.queue_seconds(0, 0.0) == 7.0
    board.started(0, 1, 0.0)
    assert board.queue_seconds(0, 1.5) == 5.5
    assert board.queue_seconds(0, 9.0) == 3.0
    board.finished(0, 1)
    assert board.waiting(0) == 1


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 999))
@settings(deadline=None)
def test_the_decode_books_are_empty_when_everybody_has_left(moves: list[int], seed: int) -> None:
    board, source = DecodeBoard([10**6, 10**6]), random.Random(seed)
    coming: dict[int, int] = {}
    decoding: dict[int, int] = {}
    for number, move in enumerate(moves):
        if move == 0:
            coming[number] = source.randrange(2)
            board.promised(coming[number], number, 1.0, source.randrange(1, 9999))
        elif move == 1 and coming:
            request, node = coming.popitem()
            board.withdrawn(node, request)
        elif move == 2 and coming:
            request, node = coming.popitem()
            board.joined(node, request, 2.0)
            decoding[request] = node
        elif decoding:
            request, node = decoding.popitem()
            board.finished(node, request, 7, 3.0)
    for request, node in coming.items():
        board.withdrawn(node, request)
    for request, node in decoding.items():
        board.finished(node, request, 7, 3.0)
    for node_facts in board.facts():
        assert (node_facts.requests, node_facts.context_tokens) == (0, 0)
        assert (node_facts.coming_requests, node_facts.coming_tokens) == (0, 0)


class _Costs:
    def prefill_seconds(self, tokens: int, prefix: int) -> float:
        return FITTED_PREFILL.seconds(tokens, prefix)

    occupied_seconds = prefill_seconds

    def fetch_seconds(self, source: int, target: int, tokens: int) -> float:
        return 1.0


def conductor(admission: str, capacity: int = 10**6) -> Conductor:
    return Conductor(
        LoadBalancing(), policy(admission), FITTED_PREFILL, STEP, PrefillBoard(2), DecodeBoard([capacity] * 2)
    )


def test_a_decision_is_in_the_books_at_once() -> None:
    mind, nothing = conductor("none"), [CachedPrefix(0, 0)] * 2
    first, second = (mind.decide(Arrival(i, 0.0, 10_000), nothing, _Costs()) for i in range(2))
    assert isinstance(first, Assignment) and isinstance(second, Assignment)
    assert (first.prefill.node, second.prefill.node) == (0, 1)
    assert (first.decode, second.decode) == (0, 1)


def test_a_request_that_no_node_has_room_for_is_rejected_and_leaves_no_trace() -> None:
    mind = conductor("early", capacity=100)
    decision = mind.decide(Arrival(1, 0.0, 10_000), [CachedPrefix(0, 0)] * 2, _Costs())
    assert decision == Rejection(Reason.VRAM)
    assert mind.prefills.waiting(0) == mind.prefills.waiting(1) == 0


def test_without_admission_a_request_waits_for_room_on_the_emptiest_node() -> None:
    mind = conductor("none", capacity=100)
    decision = mind.decide(Arrival(1, 0.0, 10_000), [CachedPrefix(0, 0)] * 2, _Costs())
    assert isinstance(decision, Assignment) and decision.decode == 0
    decision = mind.decide(Arrival(2, 0.0, 10_000), [CachedPrefix(0, 0)] * 2, _Costs())
    assert isinstance(decision, Assignment) and decision.decode == 1


def test_a_recheck_that_rejects_withdraws_the_promise() -> None:
    mind, arrival = conductor("baseline"), Arrival(0, 0.0, 10_000)
    for other in range(1, 101):
        mind.decodes.promised(0, other, 0.0, 10)
        mind.decodes.joined(0, other, 0.0)
        mind.decodes.promised(1, -other, 0.0, 10)
        mind.decodes.joined(1, -other, 0.0)
    decision = mind.decide(arrival, [CachedPrefix(0, 0)] * 2, _Costs())
    assert isinstance(decision, Assignment)
    assert mind.recheck(arrival, decision.decode) is Reason.TBT_AFTER_PREFILL
    assert not mind.decodes.coming()
