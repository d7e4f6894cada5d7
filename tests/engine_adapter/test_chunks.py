"""Where prompts are cut: chunks cover what must be computed, end at absolute multiples, and complete each block once."""

from hypothesis import given
from hypothesis import strategies as st

from mooncask.engine_adapter.transformers.chunks import Chunk, chunks, completed_blocks, loadable_blocks

TOKENS = st.integers(0, 5000)
SIZES = st.integers(1, 700)


@given(TOKENS, TOKENS, SIZES)
def test_chunks_cover_exactly_what_is_to_be_computed(start: int, stop: int, prefill_chunk: int) -> None:
    covered = [token for chunk in chunks(start, stop, prefill_chunk) for token in range(chunk.start, chunk.stop)]
    assert covered == list(range(start, stop))


@given(TOKENS, TOKENS, SIZES)
def test_every_cut_is_an_absolute_multiple_of_the_chunk_size(start: int, stop: int, prefill_chunk: int) -> None:
    cuts = chunks(start, stop, prefill_chunk)
    assert all(chunk.stop % prefill_chunk == 0 for chunk in cuts[:-1])
    assert all(0 < chunk.tokens <= prefill_chunk for chunk in cuts)


@given(TOKENS, TOKENS, TOKENS, SIZES)
def test_two_hits_of_unlike_length_are_cut_at_the_same_places_after_the_longer(
    first: int, second: int, stop: int, prefill_chunk: int
) -> None:
    shorter, longer = sorted((first, second))
    after = {chunk.stop for chunk in chunks(shorter, stop, prefill_chunk) if chunk.stop > longer}
    assert after == {chunk.stop for chunk in chunks(longer, stop, prefill_chunk)}


def test_a_hit_within_a_chunk_is_followed_by_the_rest_of_that_chunk() -> None:
    assert chunks(208, 700, 256) == [Chunk(208, 256), Chunk(256, 512), Chunk(512, 700)]


@given(st.integers(0, 100), TOKENS, SIZES, st.integers(1, 64))
def test_each_full_block_after_the_hit_is_completed_by_exactly_one_chunk(
    hit_blocks: int, stop: int, prefill_chunk: int, block_tokens: int
) -> None:
    start = hit_blocks * block_tokens
    found = [block for chunk in chunks(start, stop, prefill_chunk) for block in completed_blocks(chunk, block_tokens)]
    assert found == list(range(hit_blocks, stop // block_tokens))


@given(st.integers(0, 5000), st.integers(1, 64))
def test_what_may_be_loaded_leaves_between_one_token_and_one_block_to_compute(prompt: int, block_tokens: int) -> None:
    left = prompt - loadable_blocks(prompt, block_tokens) * block_tokens
    assert left in range(min(prompt, 1), block_tokens + 1)
