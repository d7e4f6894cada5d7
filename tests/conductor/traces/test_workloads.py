"""Generated traces are well formed, repeat with their seed, and have the shape that their parameters say."""

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Protocol

import pytest

from mooncask.conductor.traces.prompt import Numbers, Prompt
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.sessions import mix
from mooncask.conductor.traces.workloads import Agents, Bursts, Chats, Documents


class Workload(Protocol):
    def requests(self, seconds: float, chance: Random, numbers: Numbers) -> Iterator[Request]: ...


WORKLOADS: list[Workload] = [Chats(), Agents(), Documents(), Bursts(per_second=1 / 60)]
each_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda workload: type(workload).__name__)


def generated(workload: Workload, seed: int = 1, seconds: float = 600) -> list[Request]:
    return list(workload.requests(seconds, Random(seed), Numbers()))


@each_workload
def test_time_never_runs_backwards_and_ends_where_it_was_told(workload: Workload) -> None:
    times = [request.timestamp_ms for request in generated(workload)]
    assert len(times) > 50
    assert times == sorted(times)
    assert times[-1] < 600_000


@each_workload
def test_the_same_seed_gives_the_same_trace_and_another_one_does_not(workload: Workload) -> None:
    assert generated(workload, 3) == generated(workload, 3)
    assert generated(workload, 3) != generated(workload, 4)


@each_workload
def test_every_block_has_one_parent_and_one_depth(workload: Workload) -> None:
    seen: dict[int, tuple[int, int | None]] = {}
    for request in generated(workload):
        assert len(request.hash_ids) == -(-request.input_length // 512)
        parent = None
        for depth, key in enumerate(request.hash_ids):
            assert seen.setdefault(key, (depth, parent)) == (depth, parent)
            parent = key


def test_a_chats_next_turn_continues_the_prompt_before() -> None:
    last: dict[int, Request] = {}
    for request in generated(Chats()):
        before = last.get(request.conversation)
        if before:
            full = before.input_length // 512
            assert request.turn == before.turn + 1
            assert request.hash_ids[:full] == before.hash_ids[:full]
            assert request.input_length >= before.input_length + before.output_length
        last[request.conversation] = request
    turns = Counter(request.turn for request in last.values())
    assert turns[0] > turns[1] > turns[2] > 0


def test_agents_take_many_steps_soon_after_each_other() -> None:
    steps = Counter(request.conversation for request in generated(Agents(), seconds=2000))
    assert 8 < sum(steps.values()) / len(steps) < 16


def test_documents_are_asked_by_several_people() -> None:
    askers = Counter(
        request.hash_ids[1] for request in generated(Documents(), seconds=3000) if len(request.hash_ids) > 2
    )
    assert 4 < sum(askers.values()) / len(askers) < 7


def test_a_burst_is_many_requests_for_one_article_most_of_them_early() -> None:
    burst = Bursts(per_second=1 / 60, askers_least=200, system_tokens=0)
    articles: dict[int, list[float]] = {}
    for request in generated(burst, seconds=2000):
        articles.setdefault(request.hash_ids[0], []).append(request.seconds)
    times = next(iter(articles.values()))
    early = sum(time <= times[0] + burst.half_life_seconds for time in times)
    assert len(times) >= 200
    assert 0.4 < early / len(times) < 0.6


def test_mixed_workloads_keep_their_blocks_apart() -> None:
    numbers = Numbers()
    one = list(Chats().requests(300, Random(1), numbers))
    two = list(Agents().requests(300, Random(2), numbers))
    mixed = list(mix(one, two))
    assert len(mixed) == len(one) + len(two)
    assert [request.timestamp_ms for request in mixed] == sorted(request.timestamp_ms for request in mixed)
    assert not {key for request in one for key in request.hash_ids} & {key for r in two for key in r.hash_ids}


def test_forks_of_a_prompt_share_its_full_blocks_only() -> None:
    base = Prompt(Numbers(), 10, 25)
    one, two = base.fork(), base.fork()
    one.append(10)
    two.append(10)
    assert one.hash_ids()[:2] == two.hash_ids()[:2] == base.hash_ids()[:2]
    assert not set(one.hash_ids()[2:]) & set(two.hash_ids()[2:])
