"""Ghost caches: what they say is what a real cache of that kind would have hit, within bounds of memory and time."""

import gc
import re
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from random import Random

import pytest
from child_processes import until
from local_daemon import running_daemon
from trace_client import block_key

from mooncask.client import wire
from mooncask.conductor.replay.policies import ReplayOptions, replay_named
from mooncask.conductor.replay.replay import Cache
from mooncask.conductor.traces.prompt import Numbers
from mooncask.conductor.traces.request import Request
from mooncask.conductor.traces.workloads import Chats
from mooncask.daemon import ghosts as ghosts_module
from mooncask.daemon.ghost_cache import Question
from mooncask.daemon.ghosts import Answer, Ghosts
from mooncask.daemon.metrics import Metrics
from mooncask.tiers.policies import make_policy

BLOCK = 1 << 20
MEMORY_BYTES_MAX = 8 << 20
"""What docs/PLANNER.md promises of all ghosts of a daemon together."""


@cache
def chats() -> tuple[Request, ...]:
    """About 2,000 requests with 10,000 different blocks, and system prompts that many share."""
    return tuple(Chats(per_second=1.1).requests(900, Random(7), Numbers()))


@dataclass
class Clock:
    now: float = 0.0
    step: float = 0.0
    """How long everything seems to take: what passes with each look at the clock."""

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def questions(capacity: int) -> list[Question]:
    sizes = {"x2": 2 * capacity, "half": capacity // 2, "x8": 8 * capacity}
    others = [Question(policy, capacity * BLOCK, policy) for policy in ("s3fifo", "arc", "lfu")]
    return [*(Question(name, size * BLOCK, "lru") for name, size in sizes.items()), *others]


def replayed(question: Question) -> float:
    capacity = question.capacity_bytes // BLOCK
    return replay_named(question.policy, chats(), capacity, ReplayOptions(leaf_first=True)).hit_rate


def watch(ghosts: Ghosts, requests: Iterable[Request], capacity: int, clock: Clock, salt: int = 0) -> Iterator[None]:
    """Tells ghosts of an lru cache of `capacity` blocks that serves the requests."""
    live = Cache(capacity, make_policy("lru", capacity), leaf_first=True)
    for request in requests:
        clock.now = max(clock.now, request.seconds)
        keys = [block_key(number + (salt << 32)) for number in request.hash_ids]
        hits = live.resident_prefix(request.hash_ids)
        live.use(request, with_hints=False)
        ghosts.looked(1, keys, hits)
        ghosts.used(1, keys[:hits], BLOCK)
        ghosts.used(1, keys[hits:], BLOCK)
        yield


def make(capacity: int, clock: Clock, cpu_share: float = 1.0, window: float = 1e9) -> Ghosts:
    return Ghosts(Question("same", capacity * BLOCK, "lru"), questions(capacity), clock, window, cpu_share)


def rates(answers: Sequence[Answer]) -> dict[str, float]:
    return {answer.question.name: answer.hit_rate for answer in answers}


@pytest.mark.parametrize(("capacity", "salt"), [(1000, 0), (3000, 0), (3000, 1), (3000, 2)])
def test_answers_are_within_two_points_of_a_full_size_simulation(capacity: int, salt: int) -> None:
    clock = Clock()
    ghosts = make(capacity, clock)
    for _ in watch(ghosts, chats(), capacity, clock, salt):
        ghosts.work(1.0)
    assert ghosts.rate == pytest.approx(ghosts_module.SAMPLE_BLOCKS / capacity, rel=0.01)
    assert rates(ghosts.answers()) == pytest.approx({q.name: replayed(q) for q in questions(capacity)}, abs=0.02)


def test_a_cache_that_is_small_enough_is_not_sampled_and_its_answers_are_exact() -> None:
    clock, capacity = Clock(), 400
    ghosts = make(capacity, clock)
    for _ in watch(ghosts, chats(), capacity, clock):
        ghosts.work(1.0)
    assert ghosts.rate == 1.0
    found = rates(ghosts.answers())
    sizes = {q.name: replayed(q) for q in questions(capacity) if q.policy == "lru"}
    assert {name: found[name] for name in sizes} == pytest.approx(sizes, abs=0.001)


def test_little_was_asked_means_that_nothing_is_known() -> None:
    clock = Clock()
    ghosts = make(3000, clock)
    assert {answer.hit_rate for answer in ghosts.answers()} == {-1.0}
    for _ in watch(ghosts, chats()[:20], 3000, clock):
        ghosts.work(1.0)
    assert {answer.hit_rate for answer in ghosts.answers()} == {-1.0}


def test_hit_rates_are_of_the_last_window() -> None:
    clock = Clock()
    ghosts = make(400, clock, window=100.0)
    for _ in watch(ghosts, chats(), 400, clock):
        ghosts.work(1.0)
    assert {answer.hit_rate for answer in ghosts.answers()} != {-1.0}
    for _ in range(2):
        clock.now += 60.0
        ghosts.work(1.0)
    assert {answer.hit_rate for answer in ghosts.answers()} == {-1.0}


def test_what_takes_too_much_time_is_sampled_less_and_stays_right() -> None:
    """A clock that runs a millisecond at each look makes everything seem slow."""
    clock, capacity = Clock(step=0.001), 3000
    ghosts = make(capacity, clock, cpu_share=0.004)
    for _ in watch(ghosts, chats(), capacity, clock):
        while ghosts.busy:
            ghosts.work(0.5)
    assert ghosts.rate == pytest.approx(ghosts_module.SAMPLE_BLOCKS / capacity / 2, rel=0.01)
    assert rates(ghosts.answers()) == pytest.approx({q.name: replayed(q) for q in questions(capacity)}, abs=0.03)


def test_the_sample_grows_again_when_there_is_time() -> None:
    clock, capacity = Clock(step=0.001), 3000
    ghosts = make(capacity, clock, cpu_share=0.004, window=200.0)
    for _ in watch(ghosts, chats(), capacity, clock):
        while ghosts.busy:
            ghosts.work(0.5)
    assert ghosts.rate < 0.9 * ghosts_module.SAMPLE_BLOCKS / capacity
    for _ in range(20):
        clock.now += 101.0
        ghosts.work(0.5)
        while ghosts.busy:
            ghosts.work(0.5)
    assert ghosts.rate == pytest.approx(ghosts_module.SAMPLE_BLOCKS / capacity, rel=0.01)


def test_a_sample_too_small_to_say_anything_says_nothing() -> None:
    clock, capacity = Clock(step=0.01), 3000
    ghosts = make(capacity, clock, cpu_share=1e-6)
    for _ in watch(ghosts, chats(), capacity, clock):
        while ghosts.busy:
            ghosts.work(5.0)
    assert {answer.hit_rate for answer in ghosts.answers()} == {-1.0}


def test_all_ghosts_of_a_daemon_stay_below_eight_mebibytes() -> None:
    """Two sets, as with an NVMe tier, full to the brim: many blocks, each used again so that every list fills."""
    capacity, clock = 2000, Clock()
    gc.collect()
    tracemalloc.start()
    try:
        both = [make(capacity, clock) for _ in range(2)]
        for number in range(2 * capacity * 5):
            keys = [block_key(number), block_key(max(0, number - capacity // 2))]
            clock.now += 0.01
            for ghosts in both:
                ghosts.looked(1, keys, 0)
                ghosts.used(1, keys, BLOCK)
                ghosts.work(1.0)
        del keys
        gc.collect()
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(ghosts.entries > 5000 for ghosts in both)
    assert used_bytes < MEMORY_BYTES_MAX


def test_blocks_smaller_than_the_first_make_the_sample_smaller_instead_of_larger() -> None:
    clock = Clock()
    ghosts = make(1000, clock)
    ghosts.used(1, [block_key(0)], BLOCK)
    for number in count(1):
        if ghosts.rate and ghosts.rate < 0.1:
            break
        ghosts.used(1, [block_key(number)], BLOCK // 16)
        while ghosts.busy:
            ghosts.work(1.0)
        assert ghosts.entries <= ghosts_module.ENTRIES_MAX + 10


def test_news_that_waits_is_bounded_and_what_is_dropped_is_counted() -> None:
    ghosts = make(400, Clock())
    for number in range(ghosts_module.PENDING_MAX + 7):
        ghosts.used(1, [block_key(number)], BLOCK)
    assert ghosts.dropped == 7


async def test_a_daemon_with_too_little_dram_hears_that_twice_as_much_would_hit() -> None:
    """A loop over one and a half times the DRAM: lru hits nothing, and all of it with twice the room."""
    async with running_daemon({"dram.capacity": "2MiB", "nvme.path": ""}) as daemon:
        client = await daemon.client()
        namespace = await client.open("kv-loop")
        keys = [block_key(number) for number in range(96)]
        for _ in range(6):
            for part in (keys[first : first + 8] for first in range(0, len(keys), 8)):
                found = await client.ask(wire.Matched, wire.Match, namespace, part)
                got = await client.acquire(namespace, part)
                await client.ask(wire.Done, wire.Release, *got.ids)
                missing = part[len(found.tiers) :]
                await client.put(namespace, {key: bytes(32 << 10) for key in missing})
        what_ifs = daemon.service.what_ifs
        assert what_ifs is not None
        await until(
            lambda: what_ifs.rate and {what.name: what for what in what_ifs.answers()}["dram_x2"].hit_rate > 0.7
        )
        found = {what.name: what for what in what_ifs.answers()}
        assert found["dram_half"].hit_rate < 0.1
        assert found["dram_x2"].capacity_bytes == 4 << 20
        assert found["dram_x2"].text == "4MiB of DRAM"
        assert set(found) == {"dram_x2", "dram_half", "nvme_added", "policy_lfu", "policy_s3fifo", "policy_arc"}
        assert {what.name for what in (await daemon.plane.insight.overview("default")).what_if} == set(found)
        text = Metrics(daemon.plane, {}).gather().text().decode()
        shown = re.findall(r'^mooncask_what_if_hit_ratio{what="(\w+)"} (\S+)$', text, re.MULTILINE)
        assert dict(shown).keys() == set(found)
        assert float(dict(shown)["dram_x2"]) > 0.7
        await client.close()


async def test_with_an_nvme_tier_dram_is_asked_about_by_itself(tmp_path: Path) -> None:
    async with running_daemon({"nvme.path": str(tmp_path / "nvme")}) as daemon:
        assert daemon.service.what_ifs is not None
        found = {what.name: what.capacity_bytes for what in daemon.service.what_ifs.answers()}
        dram, nvme = 32 << 20, 128 << 20
        sizes = {"dram_x2": 2 * dram, "dram_half": dram // 2, "nvme_x2": 2 * nvme}
        assert found == {**sizes, "policy_lfu": nvme, "policy_s3fifo": nvme, "policy_arc": nvme}


async def test_ghosts_can_be_switched_off() -> None:
    async with running_daemon({"ghosts.enabled": False}) as daemon:
        assert daemon.service.what_ifs is None
        assert b"what_if" not in Metrics(daemon.plane, {}).gather().text()
