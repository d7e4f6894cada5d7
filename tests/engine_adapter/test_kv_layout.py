"""Blocks of KV as bytes: the order of the elements, exact round trips, and a cache that is the model's own."""

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

from pathlib import Path

import torch
from tiny_model import prompt_of, write_tiny_llama

from mooncask.engine_adapter.transformers.kv_layout import DTYPES, KvBuffer, KvLayout, cache_over
from mooncask.engine_adapter.transformers.model import Model, load_model

BLOCK = 16


def layout_of(dtype: str) -> KvLayout:
    return KvLayout(layers=3, kv_heads=2, head_dim=4, block_tokens=5, dtype=dtype)


def random_buffer(layout: KvLayout, blocks: int) -> KvBuffer:
    buffer = KvBuffer(layout, blocks * layout.block_tokens)
    noise = torch.randint(
        0, 256, (buffer.storage.nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    buffer.storage = noise.view(layout.torch_dtype).view(buffer.storage.shape)
    return buffer


def saved(buffer: KvBuffer, index: int) -> bytearray:
    data = bytearray(buffer.layout.block_bytes)
    buffer.save_block(index, tensor_over(buffer.layout, data))
    return data


def tensor_over(layout: KvLayout, data: bytearray) -> torch.Tensor:
    return torch.frombuffer(data, dtype=layout.torch_dtype).view(layout.block_shape)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def model(tiny: Path) -> Model:
    return load_model(tiny, "float32", BLOCK)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_block_comes_back_byte_for_byte_whatever_its_bits_mean(dtype: str) -> None:
    """The bytes are random: not-a-number patterns must survive too."""
    buffer = random_buffer(layout_of(dtype), blocks=3)
    data = saved(buffer, 1)
    other = random_buffer(layout_of(dtype), blocks=3)
    other.storage.zero_()
    other.load_block(2, tensor_over(other.layout, data))
    assert saved(other, 2) == data
    assert not any(saved(other, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_are_layer_major(dtype: str) -> None:
    layout = layout_of(dtype)
    buffer = random_buffer(layout, blocks=2)
    want = [
        bytes(buffer.storage[layer, kv, head, layout.block_tokens + token].view(torch.uint8).numpy())
        for layer in range(layout.layers)
        for kv in range(2)
        for head in range(layout.kv_heads)
        for token in range(layout.block_tokens)
    ]
    assert saved(buffer, 1) == b"".join(want)


def test_layers_saved_one_by_one_are_the_block_saved_at_once() -> None:
    buffer = random_buffer(layout_of("float32"), blocks=2)
    data = bytearray(buffer.layout.block_bytes)
    for layer in range(buffer.layout.layers):
        buffer.save_layer(layer, 1, tensor_over(buffer.layout, data))
    assert data == saved(buffer, 1)


def test_a_block_outside_the_buffer_is_refused() -> None:
    buffer = random_buffer(layout_of("float32"), blocks=2)
    with pytest.raises(ValueError, match="buffer's last"):
        saved(buffer, 2)


def test_the_layout_is_found_by_looking_at_the_models_own_cache(model: Model) -> None:
    assert model.layout == KvLayout(layers=3, kv_heads=2, head_dim=16, block_tokens=BLOCK, dtype="float32")
    assert model.layout.block_bytes == 3 * 2 * 2 * 16 * 16 * 4


def greedy(model: Model, prompt: list[int], buffer: KvBuffer, filled: int, count: int) -> list[int]:
    cache = cache_over(buffer, filled, lambda layer: None)
    logits = model.forward(prompt[filled:], cache)
    found: list[int] = []
    while len(found) < count:
        found.append(int(logits.argmax()))
        logits = model.forward(found[-1:], cache)
    return found


def test_tokens_are_those_of_transformers_own_generate(model: Model) -> None:
    prompt = prompt_of(70)
    want = model.module.generate(
        torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert greedy(model, prompt, KvBuffer(model.layout, 128), 0, 12) == want[0, 70:].tolist()


def test_tokens_after_loaded_blocks_are_those_after_computed_ones(model: Model) -> None:
    prompt = prompt_of(70)
    first = KvBuffer(model.layout, 128)
    want = greedy(model, prompt, first, 0, 12)
    second = KvBuffer(model.layout, 128)
    for index in range(4):
        second.load_block(index, tensor_over(model.layout, saved(first, index)))
    assert greedy(model, prompt, second, 64, 12) == want


def test_flipped_bits_in_a_loaded_block_change_the_tokens(model: Model) -> None:
    prompt = prompt_of(70)
    buffer = KvBuffer(model.layout, 128)
    want = greedy(model, prompt, buffer, 0, 12)
    block = saved(buffer, 3)
    block[3::4] = bytes(byte ^ 0x80 for byte in block[3::4])  # every sign
    buffer.load_block(3, tensor_over(model.layout, block))
    assert greedy(model, prompt, buffer, 64, 12) != want


def test_each_layer_tells_as_soon_as_its_tokens_are_in_the_buffer(model: Model) -> None:
    buffer, told = KvBuffer(model.layout, 32), []
    cache = cache_over(buffer, 0, lambda layer: told.append((layer, bool(buffer.storage[layer, 1, 0, 9].any()))))
    model.forward(prompt_of(10), cache)
    assert told == [(0, True), (1, True), (2, True)]


def test_more_tokens_than_the_buffer_holds_are_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        model.forward(prompt_of(17), cache_over(KvBuffer(model.layout, 16), 0, lambda layer: None))
