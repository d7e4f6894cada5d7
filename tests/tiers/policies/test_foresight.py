"""What the foresight policy recognises and learns, seen from outside by what it evicts."""

from collections.abc import Iterable
from random import Random

from mooncask.tiers.block import Access, Hint
from mooncask.tiers.policies.foresight import Foresight
from mooncask.tiers.policies.forest import GHOST_BLOCKS_LEAST
from mooncask.tiers.policies.lru import LRU
from mooncask.tiers.policies.policy import EvictionPolicy


def anything(key: int) -> bool:
    return True


def accesses(keys: Iterable[int], seconds: float, hint: Hint | None = None) -> list[Access]:
    """One request's blocks from the first to the last."""
    chain = list(keys)
    parents = [None, *chain[:-1]]
    return [
        Access(key, parent, depth, 1, seconds, hint or Hint())
        for depth, (key, parent) in enumerate(zip(chain, parents, strict=True))
    ]


def request(policy: EvictionPolicy, keys: Iterable[int], seconds: float, capacity: int = 10**9) -> int:
    """Use the blocks of one request; how many were resident in front."""
    chain = accesses(keys, seconds)
    hits = next((i for i, access in enumerate(chain) if access.key not in policy), len(chain))
    for access in chain:
        if access.key not in policy and len(policy) >= capacity:
            assert policy.evict(anything) is not None
        policy.insert(access)
    return hits


def drained(policy: EvictionPolicy) -> list[int]:
    return [key for key in iter(lambda: policy.evict(anything), None) if key is not None]


def test_untrained_it_evicts_the_conversation_that_was_not_used_for_the_longest_time() -> None:
    policy = Foresight()
    request(policy, [1, 2, 3], 0)
    request(policy, [11, 12, 13], 100)
    request(policy, [21, 22, 23], 1000)
    request(policy, [31, 32, 33], 1001)
    order = drained(policy)
    assert [key // 10 for key in order if key % 10 == 1] == [0, 1, 2, 3]


def test_the_deepest_block_leaves_first_and_a_segment_after_those_that_continue_it() -> None:
    policy = Foresight()
    request(policy, range(6), 0)
    request(policy, [0, 1, 2, 3, 10, 11], 50)
    request(policy, [0, 1, 20], 90)
    order = drained(policy)
    place = {key: i for i, key in enumerate(order)}
    chains = ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 10, 11], [0, 1, 20])
    for chain in chains:
        assert [place[key] for key in chain] == sorted((place[key] for key in chain), reverse=True)


def visits(policy: EvictionPolicy, capacity: int, rounds: int) -> tuple[int, int]:
    """Hits of long-lived conversations and of one-time prompts of equal size, among many more of the latter.

    A conversation's turns are 50 s apart, and 60 one-time prompts of 10 blocks come in between.
    """
    fresh = iter(range(10**6, 10**8))
    chains = [[next(fresh) for _ in range(9)] for _ in range(5)]
    chance, hits, once = Random(3), 0, 0
    for turn in range(rounds):
        for i in range(60):
            once += request(policy, [next(fresh) for _ in range(10)], turn * 50 + i * 0.5, capacity)
        for chain in chains:
            hits += request(policy, [*chain, next(fresh)], turn * 50 + 40 + chance.random(), capacity)
    return hits, once


def test_it_learns_to_keep_conversations_that_go_on_among_prompts_that_come_once() -> None:
    capacity = 150
    assert visits(LRU(), capacity, 20) == (0, 0)
    hits, _ = visits(Foresight(), capacity, 20)
    assert hits >= 0.6 * 5 * 9 * 20


def test_a_beginning_that_all_share_is_kept() -> None:
    policy, fresh = Foresight(), iter(range(100, 10**6))
    hits = [request(policy, [0, 1, *(next(fresh) for _ in range(8))], i * 3.0, 30) for i in range(200)]
    assert hits[1:] == [2] * 199


def test_the_last_blocks_of_requests_leave_first_where_requests_go_on_before_them() -> None:
    """The last block of a prompt is half full, so the next turn replaces it."""
    policy, fresh = Foresight(), iter(range(1000, 10**6))
    for conversation in range(30):
        start = [next(fresh) for _ in range(4)]
        request(policy, [*start, next(fresh)], conversation * 10.0)
        request(policy, [*start, next(fresh), next(fresh)], conversation * 10.0 + 5)
    latest = [[next(fresh) for _ in range(5)] for _ in range(10)]
    for i, chain in enumerate(latest):
        request(policy, chain, 400.0 + i)
    request(policy, [next(fresh)], 420)
    place = {key: i for i, key in enumerate(drained(policy))}
    assert max(place[chain[-1]] for chain in latest) < min(place[key] for chain in latest for key in chain[:-1])


def test_the_order_of_access_within_a_request_does_not_matter_much() -> None:
    """The daemon reports a hit chain from its last block to its first."""

    class Reversed(Foresight):
        def __init__(self) -> None:
            super().__init__()
            self.waiting: list[Access] = []

        def insert(self, access: Access) -> None:
            if access.key in self:
                self.waiting.append(access)
                return
            for each in reversed(self.waiting):
                super().touch(each)
            self.waiting.clear()
            super().insert(access)

    straight, _ = visits(Foresight(), 150, 15)
    backwards, _ = visits(Reversed(), 150, 15)
    assert backwards >= 0.8 * straight


def test_a_parent_touched_when_its_child_enters_is_not_taken_for_another_request() -> None:
    policy = Foresight()
    for access in accesses([1, 2, 3, 4], 5.0):
        policy.insert(access)
        if access.parent is not None:
            policy.touch(Access(access.parent, None, access.depth - 1, 1, 5.0002))
    segment = policy._forest.resident[1]
    assert segment.keys == [1, 2, 3, 4]
    assert (segment.again, segment.use_number) == (False, 1)


def test_a_higher_priority_leaves_later() -> None:
    policy = Foresight()
    for access in accesses([1, 2], 0, Hint(priority=200)) + accesses([11, 12], 1, Hint(priority=50)):
        policy.insert(access)
    policy.insert(Access(99, time_seconds=2.0))
    order = drained(policy)
    assert order.index(11) < order.index(1)


def test_what_is_left_out_is_not_here_but_known_when_it_is_asked_for_again() -> None:
    policy = Foresight()
    for access in accesses(range(5), 0.0):
        policy.left_out(access)
    assert len(policy) == 0
    assert policy._forest._ghost_blocks == 5
    request(policy, range(5), 30.0)
    assert len(policy) == 5
    (segment,) = {id(segment): segment for segment in policy._forest.resident.values()}.values()
    assert segment.again, "it is the second use of the same chain"


def test_what_is_here_can_not_be_left_out() -> None:
    policy = Foresight()
    request(policy, range(3), 0.0)
    for access in accesses(range(3), 1.0):
        policy.left_out(access)
    assert len(policy) == 3


def test_a_chains_first_block_is_always_admitted() -> None:
    """Nothing is known of its request yet; and a policy that refused all could never learn otherwise."""
    policy = Foresight()
    for i in range(50):
        request(policy, range(10 * i, 10 * i + 5), float(i))
    assert policy.admits(Access(10**6, None, 0, 1, 60.0), anything)
    assert policy.admits(Access(10**6, 10**6 - 1, 7, 1, 60.0), anything)


def test_prompts_that_come_once_are_not_admitted_over_conversations_that_go_on() -> None:
    """Half of the requests come once, the others every 20 s: learned, the rest of one that comes once is left out."""
    policy, fresh = Foresight(), iter(range(1000, 10**7))
    for turn in range(60):
        for number in range(5):
            request(policy, range(20 * number, 20 * number + 10), turn * 20.0 + number, 80)
            request(policy, [next(fresh) for _ in range(10)], turn * 20.0 + number + 0.5, 80)
    (first, second, *_) = accesses([next(fresh) for _ in range(10)], 60 * 20.0 + 0.5)
    held = {first.key}
    assert policy.evict(anything) is not None
    policy.insert(first)
    assert not policy.admits(second, lambda key: key not in held and key < 1000)
    assert policy.admits(second, lambda key: False), "nothing would leave"


def test_what_it_remembers_of_blocks_that_left_is_bounded() -> None:
    policy, fresh = Foresight(), iter(range(10**7))
    for i in range(1200):
        request(policy, [next(fresh) for _ in range(100)], float(i), 500)
    ghosts = policy._forest._ghost_blocks
    assert GHOST_BLOCKS_LEAST - 100 <= ghosts <= GHOST_BLOCKS_LEAST
    assert len(policy._ranking._heap) + len(policy._timers) < 20_000


def test_random_use_keeps_its_books_straight() -> None:
    """Forks, refusals, removals and returns in any order: the counts agree and every block can leave."""
    chance, policy, resident = Random(5), Foresight(), set[int]()
    for step in range(1500):
        kind = chance.random()
        path, number = [], 0
        for _ in range(chance.randrange(1, 7)):
            number = number * 4 + chance.randrange(1, 4)
            path.append(number)
        if kind < 0.7:
            for access in accesses(path, step * 0.7):
                if access.key not in policy and len(policy) >= 60:
                    victim = policy.evict(lambda key: key % 5 > 0) or policy.evict(anything)
                    assert victim in resident
                    resident.discard(victim)
                policy.insert(access)
                resident.add(access.key)
        elif kind < 0.8:
            for access in accesses(path, step * 0.7):
                policy.left_out(access)
        elif kind < 0.9:
            policy.remove(path[-1])
            resident.discard(path[-1])
        else:
            victim = policy.evict(lambda key: key % 3 == 0)
            assert victim is None or victim % 3 == 0
            resident.discard(-1 if victim is None else victim)
        assert len(policy) == len(resident)
        assert all(key in policy for key in resident)
    assert set(drained(policy)) == resident
