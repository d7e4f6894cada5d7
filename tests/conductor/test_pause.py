"""Decode stands still for a prefill where that saves a level and breaks none: the rule, and what it is worth on one machine."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncask.conductor.scheduling.facts import Slo
from mooncask.conductor.scheduling.pause import NeverPause, Pause, PauseForLevels, Running, Waiting

SLO = Slo(ttft_seconds=1.0, tbt_seconds=0.1)
POLICY, SLOWDOWN = PauseForLevels(seconds_max=0.5), 2.0


def running(tokens: int, seconds: float) -> Running:
    return Running(tokens, seconds, SLO.tbt_seconds)


def asked(work: float, left: float, answers: Sequence[Running]) -> float:
    return POLICY.seconds(Waiting(work, left), answers, SLOWDOWN)


def test_a_prefill_that_is_in_time_stops_nobody() -> None:
    assert asked(0.4, 0.9, [running(100, 1.0)]) == 0.0


def test_a_late_prefill_gets_the_shortest_pause_that_saves_it() -> None:
    # 0.6 s of work in 1.0 s: beside decode it takes 1.2 s; 0.2 s alone and 0.4 s of work at half the speed are 1.0 s.
    assert asked(0.6, 1.0, [running(100, 1.0)]) == pytest.approx(0.2)


def test_what_can_not_be_saved_costs_nobody_anything() -> None:
    assert asked(1.1, 1.0, [running(100, 1.0)]) == 0.0


def test_a_long_pause_is_made_of_several() -> None:
    assert asked(0.9, 1.0, [running(1000, 1.0)]) == 0.5  # of 0.8 s
    assert asked(0.4, 0.5, [running(1000, 1.5)]) == pytest.approx(0.3)  # what is left of them


def test_no_answer_is_made_late() -> None:
    assert asked(0.6, 1.0, [running(100, 1.0), running(10, 0.9)]) == 0.0
    assert (
        asked(0.9, 1.0, [running(17, 1.0)]) == 0.0
    )  # it has 0.7 s to give and 0.8 s are needed: half of it would be in vain
    assert asked(0.6, 1.0, []) == 0.0


def test_where_decode_slows_nothing_down_nobody_stops() -> None:
    assert POLICY.seconds(Waiting(0.9, 0.95), [running(100, 1.0)], 1.0) == 0.0


@given(
    st.builds(Waiting, st.floats(0.01, 3), st.floats(-1, 3)),
    st.lists(st.builds(running, st.integers(0, 500), st.floats(0, 60)), max_size=5),
)
def test_a_pause_always_saves_the_prefill_and_never_costs_an_answer_its_level(
    waiting: Waiting, answers: list[Running]
) -> None:
    pauses = 0.0
    while pause := POLICY.seconds(waiting, answers, SLOWDOWN):
        assert pause <= POLICY.seconds_max
        pauses += pause
        waiting = Waiting(waiting.work_seconds - pause, waiting.left_seconds - pause)
        answers = [running(one.tokens, one.seconds + pause) for one in answers]
        if pause < 1e-6:
            break
    if pauses:
        assert waiting.work_seconds * SLOWDOWN <= waiting.left_seconds + 1e-6
        assert all(one.spare_seconds >= -1e-9 for one in answers)


# --- one machine that does both ---


@dataclass
class Request:
    arrived: float
    work: float
    tokens: int
    first: float = -1.0
    told: int = 0
    ended: float = -1.0

    def good(self) -> bool:
        in_time = self.first - self.arrived <= SLO.ttft_seconds
        return in_time and self.ended - self.first <= self.tokens * SLO.tbt_seconds


def goodput(policy: Pause, seed: int, tick: float = 0.01) -> int:
    """Requests within both levels, of 150 on a machine on which prefill and decode halve each other's speed."""
    random_source, now, clock = random.Random(seed), 0.0, 0.0
    todo = []
    for _ in range(150):
        clock += random_source.expovariate(0.9)
        todo.append(Request(clock, random_source.uniform(0.2, 0.7), random_source.randint(10, 60)))
    every, queue, batch, paused_until, progress = list(todo), list[Request](), list[Request](), 0.0, 0.0
    while todo or queue or batch:
        while todo and todo[0].arrived <= now:
            queue.append(todo.pop(0))
        if queue and now >= paused_until:
            waiting = Waiting(queue[0].work, queue[0].arrived + SLO.ttft_seconds - now)
            answers = [running(one.told, now - one.first) for one in batch]
            paused_until = now + policy.seconds(waiting, answers, SLOWDOWN)
        decoding = bool(batch) and now >= paused_until
        if queue:
            queue[0].work -= tick / (2.0 if decoding else 1.0)
            if queue[0].work <= 0:
                queue[0].first = now
                batch.append(queue.pop(0))
        if decoding:
            progress += tick / (0.04 if queue else 0.02)
            while progress >= 1:
                progress -= 1
                for one in batch:
                    one.told += 1
                    one.ended = now
                batch = [one for one in batch if one.told < one.tokens]
        now += tick
    return sum(one.good() for one in every)


def test_pauses_bring_more_requests_within_their_levels_with_every_seed() -> None:
    gains = [goodput(POLICY, seed) - goodput(NeverPause(), seed) for seed in range(5)]
    assert min(gains) >= 0, gains
    assert sum(gains) >= 5 * 5, gains
