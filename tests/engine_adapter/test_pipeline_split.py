"""A model cut into parts gives the KV of the whole to the bit, and what cannot be cut is refused by name."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed: pip install mooncask[engine]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install mooncask[engine]")

import torch
from tiny_model import prompt_of, write_tiny, write_tiny_gemma3, write_tiny_llama

from mooncask.engine_adapter.transformers.engine import ignore_layer
from mooncask.engine_adapter.transformers.kv_layout import KvBuffer, cache_over
from mooncask.engine_adapter.transformers.model import load_model
from mooncask.engine_adapter.transformers.pipeline.split import described, layer_ranges, load_part
from mooncask.errors import ConfigError, UnsupportedModel

CUTS = [(0, 24), (24, 48), (48, 100)]
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("Llama", {}),
    ("Qwen2", {}),
    ("Qwen3", {}),
    ("Mistral", {"sliding_window": None}),
]


def assert_parts_are_the_whole(folder: Path, dtype: str) -> None:
    whole, shape = load_model(folder, dtype, 16), described(folder, dtype, 16)
    assert (shape.family, shape.layout, shape.vocabulary) == (whole.family, whole.layout, whole.vocabulary)
    tokens, want = prompt_of(100, seed=1), KvBuffer(whole.layout, 100)
    for start, stop in CUTS:
        whole.forward(tokens[start:stop], cache_over(want, start, ignore_layer))
    for stages in (2, 3):
        parts = [load_part(folder, dtype, shape.layout, layers) for layers in layer_ranges(whole.layout.layers, stages)]
        buffers = [KvBuffer(part.own_layout, 100) for part in parts]
        for start, stop in CUTS:
            hidden = parts[0].embed(tokens[start:stop])
            for part, buffer in zip(parts, buffers, strict=True):
                hidden = part.run(hidden, part.cache(buffer, start, ignore_layer))
        assert torch.equal(torch.cat([buffer.storage for buffer in buffers]), want.storage)


@pytest.mark.parametrize(("architecture", "fields"), MODELS, ids=[name for name, _ in MODELS])
def test_the_parts_of_a_model_make_the_kv_of_the_whole_to_the_bit(
    tmp_path: Path, architecture: str, fields: dict[str, Any]
) -> None:
    assert_parts_are_the_whole(write_tiny(architecture, tmp_path / "model", **fields), "float32")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_layers_with_a_sliding_window_and_a_scaled_embedding_are_cut_too(tmp_path: Path, dtype: str) -> None:
    assert_parts_are_the_whole(write_tiny_gemma3(tmp_path / "model", window=20), dtype)


def test_a_part_reads_its_own_weights_only(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", num_hidden_layers=4)
    layout = described(folder, "float32", 16).layout
    first, last = (load_part(folder, "float32", layout, layers) for layers in layer_ranges(4, 2))
    embedding = 320 * 64 * 4
    assert first.weight_bytes == last.weight_bytes + embedding
    assert last.weight_bytes == sum(p.nbytes for p in last.decoder.parameters())


@pytest.mark.parametrize(
    ("architecture", "fields", "why"),
    [
        ("Granite", {"embedding_multiplier": 2.0}, "changes hidden states outside of its layers"),
        ("GPTNeoX", {}, "has no embed_tokens"),
    ],
)
def test_a_model_whose_layers_cannot_be_run_apart_is_refused(
    tmp_path: Path, architecture: str, fields: dict[str, Any], why: str
) -> None:
    folder = write_tiny(architecture, tmp_path / architecture, **fields)
    with pytest.raises(UnsupportedModel, match=why):
        described(folder, "float32", 16)


def test_files_that_lack_a_weight_are_refused_by_its_name(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_tiny_llama(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors")
    layout = described(folder, "float32", 16).layout
    load_part(folder, "float32", layout, range(1))
    with pytest.raises(UnsupportedModel, match=r"layers\.1\.mlp\.up_proj\.weight is not in its files"):
        load_part(folder, "float32", layout, range(1, 3))


def test_layers_are_shared_out_evenly_and_never_to_more_stages_than_there_are() -> None:
    assert layer_ranges(30, 1) == [range(30)]
    assert layer_ranges(7, 3) == [range(3), range(3, 5), range(5, 7)]
    for stages in (0, 8):
        with pytest.raises(ConfigError, match="1 to 7"):
            layer_ranges(7, stages)
