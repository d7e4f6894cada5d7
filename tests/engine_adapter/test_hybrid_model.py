"""A model whose layers partly see a window only (a tiny Gemma 3): the same tokens through the store as by transformers alone,
for prompts shorter and longer than the window and for hits that end inside it."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import torch
from local_daemon import running_daemon
from tiny_model import prompt_of, write_tiny_gemma3
from transformers import DynamicCache

from mooncask.engine_adapter.transformers.decode import DecodeWorker
from mooncask.engine_adapter.transformers.engine import Engine, Options, ignore_layer
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, cache_over
from mooncask.engine_adapter.transformers.loading import LoadPolicy
from mooncask.engine_adapter.transformers.messages import Request
from mooncask.engine_adapter.transformers.model import Model, load_model
from mooncask.engine_adapter.transformers.prefill import PrefillWorker
from mooncask.engine_adapter.transformers.store_link import StoreAddress, StoreLink

BLOCK, WINDOW, ANSWER = 8, 36, 12
"""The window is no multiple of a block: it begins and ends inside one."""
LENGTHS = [7, 20, 35, 36, 37, 44, 90, 200]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_model(write_tiny_gemma3(tmp_path_factory.mktemp("model") / "tiny", WINDOW), "float32", BLOCK)


def logits_by_transformers(model: Model, tokens: list[int]) -> torch.Tensor:
    return model.forward(tokens, DynamicCache(config=model.module.config))


def logits_in_chunks(model: Model, buffer: KvBuffer, tokens: list[int], start: int, chunk: int) -> torch.Tensor:
    cache = cache_over(buffer, start, ignore_layer)
    for first in range(start, len(tokens), chunk):
        logits = model.forward(tokens[first : first + chunk], cache)
    return logits


def filled(model: Model, tokens: list[int]) -> KvBuffer:
    buffer = KvBuffer(model.layout, len(tokens))
    logits_in_chunks(model, buffer, tokens, 0, 16)
    return buffer


def test_the_layout_knows_each_layers_window(model: Model) -> None:
    assert model.layout.windows == (WINDOW, WINDOW, 0, WINDOW)
    assert model.layout.block_shape == (4, 2, 1, BLOCK, 16), "a block carries every layer"


@pytest.mark.parametrize("chunk", [1, 16, WINDOW, 64])
@pytest.mark.parametrize("length", LENGTHS)
def test_chunks_in_our_buffer_give_the_logits_of_one_pass_in_transformers_own_cache(
    model: Model, length: int, chunk: int
) -> None:
    tokens = prompt_of(length, length)
    found = logits_in_chunks(model, KvBuffer(model.layout, length), tokens, 0, chunk)
    torch.testing.assert_close(found, logits_by_transformers(model, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("hit", [BLOCK, 32, 40, 72, 192])
def test_blocks_that_were_loaded_up_to_anywhere_give_the_same_logits(model: Model, hit: int) -> None:
    tokens = prompt_of(200, 5)
    source, target = filled(model, tokens), KvBuffer(model.layout, len(tokens))
    for index in range(hit // BLOCK):
        block = torch.empty(model.layout.block_shape)
        source.save_block(index, block)
        target.load_block(index, block)
    found = logits_in_chunks(model, target, tokens, hit, 16)
    torch.testing.assert_close(found, logits_by_transformers(model, tokens), rtol=1e-4, atol=1e-4)


def test_sliding_layers_are_shown_the_last_window_less_one_tokens_and_nothing_before(model: Model) -> None:
    tokens, hit = prompt_of(100, 6), 96
    buffer = filled(model, tokens)
    expected = logits_in_chunks(model, buffer, tokens, hit, 16)
    sliding = [layer for layer, window in enumerate(model.layout.windows) if window]
    buffer.storage[sliding, :, :, : hit - WINDOW + 1] = float("nan")
    assert torch.equal(logits_in_chunks(model, buffer, tokens, hit, 16), expected)
    buffer.storage[sliding, :, :, hit - WINDOW + 1] = float("nan")
    assert logits_in_chunks(model, buffer, tokens, hit, 16).isnan().any(), "and of that one it is shown all"


def test_a_layer_says_how_long_the_whole_sequence_is_and_where_what_it_shows_begins(model: Model) -> None:
    cache = cache_over(KvBuffer(model.layout, 100), 90, ignore_layer)
    sliding, full = cache.layers[0], cache.layers[2]
    assert (sliding.get_seq_length(), full.get_seq_length()) == (90, 90)
    assert sliding.get_mask_sizes(4) == (WINDOW - 1 + 4, 90 - WINDOW + 1) and full.get_mask_sizes(4) == (94, 0)
    assert sliding.keys.shape[-2] == WINDOW - 1


# --- through a store -------------------------------------------------------------------------------------------------


@asynccontextmanager
async def workers(model: Model) -> AsyncIterator[tuple[PrefillWorker, DecodeWorker]]:
    options = Options(prefill_chunk=16, load_policy=LoadPolicy.ALWAYS)
    async with running_daemon() as daemon:
        links = [StoreLink(StoreAddress(daemon.path), name, model.family, model.layout) for name in ("p", "d")]
        try:
            yield PrefillWorker(Engine(model, links[0], options)), DecodeWorker(Engine(model, links[1], options))
        finally:
            for link in links:
                await asyncio.to_thread(link.close)


@pytest.mark.parametrize("length", LENGTHS)
async def test_decode_answers_the_same_tokens_from_what_prefill_stored(model: Model, length: int) -> None:
    request = Request("1", prompt_of(length, length), max_tokens=ANSWER)
    async with workers(model) as (prefill, decode):
        alone = await asyncio.to_thread(decode.run, Request("0", request.tokens, max_tokens=ANSWER, use_store=False))
        await asyncio.to_thread(prefill.run, request)
        answer = await asyncio.to_thread(decode.run, request)
    assert answer.loaded.total == (length - 1) // BLOCK * BLOCK
    assert answer.tokens == alone.tokens
    assert not answer.faults


@pytest.mark.parametrize("shared", [16, 32, 40, 96])
async def test_a_hit_that_ends_inside_the_window_or_before_it_goes_on_from_there(model: Model, shared: int) -> None:
    first = prompt_of(shared, 1) + prompt_of(60, 2)
    second = prompt_of(shared, 1) + prompt_of(60, 3)
    async with workers(model) as (prefill, decode):
        for tokens in (first, second):
            stored = await asyncio.to_thread(prefill.run, Request("1", tokens))
        assert stored.loaded.total == shared and stored.stored_blocks == (shared + 60) // BLOCK - shared // BLOCK
        request = Request("2", second, max_tokens=ANSWER)
        answer = await asyncio.to_thread(decode.run, request)
        alone = await asyncio.to_thread(decode.run, Request("3", second, max_tokens=ANSWER, use_store=False))
    assert answer.tokens == alone.tokens


async def test_the_answer_is_written_back_and_the_next_turn_finds_it(model: Model) -> None:
    async with workers(model) as (_, decode):
        request = Request("1", prompt_of(50, 9), max_tokens=ANSWER)
        answer = await asyncio.to_thread(decode.run, request)
        turn = Request("2", request.tokens + answer.tokens + prompt_of(9, 10), max_tokens=ANSWER)
        again = await asyncio.to_thread(decode.run, turn)
        alone = await asyncio.to_thread(decode.run, Request("3", turn.tokens, max_tokens=ANSWER, use_store=False))
    assert again.loaded.total == (50 + ANSWER - 1) // BLOCK * BLOCK
    assert again.tokens == alone.tokens


def test_models_that_differ_in_their_window_alone_are_different_families(model: Model, tmp_path: Path) -> None:
    other = load_model(write_tiny_gemma3(tmp_path / "tiny", WINDOW + 1), "float32", BLOCK)
    assert replace(model.layout, windows=()) == replace(other.layout, windows=())
    assert {name for name in model.family if model.family[name] != other.family[name]} == {"config"}
