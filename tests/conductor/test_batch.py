"""The closed form of continuous batching against a loop that does every step."""

from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.models.cost import LinearStep
from mooncask.conductor.simulator.batch import Batch, Sequence
from mooncask.conductor.simulator.decode_node import DecodeNode
from mooncask.conductor.simulator.events import EventQueue

STEP = LinearStep(0.0203171, 0.0021337, 1.0377e-6)


@dataclass
class Naive:
    """One request in the oracle."""

    arrival: float
    context: int
    remaining: int
    tokens: list[float]


def every_step(requests: list[tuple[float, int, int]]) -> list[list[float]]:
    """Token times of each (arrival, context, tokens), by doing one step after the other; nobody is preempted."""
    everyone = [Naive(*request, tokens=[]) for request in requests]
    waiting, now = sorted(everyone, key=lambda r: r.arrival), 0.0
    batch: list[Naive] = []
    while waiting or batch:
        if not batch and waiting:
            now = max(now, waiting[0].arrival)
        while waiting and waiting[0].arrival <= now:
            batch.append(waiting.pop(0))
        now += STEP.seconds(len(batch), sum(r.context for r in batch))
        for request in batch:
            request.context, request.remaining = request.context + 1, request.remaining - 1
            request.tokens.append(now)
        batch = [r for r in batch if r.remaining]
    return [r.tokens for r in everyone]


def in_closed_form(requests: list[tuple[float, int, int]], capacity: int) -> tuple[list[list[float]], DecodeNode]:
    events = EventQueue()
    times: list[list[float]] = [[] for _ in requests]

    def ended(sequence: Sequence) -> None:
        arrival = requests[sequence.request][0]
        times[sequence.request] = list(arrival + np.cumsum(node.batch.gaps_of(sequence)))

    node = DecodeNode(events, STEP, capacity, ended, lambda *step: None)
    for number, (arrival, context, tokens) in enumerate(requests):
        sequence = Sequence(number, context, tokens, arrival)
        events.at(arrival, partial(node.arrive, sequence))
    events.run()
    return times, node


requests_in_order = st.lists(
    st.tuples(st.integers(0, 20_000).map(lambda ms: ms / 1000), st.integers(1, 20_000), st.integers(1, 300)),
    min_size=1,
    max_size=12,
).map(sorted)


@given(requests_in_order)
@settings(deadline=None)
def test_every_token_comes_when_a_loop_over_all_steps_says(requests: list[tuple[float, int, int]]) -> None:
    closed, _ = in_closed_form(requests, 10**9)
    for got, want in zip(closed, every_step(requests), strict=True):
        assert got == pytest.approx(want, rel=1e-6, abs=1e-6)


@given(requests_in_order, st.integers(20_301, 60_000))
@settings(deadline=None)
def test_memory_is_never_exceeded_and_every_token_comes_once(
    requests: list[tuple[float, int, int]], capacity: int
) -> None:
    closed, node = in_closed_form(requests, capacity)
    assert node.context_peak <= capacity
    assert [len(times) for times in closed] == [tokens for _, _, tokens in requests]
    assert node.batch.context == 0 and not node.waiting
    for (arrival, _, _), times in zip(requests, closed, strict=True):
        assert times == sorted(times) and times[0] > arrival


def test_a_stall_is_one_long_gap_for_those_in_the_batch_and_none_for_who_joins_after() -> None:
    batch = Batch(STEP, 10**6)
    early = Sequence(0, 1000, 5, 0.0)
    batch.join(early)
    batch.advance(2)
    batch.stall(3.0)
    late = Sequence(1, 1000, 3, batch.time)
    batch.join(late)
    batch.advance(3)
    assert batch.pop_ended() == [early, late]
    assert batch.gaps_of(early)[2] == pytest.approx(3.0 + STEP.seconds(2, 2002))
    assert batch.gaps_of(late).max() < 0.1


def test_a_preempted_request_waits_and_goes_on_where_it_was() -> None:
    times, node = in_closed_form([(0.0, 900, 50), (0.1, 900, 50)], 1860)
    assert [len(t) for t in times] == [50, 50]
    assert max(np.diff(times[1])) > 5 * max(np.diff(times[0]))
    assert node.context_peak <= 1860


def test_the_number_of_runs_does_not_depend_on_how_many_tokens_come() -> None:
    runs = []
    for tokens in (100, 10_000):
        count: list[int] = []
        events = EventQueue()
        node = DecodeNode(events, STEP, 10**9, lambda sequence: None, lambda *step, seen=count: seen.append(1))
        for number in range(10):
            sequence = Sequence(number, 1000, tokens, 0.1 * number)
            events.at(0.1 * number, partial(node.arrive, sequence))
        events.run()
        runs.append(len(count))
    assert runs[0] == runs[1] <= 20
