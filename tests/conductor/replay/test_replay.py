"""What a hit is, and what no cache can do, whatever its policy."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mooncask.conductor.replay.offline import replay_min
from mooncask.conductor.replay.policies import REPLAY_POLICY_NAMES, ReplayOptions, replay_named
from mooncask.conductor.replay.replay import Cache, block_tokens_of, replay
from mooncask.conductor.traces.request import Request
from mooncask.errors import BadArgument
from mooncask.tiers.policies import POLICY_NAMES, make_policy

LEAF_FIRST = ReplayOptions(leaf_first=True)


def asked(*prompts: tuple[int, ...], tokens: int = 0) -> list[Request]:
    """One request a prompt, a second apart."""
    return [Request(1000 * i, tokens or 512 * len(ids), 1, ids) for i, ids in enumerate(prompts)]


def hits(name: str, trace: list[Request], capacity: int, options: ReplayOptions = ReplayOptions()) -> int:  # noqa: B008
    return replay_named(name, trace, capacity, options).hits


chains = st.lists(st.integers(0, 3), min_size=1, max_size=6)


@st.composite
def traces(draw: st.DrawFn) -> list[Request]:
    """Prompts as paths in a tree, so that equal ids mean equal prefixes."""
    numbers: dict[tuple[int, ...], int] = {}
    prompts = []
    for path in draw(st.lists(chains, max_size=40)):
        prefixes = [tuple(path[: end + 1]) for end in range(len(path))]
        prompts.append(tuple(numbers.setdefault(prefix, len(numbers)) for prefix in prefixes))
    return asked(*prompts)


def test_only_the_longest_resident_prefix_counts() -> None:
    """The second prompt evicts block 1; blocks 2 and 3 behind the gap are no hits."""
    assert hits("fifo", asked((1, 2, 3), (9,), (1, 2, 3)), 3) == 0


def test_blocks_are_looked_up_before_the_request_inserts_any() -> None:
    assert hits("lru", asked((1, 2), (1, 2), (1, 2, 3)), 10) == 4


def test_token_weighted_rate_counts_the_last_block_as_long_as_it_is() -> None:
    trace = asked((1, 2), (1, 2), tokens=600)
    found = replay(trace, 10, make_policy("lru", 10))
    assert (found.hit_tokens, found.tokens) == (600, 1200)
    assert (found.hit_rate, found.token_weighted_hit_rate) == (0.5, 0.5)


def test_an_empty_trace_has_a_rate_of_zero() -> None:
    found = replay([], 10, make_policy("lru", 10))
    assert (found.hit_rate, found.token_weighted_hit_rate) == (0.0, 0.0)


def test_leaf_first_keeps_the_beginning_of_a_chain() -> None:
    """Four blocks fit; plain lru evicts the root first, leaf-first the end."""
    trace = asked((1, 2, 3), (8, 9), (1, 2, 3))
    assert hits("lru", trace, 4) == 0
    assert hits("lru", trace, 4, LEAF_FIRST) == 2


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(deadline=None)
@given(trace=traces(), capacity=st.integers(1, 12))
def test_a_leaf_first_cache_never_holds_a_block_without_its_parent(
    name: str, trace: list[Request], capacity: int
) -> None:
    policy = make_policy(name, capacity)
    cache = Cache(capacity, policy, leaf_first=True)
    parents: dict[int, int] = {}
    for request in trace:
        parents |= dict(zip(request.hash_ids[1:], request.hash_ids, strict=False))
        cache.use(request, with_hints=False)
        assert len(policy) <= capacity
        assert all(parent in policy for key, parent in parents.items() if key in policy)


@pytest.mark.parametrize("name", REPLAY_POLICY_NAMES)
@settings(deadline=None)
@given(trace=traces(), capacity=st.integers(1, 12))
def test_no_policy_beats_the_bound_nor_an_unlimited_cache(name: str, trace: list[Request], capacity: int) -> None:
    found = hits(name, trace, capacity)
    assert found <= replay_min(trace, capacity).hits <= hits("lru", trace, 10_000)


@pytest.mark.parametrize("name", REPLAY_POLICY_NAMES)
@settings(deadline=None)
@given(trace=traces())
def test_where_everything_fits_all_policies_are_equal(name: str, trace: list[Request]) -> None:
    assert hits(name, trace, 10_000) == hits("lru", trace, 10_000)


@settings(deadline=None)
@given(trace=traces())
def test_a_larger_cache_is_never_worse_for_lru_and_the_bound(trace: list[Request]) -> None:
    for name in ("lru", "min"):
        found = [hits(name, trace, capacity) for capacity in range(1, 15)]
        assert found == sorted(found)


@pytest.mark.parametrize("name", POLICY_NAMES)
@settings(deadline=None)
@given(past=traces(), one=traces(), other=traces(), capacity=st.integers(1, 8))
def test_no_policy_sees_the_future(
    name: str, past: list[Request], one: list[Request], other: list[Request], capacity: int
) -> None:
    """Two traces that begin alike have the same hits as long as they are alike."""

    def hits_one_by_one(trace: list[Request]) -> list[int]:
        cache, found = Cache(capacity, make_policy(name, capacity)), []
        for request in trace:
            found.append(cache.resident_prefix(request.hash_ids))
            cache.use(request, with_hints=False)
        return found

    assert hits_one_by_one(past + one)[: len(past)] == hits_one_by_one(past + other)[: len(past)]


def test_the_bound_does_not_cache_what_is_never_used_again() -> None:
    assert hits("min", asked((1,), (2,), (3,), (1,)), 1) == 1


def test_hints_reach_the_policy_only_when_asked_for() -> None:
    trace = [Request(0, 512, 1, (1,), conversation=5, turn=2)]
    seen = []

    class Recorder:
        def insert(self, access):  # type: ignore[no-untyped-def]
            seen.append(access.hint.conversation)

        def __len__(self) -> int:
            return 0

        def __contains__(self, key: int) -> bool:
            return False

    for with_hints in (False, True):
        replay(trace, 1, Recorder(), with_hints=with_hints)  # type: ignore[arg-type]
    assert seen == [0, 5]


def test_a_recording_says_itself_how_many_tokens_a_block_has() -> None:
    recorded = [Request(0, 32, 1, (1, 2)), Request(1, 48, 1, (1, 2, 3))]
    assert block_tokens_of(recorded) == 16
    assert block_tokens_of([*recorded, Request(2, 50, 1, (1, 2, 3, 4))]) == 512
    assert block_tokens_of([Request(0, 33, 1, (1, 2))]) == 512
    assert block_tokens_of([]) == 512


def test_unknown_policies_and_impossible_capacities_are_refused_with_exit_status_2() -> None:
    with pytest.raises(BadArgument, match="did you mean s3fifo") as caught:
        replay_named("s3fifoo", [], 1, ReplayOptions())
    assert caught.value.exit_code == 2
    with pytest.raises(BadArgument, match="at least 1"):
        replay_named("lru", [], 0, ReplayOptions())
