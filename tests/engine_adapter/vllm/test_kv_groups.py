"""What KV cache groups keep of a request: windows that end inside a block, at its end and beside it; null blocks; prompts whole."""

import pytest

from mooncask.engine_adapter.vllm.key_chain import KeyChain
from mooncask.engine_adapter.vllm.kv_groups import KvGroups
from mooncask.engine_adapter.vllm.request_state import RequestState, Span


def attended(token: int, window: int) -> range:
    """What a token attends to, said in another way than the code does."""
    return range(max(0, token - window + 1), token + 1)


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 7, 8, 9, 13])
def test_a_block_is_dropped_when_the_next_token_attends_to_none_of_its_tokens_and_not_before(window: int) -> None:
    groups = KvGroups(4, (0, window))
    for computed in range(40):
        needed = attended(computed, window)[:-1]  # the token's own KV is written first
        first = groups.kept_from(computed)
        assert all(token // 4 >= first for token in needed)
        assert first == 0 or 4 * first <= computed - window + 1


@pytest.mark.parametrize("window", [2, 3, 4, 5, 7, 8, 9, 13])
def test_a_prompt_is_loaded_as_far_as_places_were_made_for_the_window_of_the_token_that_is_computed_next(
    window: int,
) -> None:
    groups = KvGroups(4, (window, 0))
    for tokens in range(1, 60):
        blocks = groups.loadable(tokens)
        assert blocks * 4 < tokens, "something is left to compute"
        needed = attended(blocks * 4, window)[:-1]
        assert all(token // 4 >= groups.kept_from(blocks * 4) for token in needed)
    assert KvGroups(4).loadable(8) == 2, "full attention: all of it, and vLLM computes the last token once more"


def test_several_groups_keep_what_the_shortest_window_keeps() -> None:
    assert KvGroups(4, (0, 9, 5)).kept_from(20) == KvGroups(4, (5,)).kept_from(20) == 4
    assert KvGroups(4).kept_from(1000) == 0


def test_a_block_is_whole_where_no_group_has_a_null_in_its_place() -> None:
    groups = KvGroups(4, (0, 64))
    assert groups.whole_from([[5, 6, 7], [8, 9, 10]], 12) == 0
    assert groups.whole_from([[5, 6, 7], [0, 0, 10]], 12) == 2
    assert groups.whole_from([[0, 6, 7], [8, 9, 10]], 12) == 0, "only vLLM's sliding groups have nulls"
    assert groups.places([[5, 6, 7], [0, 0, 10]], 1) == (6, None)
    assert groups.places([[5, 6, 7], [0, 0]], 2) == (7, None)


def test_only_one_group_that_keeps_everything_is_told_blocks_that_failed() -> None:
    assert KvGroups(4).fail_by_block
    assert not any(KvGroups(4, windows).fail_by_block for windows in ((8,), (0, 0), (0, 8)))


class Request:
    request_id, cache_salt, kv_transfer_params, skip_reading_prefix_cache = "r", None, None, False
    num_preemptions, num_prompt_tokens = 0, 40
    all_token_ids = tuple(range(40))


def state(windows: tuple[int, ...]) -> RequestState:
    groups = KvGroups(4, windows)
    return RequestState(Request(), groups, KeyChain(bytes(16), 4))


def test_a_chunk_that_is_longer_than_the_window_is_saved_whole_in_its_own_step() -> None:
    one = state((0, 6))
    one.in_step(20, [[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], all_new=True)
    assert one.plan_save(0, True) == Span(0, 5)
    one.in_step(40, [[11, 12, 13, 14, 15], [16, 17, 18, 19, 20]], all_new=False)
    assert one.plan_save(20, True) == Span(5, 10)
    assert one.leaving == (40 - 5) // 4


def test_blocks_that_came_from_a_cache_without_the_sliding_part_are_passed_over() -> None:
    one = state((0, 6))
    one.in_step(40, [list(range(1, 11)), [0, 0, 0, 4, 5, 6, 7, 8, 9, 10]], all_new=True)
    assert one.plan_save(20, True) == Span(3, 10)
    other = state((0, 6))
    other.in_step(40, [list(range(1, 11)), list(range(11, 21))], all_new=True)
    assert other.plan_save(20, True) == Span(3, 10), "vLLM has taken back what it does not say"
